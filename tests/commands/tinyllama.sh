#!/bin/bash
# A real released model: TinyLlama-1.1B-Chat in iq2_xxs loads, answers with its own template and uses exactly the planned memory.
# Fetches 320 MB and computes for a minute, so only with TENON_LONG=1.
. "$(dirname "$0")/../support/checks.sh"
[ -n "${TENON_LONG:-}" ] || skip "set TENON_LONG=1 to run it"
model=$("$(dirname "$0")/../../scripts/tinyllama.sh") || exit $?
complain() {
    failed "$1"
    cat "$work/out"
}
"$tenon" inspect "$model" > "$work/out" 2>&1 || complain "inspect"
grep -qE '^parameters +1\.10 B' "$work/out" || complain "1.10 B parameters"
grep -q 'iq2_xxs' "$work/out" || complain "iq2_xxs"

printf '{"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": true}' > "$work/messages"
"$tenon" render "$model" "$work/messages" > "$work/out" || complain "render"
grep -q '<|user|>' "$work/out" && grep -q '<|assistant|>' "$work/out" || complain "its template"
grep -qx 'Hi</s>' "$work/out" || complain "the model's own tokens in its template"

printf 'What is the capital of France?\n/stats\n' | "$tenon" chat "$model" --temp 0 -n 60 > "$work/out" 2>&1 || complain "chat"
grep -q 'Paris' "$work/out" || complain "the capital of France"
grep -qE '<\||</s>' "$work/out" && complain "template markers in the reply"
grep -qE 'planned ([0-9.]+ [KMG]iB) = used \1' "$work/out" || complain "memory planned = used"
"$tenon" bench "$model" -p 128 -n 16 -r 3 2> /dev/null | tee "$work/out"
finish
