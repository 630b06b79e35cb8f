#!/bin/bash
# tenon chat: plain lines in a pipe, its commands, a full context; editing, history and Ctrl-C on a pseudo-terminal.
. "$(dirname "$0")/../support/checks.sh"
export XDG_STATE_HOME=$work/state
complain() { # description
    failed "$1"
    head -n 30 "$work/out" "$work/err" 2> /dev/null
}
chat() { # lines, options…: standard output and error in files
    printf '%b' "$1" | "$tenon" chat --seed 1 -n 24 "${@:2}" > "$work/out" 2> "$work/err"
}
out() { grep -qE -- "$1" "$work/out" || complain "$2"; }
err() { grep -qE -- "$1" "$work/err" || complain "$2"; }

chat 'Once upon a time there was a fox\n' || complain "exit code"
[ "$(wc -l < "$work/out")" -ge 1 ] || complain "a reply"
err 'cut off after 24 tokens' "the limit is mentioned"
cp "$work/out" "$work/first"
chat 'Once upon a time \\\nthere was a fox\n' --temp 0
out . "a message of two lines"
chat 'Once upon a time there was a fox\n/regen\n/stats\n'
out 'messages +2$' "/regen replaces the reply"
out 'planned ([0-9.]+ [KM]iB) = used \1' "memory"
chat 'A\n/reset\n/stats\n'
out 'messages +0$' "/reset"
chat '/system Be short.\n/system\n/reset\n/system\n'
[ "$(grep -c '^Be short.$' "$work/out")" = 2 ] || complain "/system, kept by /reset"
chat 'A fox\n/save '"$work"'/saved\n/reset\n/load '"$work"'/saved\n/stats\n' -sys 'A tale.'
err '3 messages loaded' "/save and /load"
grep -q '"content": "A fox"' "$work/saved" || complain "/save keeps the words"
chat 'A fox\n/save /no/such/folder/file\n/load /no/such/file\n/load '"$work"'/first\n/stats\n'
out 'messages +2$' "files that cannot be used change nothing"
err 'cannot be written' "/save to nowhere"
chat '/set temp 0\n/set temp x\n/set nonsense 1\n/set\n/sats\n/nonsense\n'
out 'temp +0$' "/set"
err 'temp takes a number' "/set with a wrong value"
err "unknown setting 'nonsense'" "/set with a wrong name"
err 'unknown command /sats; did you mean /stats' "a mistyped command"
chat '/set temp 0\n/set n 5\nOnce upon a time\n'
err 'cut off after 5 tokens' "/set n"
chat '/help\n/quit\nOnce upon\n'
out '/regen' "/help"
! grep -qv '^Context of ' "$work/err" || complain "/quit leaves"

# The template is used, and a reply ends at its end-of-turn text.
chat 'Hi\n' --chat-template '{% for m in messages %}[{{ m.role }}]{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}' --grammar 'root ::= "Hello<" "end>" "never"'
[ "$(cat "$work/out")" = Hello ] || complain "the reply ends with the turn"
template='{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}'
chat 'Hi\n' --chat-template "$template" --grammar 'root ::= "<think>Well.</think>Hello"'
[ "$(cat "$work/out")" = Hello ] || complain "reasoning is not part of the reply"
err 'Well.' "reasoning goes to standard error"
chat 'Hi\n' -j '{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}' --chat-template chatml
out '"a": *(true|false)' "a schema binds the reply"
chat 'Hi\nHi\n' --grammar 'root ::= "yes" | "no"'
[ "$(grep -cE '^ ?(yes|no)$' "$work/out")" = 2 ] || complain "a grammar begins anew with every reply"
chat 'Hi\n' --chat-template '{% if %}' && complain "a broken template is an error"
err 'chat template' "a broken template is named"

# The context fills up between replies and within one; the conversation continues.
lines='Once upon a time there was a fox\nThe fox met a bear\nThe bear said hello\nThen they went home\n/stats\n'
chat "$lines" -n 40 -c 96 || complain "a full context"
err 'oldest 2 messages were dropped' "a full context drops the oldest"
chat "$lines" -n 40 -c 96 --no-context-shift
grep -q 'messages were dropped' "$work/err" && complain "--no-context-shift drops nothing"
err 'the context is full|the messages have' "--no-context-shift says why"
computed=$(sed -n 's/^ *prompt *\([0-9]*\) tokens.*/\1/p' "$work/out")
[ "$computed" -lt 60 ] || complain "cached tokens are not computed again ($computed tokens)"
chat 'Once upon a time\n/stats\n' -n 300 -c 64 --grammar 'root ::= [^~]* "~"' || complain "a reply longer than the context"
err 'cut off after 300 tokens' "a reply longer than the context is written"
chat "$(printf 'fox %.0s' {1..100})"'\n/stats\n' -c 32
err 'the context only 32' "a message that cannot fit"
out 'messages +0$' "a message that cannot fit is taken back"

# On a terminal.
if script -qec true /dev/null > /dev/null 2>&1; then
    export TERM=xterm
    wait_for() { # pattern: until it is on the screen, at most 20 s
        for _ in $(seq 200); do grep -qaE -- "$1" "$work/screen" && return; sleep 0.1; done
        failed "no \"$1\" on the screen:"
        cat -v "$work/screen"
    }
    mkfifo "$work/keys"
    script -qfec "'$tenon' chat --seed 1 -n 1000000 --grammar 'root ::= [^~]* \"~\"'" /dev/null < "$work/keys" > "$work/screen" 2>&1 &
    exec 3> "$work/keys"
    wait_for 'Ctrl-D leaves'
    printf '/staqq\177\177ts\r' >&3 # mistyped, erased, corrected
    wait_for 'messages +0'
    printf 'Once upon a time\r' >&3
    wait_for 'Once upon a time' && sleep 0.5
    printf '\003' >&3 # the reply would never end
    wait_for 'interrupted'
    printf '/sy\t\r' >&3 # completed
    wait_for 'no system message'
    printf '\020\020\020\r' >&3 # three lines up in the history: /stats again
    wait_for 'messages +2'
    printf 'two\033\rlines\001/save '"$work"'/x\005\003' >&3
    sleep 0.3
    printf '\004' >&3
    wait_for 'memory planned'
    exec 3>&-
    wait
    grep -q '/stats' "$work/state/tenon/chat_history" || failed "no history"
    [ "$(stat -c %a "$work/state/tenon/chat_history")" = 600 ] || failed "others can read the history"
else
    echo "no pseudo-terminals here: that part is skipped"
fi
finish
