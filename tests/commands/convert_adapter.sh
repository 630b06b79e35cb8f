#!/bin/bash
# tenon convert of PEFT folders: a converted adapter, merged into the converted model, gives what the merged model gives.
. "$(dirname "$0")/../support/checks.sh"
here=$(cd "$(dirname "$0")/.." && pwd)
command -v python3 > /dev/null || skip "python3 is not installed"
nmse() { # of two files of floats
    paste <(od -An -v -t f4 -w4 "$1") <(od -An -v -t f4 -w4 "$2") |
        awk '{ d = $1 - $2; e += d * d; s += $2 * $2 } END { print (s > 0 && e / s < 1e-9) ? "same" : "differs" }'
}
logits() { "$tenon" logits "$1" --tokens 5,9,17,3,60,22,41 --out "$2" > "$work/out" 2>&1 || failed "logits: $(cat "$work/out")"; }
for class in LlamaForCausalLM GPT2LMHeadModel; do
    python3 "$here/data/make_peft.py" "$work" $class || failed "make_peft"
    for name in base merged; do check "$class $name" 0 '' "$tenon" convert "$work/$name" "$work/$name.gguf" --pre gpt-2; done
    check "$class adapter" 0 'LoRA adapter of' "$tenon" convert "$work/adapter" "$work/adapter.gguf" --base "$work/base"
    check "$class merging" 0 'merged' "$tenon" lora "$work/base.gguf" "$work/adapter.gguf" "$work/own.gguf"
    for name in base merged own; do logits "$work/$name.gguf" "$work/$name.f32"; done
    same "$class: the adapter as merged" same "$(nmse "$work/own.f32" "$work/merged.f32")"
    same "$class: the adapter changes something" differs "$(nmse "$work/base.f32" "$work/merged.f32")"
done
check "without the model" 2 '--base' "$tenon" convert "$work/adapter" "$work/none.gguf"
config=$work/adapter/adapter_config.json
cp "$config" "$work/config"
for change in 's/LORA/IA3/' 's/"r": 4/"r": 0/' 's/"alpha_pattern": {}/"alpha_pattern": {"q": 3}/' 's/"use_rslora"/"use_dora": true, "use_rslora"/'; do
    sed "$change" "$work/config" > "$config"
    check "a configuration changed by $change" 1 'adapter' "$tenon" convert "$work/adapter" "$work/none.gguf" --base "$work/base"
done
cp "$work/config" "$config"
sed -i 's/lora_A/lora_Q/' "$work/adapter/adapter_model.safetensors"
check "an unknown tensor" 1 'lora_Q' "$tenon" convert "$work/adapter" "$work/none.gguf" --base "$work/base"
[ ! -e "$work/none.gguf" ] || failed "a file is left behind"
finish
