#!/bin/bash
# tenon run with the default model: text from all sources, grammar and schema, the closing line, JSON, a full context.
. "$(dirname "$0")/../support/checks.sh"

prompt='Once upon a time there was a fox'
story=$("$tenon" run -p "$prompt" -n 30 --temp 0 2> "$work/closing")
case $story in "$prompt"*) ;; *) echo "FAILED: the story does not begin with its prompt: $story"; failures=$((failures + 1)) ;; esac
grep -qE '^[0-9]+ tokens, prompt [0-9.]+ tokens/s, generation [0-9.]+ tokens/s, memory planned ([0-9.]+ [KMG]?i?B) = used \1' "$work/closing" ||
    failed "closing line: $(cat "$work/closing")"
printf '%s' "$prompt" > "$work/prompt"
same "the prompt from a file" "$("$tenon" run -f "$work/prompt" -n 30 --temp 0 2> /dev/null)" "$story"
same "the prompt from standard input" "$(printf '%s' "$prompt" | "$tenon" run - -n 30 --temp 0 2> /dev/null)" "$story"
same "one seed, one story" "$("$tenon" run -n 30 --seed 5 2> /dev/null)" "$("$tenon" run -n 30 --seed 5 -t 1 2> /dev/null)"
"$tenon" run -n 20 --json > "$work/out" 2> /dev/null
seed=$(sed -n 's/.*"seed": \([0-9]*\),/\1/p' "$work/out")
same "the seed that --json gives" "$("$tenon" run -n 20 --json --seed "$seed" 2> /dev/null | grep '"text"')" "$(grep '"text"' "$work/out")"
check "-v logs what was loaded" 0 'info: cpu: 11 layers, weights .* mapped, cache' "$tenon" run -n 1 -v
check "a context that is left open" 0 '^Context of 512 tokens: as trained; -c sets another$' "$tenon" run -n 1
models=$(dirname "$0")/../../models
check "--stats" 0 '^right by position: [0-9]+% of [0-9]+, ' "$tenon" run -p "$prompt" -n 60 --temp 0 -md "$models/tales-draft.gguf" --draft-fixed --stats
grep -qE '^[0-9]+ steps, [0-9.]+ tokens per step; [0-9]+ tokens guessed in [0-9.]+ s, [0-9]+ right; -?[0-9.]+ s saved$' "$work/out" || failed "--stats: $(cat "$work/out")"
check "--stats without guesses" 0 '^no tokens were guessed: --spec-type' "$tenon" run -n 1 --stats
check "--json with guesses" 0 '"tokens_per_step": [1-9]' "$tenon" run -p "$prompt" -n 60 --temp 0 -md "$models/tales-draft.gguf" --draft-fixed --json
same "acceptance by position" "$(sed -n 's/.*"draft_acceptance": \[$/found/p' "$work/out")" found
for keep in 0 5 -1; do
    check "a shifted context, --keep $keep" 0 '^20[0-9] tokens' "$tenon" run -c 64 -n 200 --ignore-eos --context-shift --keep $keep
    grep -q 'is full' "$work/out" && failed "a shifted context is no end"
done
"$tenon" synth "$work/gpt2.gguf" --arch gpt2 --shape layers=2,width=64,heads=2,kv=2,head=32,ffn=128,ctx=64 > "$work/out" 2>&1 || failed "synth gpt2"
check "learned positions do not shift" 0 '--context-shift is off: ' "$tenon" run "$work/gpt2.gguf" -p a -c 16 -n 40 --ignore-eos --context-shift
check "a context beyond the training" 0 'warning: the context of 600 tokens is longer than the 512' "$tenon" run -n 1 -c 600
same "without its prompt" "$prompt$("$tenon" run -p "$prompt" --no-echo -n 30 --temp 0 2> /dev/null)" "$story"

check "a grammar" 0 '^Yes or no\?(yes|no)$' "$tenon" run -p 'Yes or no?' --grammar 'root ::= "yes" | "no"' --seed 1
printf 'root ::= [a-f]{8}\n' > "$work/grammar"
check "a grammar from a file" 0 '^Hex:[a-f]{8}$' "$tenon" run -p 'Hex:' --grammar-file "$work/grammar" --seed 1
schema='{"type": "object", "properties": {"legs": {"type": "integer", "minimum": 2, "maximum": 8}}, "required": ["legs"]}'
check "a schema" 0 '"legs": *[2-8]' "$tenon" run --no-echo -p 'Fox:' -j "$schema" --seed 1
printf '%s' "$schema" > "$work/schema"
check "a schema from a file" 0 '"legs": *[2-8]' "$tenon" run --no-echo -p 'Fox:' -jf "$work/schema" --seed 1
check "a grammar with a mistake" 1 'grammar line 1' "$tenon" run --grammar 'root ::= "a' -n 5
check "a schema that is not JSON" 1 '--json-schema: ' "$tenon" run -j '{' -n 5
check "two grammars" 2 'use either --grammar or --json-schema' "$tenon" run -j '{}' --grammar 'root ::= "a"'
check "JSON for programs" 0 '"generated_tokens": 7' "$tenon" run --json -n 7 --seed 1
check "JSON with a long context" 0 '"generated_tokens": 3' "$tenon" run --json -n 3 --seed 1 -c 40000
planned=$(sed -n 's/.*"memory_planned": \([0-9]*\).*/\1/p' "$work/out")
used=$(sed -n 's/.*"memory_used": \([0-9]*\).*/\1/p' "$work/out")
same "memory planned and used" "$planned" "$used"
check "a text that may not end" 0 '^[0-9]+ tokens' "$tenon" run -p 'The end.' --ignore-eos -n 300 --temp 0
grep -q '^3[0-9][0-9] tokens' "$work/out" || failed "--ignore-eos: $(tail -n 1 "$work/out")"
# Control characters in generated text are replaced on a terminal and left alone elsewhere.
control=$'root ::= "a\\x1b[2Jb"'
check "control characters in a pipe" 0 $'a\033\\[2Jb' "$tenon" run --no-echo --grammar "$control"
if script -qec true /dev/null > /dev/null 2>&1; then
    check "control characters on a terminal" 0 $'a\xef\xbf\xbd\\[2Jb' script -qec "'$tenon' run --no-echo --grammar '$control'" /dev/null
fi
check "a full context ends the text" 0 'the context of 32 tokens is full' "$tenon" run -c 32 -n -1 --seed 1
check "a prompt beyond the context" 1 'the prompt has [0-9]+ tokens, the context only 8: use -c' "$tenon" run -c 8 -p "$prompt"
# Ctrl-C ends the text: what was written stays, the closing line follows, and the exit code is 130.
: > "$work/out" # otherwise the loop below would see the output of the previous command
"$tenon" run -c 50000 -n -1 --ignore-eos > "$work/out" 2> "$work/err" &
for _ in $(seq 100); do [ "$(wc -c < "$work/out")" -gt 60 ] && break; sleep 0.1; done
kill -INT $!
wait $!
same "exit code after Ctrl-C" 130 $?
grep -q '^[0-9]* tokens.* = used' "$work/err" || failed "no closing line after Ctrl-C: $(cat "$work/err")"
check "two prompts" 2 'only one of' "$tenon" run -p a -f b
check "an unexpected argument" 2 'unexpected argument "once"' "$tenon" run model.gguf once
check "a model that is not there" 1 'tenon: .*nowhere.gguf.*No such file' "$tenon" run nowhere.gguf
check "a device that is not there" 1 'nowhere' "$tenon" run -dev nowhere
finish
