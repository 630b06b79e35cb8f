#!/bin/bash
# What people type: run and chat as other programs' users expect them (one question, pipes, files, reverse prompts, -cnv, -st), commands
# of a conversation, word wrap and completion of file names at a terminal, bench with lists.
. "$(dirname "$0")/../support/checks.sh"
here=$(cd "$(dirname "$0")" && pwd)
export XDG_STATE_HOME=$work/state
unset LLAMA_ARG_MODEL TENON_MODEL
run() { "$tenon" run --temp 0 -n 8 "$@" 2> "$work/err"; }
template='{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]'

# Where the text comes from.
expected=$(run -p "Tom had a big red" < /dev/null)
printf 'Tom had a big red\n' > "$work/text"
same "a file's last line end is dropped" "$expected" "$(run -f "$work/text" < /dev/null)"
same "a pipe is read" "$expected" "$(echo "Tom had a big red" | run)"
same "a redirected file is read" "$expected" "$(run < "$work/text")"
same "- reads standard input" "$expected" "$(run - < "$work/text")"
same "-p wins over a pipe" "$expected" "$(echo other | run -p "Tom had a big red")"
printf 'Tom had a big red' > "$work/exact"
same "-bf without a line end" "$expected" "$(run -bf "$work/exact" < /dev/null)"
[ "$(run -bf "$work/text" < /dev/null)" != "$expected" ] || failed "-bf keeps the line end"
same "an empty pipe is no text" "Once upon a time" "$(true | run -n 0)"
same "escapes" "$(printf 'a\tb\n"c"')" "$(run -n 0 -p 'a\tb\n\"c\"' < /dev/null)"
same "--no-escape" 'a\nb' "$(run -n 0 --no-escape -p 'a\nb' < /dev/null)"
(sleep 1.5 | timeout 20 "$tenon" run -n 1) > "$work/out" 2>&1
grep -q 'waiting for text' "$work/out" || failed "a pipe that gives nothing is mentioned"

# Ends.
reverse=$(run -n 200 -r "girl" -p "Once upon a time" < /dev/null)
case $reverse in *girl) ;; *girl*) failed "-r ends the text: $reverse" ;; *) failed "-r: $reverse" ;; esac
check "-n -1" 0 . timeout 60 "$tenon" run -n -1 --temp 0 -c 64
check "-n -2" 0 . timeout 60 "$tenon" run -n -2 --temp 0 -c 64
run -n 1 --no-show-timings < /dev/null > /dev/null
grep -q 'tokens/s' "$work/err" && failed "--no-show-timings"

# Chat models.
"$tenon" synth "$work/plain.gguf" --shape layers=1,width=64,heads=2,kv=1,head=32,ffn=64,vocab=600,ctx=512 > /dev/null
chat=$work/chat.gguf
python3 "$here/../data/add_metadata.py" "$work/plain.gguf" "$chat" "tokenizer.chat_template=$template"
check "run says that the model chats" 0 'has a chat template' "$tenon" run "$chat" -n 1 -p Hi
"$tenon" run "$work/plain.gguf" -n 1 -p Hi 2>&1 < /dev/null | grep -q 'chat template' && failed "no note for a model without a template"
check "-no-cnv is quiet" 0 . "$tenon" run "$chat" -no-cnv -n 1 -p Hi
grep -q 'has a chat template' "$work/out" && failed "-no-cnv is quiet"
answer() { "$tenon" "$@" --grammar 'root ::= "fine" | "good"' --seed 1 2> "$work/err"; }
one=$(answer chat "$chat" "How are you?" < /dev/null)
[[ $one == fine || $one == good ]] || failed "one question: $one"
same "run -cnv -st" "$one" "$(answer run "$chat" -cnv -st -p "How are you?" < /dev/null)"
"$tenon" run "$chat" -sys Kind -p "How are you?" --grammar 'root ::= "fine" | "good"' > "$work/out" 2> "$work/err" < /dev/null
grep -qE '^(fine|good)$' "$work/out" || failed "run -sys holds a conversation: $(cat "$work/out")"
check "-sys without a conversation" 0 'system has no effect' "$tenon" run "$chat" -no-cnv -sys Kind -p Hi -n 1
same "chat -st -p" "$one" "$(answer chat "$chat" -st -p "How are you?" < /dev/null)"
same "chat -m with a question" "$one" "$(answer chat -m "$chat" "How are you?" < /dev/null)"
check "a question in two places" 2 'not twice' "$tenon" chat "$chat" "How?" -p "How?"
same "lines of a pipe" 2 "$(printf 'one\ntwo\n' | answer chat "$chat" | grep -cE '^(fine|good)$')"
same "-st reads one line" 1 "$(printf 'one\ntwo\n' | answer chat "$chat" -st | grep -cE '^(fine|good)$')"
printf 'Be kind.\n' > "$work/system"
printf '/system\n' | "$tenon" chat "$chat" -sysf "$work/system" 2> /dev/null | grep -qx 'Be kind.' || failed "-sysf"
printf '/system\n' | "$tenon" chat "$chat" -sys 'Be\tkind.' 2> /dev/null | grep -qP '^Be\tkind' || failed "escapes in -sys"
check "a question that fails has an exit code" 1 'the context only' "$tenon" chat "$chat" -c 32 "$(printf 'fox %.0s' {1..400})"

# In a terminal: words are moved to the next line as a whole, wide characters one by one; Tab completes commands and lists several.
words=$(python3 -c 'print("aaaaaaaaa bbbbbbbbb ccccccccc dddddddd eee " + " ".join(("abcdefghijklmno" * 2)[i % 7:][:1 + i * 5 % 11] for i in range(90)))')
python3 "$here/../data/terminal.py" 'Hi\n' "$tenon" chat "$chat" --grammar "root ::= \"$words\"" > "$work/screen" 2> "$work/err" ||
    failed "a terminal: $(cat "$work/err")"
[[ $(tr -s '\n ' '  ' < "$work/screen") == *"$words"* ]] || failed "words are broken: $(cat "$work/screen")"
wide=$(python3 -c 'print("狐" * 50)')
python3 "$here/../data/terminal.py" 'Hi\n' "$tenon" chat "$chat" --grammar "root ::= \"A fox \" \"$wide\"" > "$work/screen" 2> "$work/err"
grep -qE '^A fox 狐{16,17}$' "$work/screen" || failed "wide characters: $(cat "$work/screen")"
python3 "$here/../data/terminal.py" '/re\t/h\t\n/xyz\n/bye\n' "$tenon" chat "$chat" > "$work/screen" 2> "$work/err"
grep -q '^/reset  /regen' "$work/screen" || failed "Tab lists commands: $(cat "$work/screen")"
grep -q 'unknown command /xyz; /help' "$work/screen" || failed "no near command: $(cat "$work/screen")"

# Arguments that nobody reads are errors; the environment's model gives way to an argument.
tales=$here/../../models/tales.gguf
check "run with a text as argument" 2 'unexpected argument "Once".*-p gives' "$tenon" run -m "$tales" Once
check "run with a model and a text" 2 'unexpected argument "Once".*-p gives' "$tenon" run "$tales" Once
for command in bench serve plan; do check "$command with two models" 2 'unexpected argument "b.gguf"' "$tenon" $command -m "$tales" b.gguf; done
LLAMA_ARG_MODEL=/no/such.gguf check "an argument before LLAMA_ARG_MODEL" 0 . "$tenon" run "$tales" -n 1
LLAMA_ARG_MODEL=/no/such.gguf check "chat with a model before LLAMA_ARG_MODEL" 0 . "$tenon" chat "$tales" "Hi" -n 1
same "LLAMA_ARG_MODEL with a question" "$one" "$(LLAMA_ARG_MODEL=$chat answer chat "How are you?" < /dev/null)"

# -r with escapes.
same "-r with a line break" 2 "$("$tenon" run --temp 0 -n 200 -r '\n' 2> "$work/err" | wc -l)"
[ "$("$tenon" run --temp 0 -n 200 -r '\n' --no-escape 2> "$work/err" | wc -l)" -gt 2 ] || failed "-r with --no-escape"

# Commands of a conversation.
talk() { printf '%b' "$1" | "$tenon" chat --seed 1 -n 4 "${@:2}" > "$work/out" 2> "$work/err"; }
talk 'A fox\n/clear\n/stats\n/bye\nnever\n'
grep -q 'messages  *0' "$work/out" || failed "/clear"
talk '/help\n/bye\n'
grep -q /model "$work/out" || failed "/help lists /model"
talk 'A fox\n/model '"$work/plain.gguf"'\n/model\n/stats\n/model /no/such.gguf\n/stats\n'
same "/model continues the conversation" 2 "$(grep -c 'messages  *2' "$work/out")"
grep -qx "$work/plain.gguf" "$work/out" || failed "/model shows the model"
grep -q 'no/such' "$work/err" || failed "/model with a file that is not there"
echo precious > "$work/mine"
talk 'A fox\n/save '"$work"'/mine\n/save '"$work"'/talk\nMore\n/save '"$work"'/talk\n'
same "/save keeps other files" precious "$(cat "$work/mine")"
grep -q 'More' "$work/talk" || failed "/save again to the same file"
talk 'A fox\n/save --force '"$work"'/mine\n/reset\n/load "'"$work"'/mine"\n/stats\n/save\n'
grep -q '"A fox"' "$work/mine" || failed "/save --force"
grep -q 'messages  *2' "$work/out" || failed "/load with quotes"
grep -q 'mine exists' "$work/err" && failed "/save alone saves to the same file"
talk '/set temperature 0.25\n/set parameter top_k 7\n/set num_predict 3\n/set temp\n/set top-k\n/set n\n/set system Be kind.\n/system\n/?\n'
for line in 'temp +0.25$' 'top-k +7$' 'n +3$' 'Be kind.$' '/regen '; do grep -qE "^ *$line" "$work/out" || failed "/set: no $line in $(cat "$work/out")"; done
[ "$(awk 'length > 80' "$work/out")" = "" ] || failed "/help is wider than 80 columns"
long=$(printf 'fox %.0s' {1..300})
talk "Tom is a fox.\\n$long\\n/stats\\n" -c 128
grep -q 'the context only' "$work/err" || failed "a paste that is too long is refused"
grep -q 'messages  *2' "$work/out" || failed "a refused paste forgets earlier messages: $(cat "$work/out")"

# bench with lists.
bench() { "$tenon" bench -r 1 "$@" 2> "$work/err"; }
same "tests of bench" "pp4 pp8 tg2 pp4+tg2 pp4 @ d8 pp8 @ d8 tg2 @ d8 pp4+tg2 @ d8" \
    "$(bench -p 4,8 -n 2 -pg 4,2 -d 0,8 -o md | awk -F' *\\| *' 'NR > 2 { printf "%s%s", s, $7; s = " " }')"
same "repeated options" "pp4 pp8 tg2" "$(bench -p 4 -p 8 -n 2 | awk -F' *\\| *' 'NR > 2 { printf "%s%s", s, $7; s = " " }')"
bench -p 4 -n 2 -o json | python3 -c 'import json, sys
rows = json.load(sys.stdin)
assert [(r["n_prompt"], r["n_gen"]) for r in rows] == [(4, 0), (0, 2)] and all(r["avg_ts"] > 0 and len(r["samples_ts"]) == 1 for r in rows)' || failed "bench -o json"
bench -p 4,8 -n 0 -o csv | python3 -c 'import csv, sys
rows = list(csv.DictReader(sys.stdin))
assert [r["n_prompt"] for r in rows] == ["4", "8"] and float(rows[0]["avg_ts"]) > 0' || failed "bench -o csv"
same "bench -o jsonl" 2 "$(bench -p 4 -n 2 -o jsonl | grep -c '^{')"
same "ranges" "pp4 pp8 pp12 tg1 tg2 tg4" "$(bench -p 4-12+4 -n '1-4*2' | awk -F' *\\| *' 'NR > 2 { printf "%s%s", s, $7; s = " " }')"
for range in 8-4 4-8+0 '4-8*1' '0-4*2' 4- 0-99; do check "bench -p $range" 2 'whole numbers' "$tenon" bench -p "$range"; done
began=$(date +%s%N)
bench -p 4,8 -n 0 --delay 0.3 > /dev/null
[ $((($(date +%s%N) - began) / 1000000)) -ge 600 ] || failed "--delay"
check "bench with what is no number" 2 'whole numbers' "$tenon" bench -p 4,x
check "bench -pg with one number" 2 '512,128' "$tenon" bench -pg 512

# At a terminal: words are not broken, names of files are completed.
if script -qec true /dev/null > /dev/null 2>&1; then
    export TERM=xterm
    screen() { # keys, options…
        (sleep 1; printf '%b' "$1"; sleep 2) | script -qfec "stty cols 40; '$tenon' chat --temp 0 -n 40 ${*:2}" /dev/null 2>&1
    }
    screen 'A fox\r/bye\r' --grammar "'root ::= \"supercalifragilistic supercalifragilistic supercalifragilistic\"'" -n 60 > "$work/screen"
    grep -aq 'supercalifragilistic' "$work/screen" || failed "no long words on the screen: $(cat -v "$work/screen" | tail -n 5)"
    grep -aqE $'\033\\[[0-9]+D\033\\[K' "$work/screen" || failed "words are moved to the next line"
    echo '{"messages": [{"role": "user", "content": "x"}]}' > "$work/unique-name.json"
    screen "/load $work/uniq\\t\\r/bye\\r" > "$work/screen"
    grep -aq '1 messages loaded' "$work/screen" || failed "completion of a file: $(cat -v "$work/screen" | tail -n 5)"
fi
finish
