#!/bin/bash
# Adapters on the command line: run --lora computes what a merged model computes; tenon lora merges and loses no file; options.
. "$(dirname "$0")/../support/checks.sh"
unset TENON_FORCE
here=$(cd "$(dirname "$0")/.." && pwd)
command -v python3 > /dev/null || skip "python3 is not installed"
adapter() { python3 "$here/data/make_adapter.py" "$@" || failed "make_adapter $*"; }
model=$work/model.gguf
"$tenon" synth "$model" --type f32 --arch llama --shape layers=3,width=64,heads=2,kv=1,head=32,ffn=128,vocab=512,ctx=256 > "$work/out" 2>&1 || failed "synth"
adapter "$model" "$work/a.gguf" 1
adapter "$model" "$work/b.gguf" 2 'attn_|ffn_|output|token_embd'
adapter "$model" "$work/vector.gguf" 3 directions
logits() { # options…: perplexity over a text
    "$tenon" perplexity "$model" -f "$here/../README.md" --json -c 64 --chunks 2 --cache-type-k f32 --repeatable "$@" 2> "$work/err" |
        python3 -c 'import json, sys; print("%.3f" % json.load(sys.stdin)["perplexity"])'
}
plain=$(logits)
check "merging one" 0 '1 adapter merged into 6 weights' "$tenon" lora "$model" "$work/a.gguf" "$work/one.gguf"
check "merging two" 0 '2 adapters merged' "$tenon" lora "$model" "$work/a.gguf:0.5" "$work/b.gguf:-1.5" "$work/two.gguf"
one=$(logits --lora "$work/a.gguf") two=$(logits --lora-scaled "$work/a.gguf:0.5,$work/b.gguf:-1.5") off=$(logits --lora "$work/a.gguf" --lora-init-without-apply)
[ "$one" != "$plain" ] || failed "an adapter changes nothing"
[ "$two" != "$one" ] || failed "two adapters change nothing"
same "an adapter that is not applied" "$plain" "$off"
base=$model
model=$work/one.gguf && same "one adapter is as merged" "$one" "$(logits)"
model=$work/two.gguf && same "two adapters are as merged" "$two" "$(logits)"
model=$base
[ "$(logits --control-vector "$work/vector.gguf")" != "$plain" ] || failed "a control vector changes nothing"
same "a control vector at scale 0" "$plain" "$(logits --control-vector-scaled "$work/vector.gguf:0")"
same "a range as two words and as one" "$(logits --control-vector "$work/vector.gguf" --control-vector-layer-range 1 1)" \
    "$(logits --control-vector "$work/vector.gguf" --control-vector-layer-range 1,1)"
for options in "--lora $work/a.gguf" "--control-vector $work/vector.gguf"; do
    # shellcheck disable=SC2086
    check "plan $options" 0 'fits' "$tenon" plan "$model" $options
    # shellcheck disable=SC2086
    check "bench $options" 0 '' "$tenon" bench "$model" $options -p 16 -n 4 -r 1
done

# Nothing is overwritten, wrong files are named.
check "an existing output" 1 'exists' "$tenon" lora "$model" "$work/a.gguf" "$work/one.gguf"
check "an output that is the model" 1 '' "$tenon" lora "$model" "$work/a.gguf" "$model" --force
check "an output that is an adapter" 1 '' "$tenon" lora "$model" "$work/a.gguf" "$work/a.gguf" --force
check "replacing" 0 'merged' "$tenon" lora "$model" "$work/a.gguf" "$work/one.gguf" --force
check "another type" 0 'merged' "$tenon" lora "$model" "$work/a.gguf" "$work/small.gguf" --type q8_0
check "merged weights have it" 0 'blk.0.attn_q.weight.*q8_0' "$tenon" inspect "$work/small.gguf" --tensors
check "into quantized weights" 0 'merged' "$tenon" lora "$work/small.gguf" "$work/b.gguf" "$work/again.gguf"
check "a type that cannot be written" 1 '--type' "$tenon" lora "$model" "$work/a.gguf" "$work/none.gguf" --type iq2_xxs
[ ! -e "$work/none.gguf" ] || failed "a file is left behind"
check "a model as adapter" 1 'not an adapter' "$tenon" run "$model" --lora "$model" -p x -n 1
check "an adapter that is not there" 1 'nothere' "$tenon" run "$model" --lora "$work/nothere.gguf" -p x -n 1
check "a scale that is none" 1 'FILE:SCALE' "$tenon" run "$model" --lora-scaled "$work/a.gguf:much" -p x -n 1
check "an adapter as control vector" 1 'direction' "$tenon" run "$model" --control-vector "$work/a.gguf" -p x -n 1
check "a range that is none" 1 'two numbers' "$tenon" run "$model" --control-vector-layer-range 3,1 -p x -n 1
finish
