#!/bin/bash
# The example that teaches a model a text: the loss falls, and the file it writes is a model that has learned it.
set -eu
build=$(cd "$1" && pwd)
[ -x "$build/examples/finetune" ] && [ -x "$build/bin/tenon" ] || { echo "the example was not built"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"$build/bin/tenon" synth before.gguf --shape layers=2,width=64,heads=4,kv=2,head=16,ffn=96,vocab=512,ctx=256 --type q8_0 > /dev/null
for _ in $(seq 40); do echo "A fox ate a hen."; done > text.txt
"$build/examples/finetune" before.gguf text.txt after.gguf 41 0.01 > log || { cat log; exit 1; }
awk '/^step 0:/ { first = $4 + 0 } /^step 40:/ { last = $4 + 0 } END { exit !(first > 2 && last < first / 4) }' log ||
    { echo "it learned nothing:"; cat log; exit 1; }
text=$("$build/bin/tenon" run after.gguf -p "A fox" -n 12 --temp 0 2> /dev/null)
case $text in "A fox ate a hen."*) ;; *) echo "it writes: $text"; exit 1 ;; esac
# What it cannot do it says.
if "$build/examples/finetune" before.gguf /dev/null out.gguf 2> log; then echo "an empty text was taken"; exit 1; fi
grep -q "tokens" log
[ ! -e out.gguf ]
