#!/bin/bash
# tenon convert: every golden Hugging Face folder becomes a GGUF file with the right logits and the right tokens, and
# broken folders are rejected with a message that names the problem. Without golden data the folders are made here.
. "$(dirname "$0")/../support/checks.sh"
here=$(cd "$(dirname "$0")/.." && pwd)
[ -x "$tenon" ] || skip "the tenon program is not built"
command -v python3 > /dev/null || skip "python3 is not installed"
[ -d "$golden" ] && golden=$(cd "$golden" && pwd)
hf=$golden/hf
if [ ! -d "$hf" ]; then # folders of the same shapes, without logits of others
    hf=$work/hf
    python3 "$here/data/make_hf.py" "$hf" || failed "the folders could not be made"
fi

refused() { # what, pattern in the message
    if "$tenon" convert "$work/folder" "$work/refused.gguf" > "$work/out" 2>&1; then
        failed "$1 was converted"
    elif ! grep -qE -- "$2" "$work/out"; then
        failed "$1: the message does not say \"$2\": $(cat "$work/out")"
    fi
    [ ! -e "$work/refused.gguf" ] || failed "$1 left a file"
    [ "$(find "$work" -name '*.partial' | wc -l)" = 0 ] || failed "$1 left a temporary file"
}
nmse() { # of two files of floats of the same size: Σ(x-y)² / Σy²
    [ "$(stat -c %s "$1")" = "$(stat -c %s "$2")" ] || { echo inf; return; }
    paste <(od -An -v -t f4 -w4 "$1") <(od -An -v -t f4 -w4 "$2") |
        awk '{ d = $1 - $2; e += d * d; s += $2 * $2; if ($1 + 0 != $1) bad = 1 } END { if (bad || !s) print "inf"; else printf "%.3g", e / s }'
}
fresh() { rm -rf "$work/folder"; cp -r "$hf/$1" "$work/folder"; chmod -R u+w "$work/folder"; }

# ---- Every golden folder ----
has_logits=$("$tenon" logits --help > /dev/null 2>&1 && echo yes || echo no)
for folder in "$hf"/*/; do
    name=$(basename "$folder")
    "$tenon" convert "$folder" "$work/$name.gguf" > "$work/out" 2>&1 || failed "$name: $(cat "$work/out")"
    grep -q warning "$work/out" && failed "$name: $(cat "$work/out")"
    "$tenon" inspect "$work/$name.gguf" > /dev/null || failed "$name cannot be read back"
    if [ $has_logits = yes ] && [ -e "$folder/logits.bin" ]; then
        tokens=$(od -An -v -t d4 -j 8 -N $((4 * 40)) "$folder/logits.bin" | tr -s ' \n' ',' | sed 's/^,//; s/,$//')
        "$tenon" logits "$work/$name.gguf" --tokens "$tokens" --out "$work/$name.f32" > "$work/out" 2>&1 ||
            { failed "$name: logits: $(cat "$work/out")"; continue; }
        tail -c +$((8 + 4 * 40 + 1)) "$folder/logits.bin" > "$work/expected.f32"
        nmse=$(nmse "$work/$name.f32" "$work/expected.f32")
        awk -v x="$nmse" 'BEGIN { exit !(x != "inf" && x <= 1e-6) }' || failed "$name: the logits differ: NMSE $nmse"
    fi
done
[ $has_logits = yes ] || echo "note: this build has no \"tenon logits\"; logits were not compared"

# The same file for any number of threads, and through any type.
"$tenon" convert "$hf/mixtral" "$work/one.gguf" --threads 1 > /dev/null
"$tenon" convert "$hf/mixtral" "$work/many.gguf" --threads 7 > /dev/null
cmp -s "$work/one.gguf" "$work/many.gguf" || failed "the result depends on the number of threads"
"$tenon" convert "$hf/mixtral" "$work/q8.gguf" --type q8_0 > /dev/null || failed "--type q8_0"
"$tenon" inspect "$work/q8.gguf" --json > "$work/out"
grep -q '"type": "q8_0"' "$work/out" || failed "--type q8_0 gave no q8_0 tensors"

# A token may be the character U+0000.
fresh qwen3; sed -i 's/^\( *\)"[^"]*": 508/\1"\\u0000": 508/' "$work/folder/tokenizer.json"
grep -q '"\\u0000": 508' "$work/folder/tokenizer.json" || failed "the test's own edit"
"$tenon" convert "$work/folder" "$work/nul.gguf" > "$work/out" 2>&1 || failed "U+0000 as a token: $(cat "$work/out")"
[ "$("$tenon" inspect "$work/nul.gguf" --key tokenizer.ggml.tokens | wc -l)" = 512 ] || failed "U+0000 as a token: not 512 tokens"

# ---- Shards ----
fresh qwen3
header=$(od -An -t u8 -N 8 "$work/folder/model.safetensors" | tr -d ' ')
mv "$work/folder/model.safetensors" "$work/folder/model-00001-of-00001.safetensors"
names=$(tail -c +9 "$work/folder/model-00001-of-00001.safetensors" | head -c "$header" | grep -oE '"[a-z_.0-9]+":\{"dtype"' | cut -d'"' -f2)
{
    echo '{"weight_map": {'
    first=1
    for name in $names; do
        [ $first = 1 ] || echo ','
        first=0
        printf '"%s": "model-00001-of-00001.safetensors"' "$name"
    done
    echo '}}'
} > "$work/folder/model.safetensors.index.json"
"$tenon" convert "$work/folder" "$work/sharded.gguf" > "$work/out" 2>&1 || failed "shards: $(cat "$work/out")"
for option in "--tensor blk.1.attn_q.weight" "--tensor token_embd.weight"; do
    # shellcheck disable=SC2086
    "$tenon" inspect "$work/sharded.gguf" $option --out "$work/a.f32" > /dev/null
    # shellcheck disable=SC2086
    "$tenon" inspect "$work/qwen3.gguf" $option --out "$work/b.f32" > /dev/null
    cmp -s "$work/a.f32" "$work/b.f32" || failed "shards give other weights"
done
sed -i 's/"model.norm.weight": "model-00001-of-00001/"model.norm.weight": "model-00002-of-00002/' "$work/folder/model.safetensors.index.json"
refused "a missing shard" 'model-00002-of-00002.safetensors: No such file'

# ---- Errors ----
fresh qwen3; rm "$work/folder/config.json"; refused "no config.json" 'no config.json'
fresh qwen3; echo '{"architectures": ' > "$work/folder/config.json"; refused "a broken config.json" 'config.json: line'
fresh qwen3; rm "$work/folder/model.safetensors"; refused "no weights" 'neither model.safetensors nor'
fresh qwen3; rm "$work/folder/tokenizer.json"; refused "no tokenizer" 'has no vocabulary: no tokenizer.json'
fresh qwen3; sed -i 's/Qwen3ForCausalLM/FutureForCausalLM/' "$work/folder/config.json"; refused "an unknown class" 'FutureForCausalLM'
fresh qwen3; sed -i 's/"intermediate_size": 160/"intermediate_size": 192/' "$work/folder/config.json"
refused "a wrong shape" 'mlp.(gate|up|down)_proj.weight" has the shape \[(160, 64|64, 160)\]'
fresh qwen3; sed -i 's/"num_hidden_layers": 3/"num_hidden_layers": 4/' "$work/folder/config.json"
refused "a missing layer" 'no source for the tensor "blk.3.'
fresh qwen3; sed -i 's/"num_attention_heads": 4/"num_attention_heads": 0/' "$work/folder/config.json"
refused "no heads" 'num_attention_heads'
fresh qwen3; truncate -s -100 "$work/folder/model.safetensors"; refused "a truncated file" 'truncated or damaged'
fresh qwen3; truncate -s 1000 "$work/folder/model.safetensors"; refused "a truncated header" 'truncated, damaged'
fresh qwen3; truncate -s 3 "$work/folder/model.safetensors"; refused "almost nothing" 'not a safetensors file'
fresh qwen3; sed -i 's/"dtype":"F32"/"dtype":"F8_E4M3"/; s/F8_E4M3"/F99"    /' "$work/folder/model.safetensors"
refused "an unknown type" 'unsupported type|not a JSON'
fresh qwen3; sed -i 's/"use_regex": true/"use_regex": false/' "$work/folder/tokenizer.json"
refused "an unknown pre-tokenizer" 'unknown pre-tokenizer'
fresh llama3-rope; sed -i 's/"llama3"/"spiral"/' "$work/folder/config.json"; refused "unknown RoPE scaling" '"spiral"'

# ---- Every model class ----
# Tiny folders of all model classes, compared with independent reference implementations.
if command -v node > /dev/null; then
    mkdir "$work/classes"
    classes=$(node "$here/peer/hf_folders.mjs" "$hf/qwen3" "$work/classes") || failed "the folders could not be made"
    for class in $classes; do
        "$tenon" convert "$work/classes/$class" "$work/classes/$class.gguf" > "$work/out" 2>&1 || failed "$class: $(cat "$work/out")"
        grep -q warning "$work/out" && failed "$class: $(cat "$work/out")"
    done
    if [ $has_logits = yes ]; then
        # shellcheck disable=SC2086
        node "$here/peer/hf_reference.mjs" "$tenon" "$work/classes" $classes > "$work/out" 2>&1 || failed "$(grep -v ^ok "$work/out")"
        echo "$(grep -c ^ok "$work/out") model classes compared with their definition"
    fi
else
    echo "note: no node; the model classes were not compared"
fi

# ---- FP8 weights with scales of blocks ----
if command -v node > /dev/null; then
    node "$here/peer/fp8_folder.mjs" "$hf/qwen3" "$work/fp8" || failed "the FP8 folders could not be made"
    for kind in blocks floats; do
        "$tenon" convert "$work/fp8/$kind" "$work/fp8/$kind.gguf" --type f32 > "$work/out" 2>&1 || failed "fp8 $kind: $(cat "$work/out")"
        grep -q warning "$work/out" && failed "fp8 $kind: $(cat "$work/out")"
    done
    cmp "$work/fp8/blocks.gguf" "$work/fp8/floats.gguf" || failed "FP8 weights are not what they stand for"
fi

# ---- Recurrent layers and latent attention ----
if [ -x "$build/tests/zoo" ] && [ -d "$golden/hf-zoo" ]; then
    MODES="batch pairs" TENON_GOLDEN=$golden "$here/zoo/hf.sh" "$build" mamba mamba2 jamba bamba falcon_h1 granitemoehybrid nemotron_h \
        lfm2 lfm2_moe qwen3_next qwen3_5_text qwen3_5_moe_text deepseek_v2 deepseek_v3 glm4_moe_lite deepseek_v32 glm_moe_dsa kimi_linear gemma3n_text gemma4_text > "$work/out" 2>&1 ||
        failed "hf-zoo: $(cat "$work/out")"
    zoo() { rm -rf "$work/folder"; cp -r "$golden/hf-zoo/$1" "$work/folder"; chmod -R u+w "$work/folder"; }
    zoo mamba2; sed -i 's/"use_bias": false/"use_bias": true/' "$work/folder/config.json"; refused "a mixer with biases" 'biases'
    zoo bamba; sed -i 's/"__float__": "Infinity"/"a": 1/; s/"time_step_limit": *\[/"time_step_limit": [0.1, /' "$work/folder/config.json"
    refused "limited time steps" 'time_step_limit'
    zoo deepseek_v3; sed -i 's/"kv_lora_rank": 32/"kv_lora_rank": 0/' "$work/folder/config.json"; refused "latent rows of nothing" 'kv_lora_rank'
    # Python writes infinities into config.json.
    zoo bamba; tr -d '\n' < "$work/folder/config.json" | sed 's/{ *"__float__": *"Infinity" *}/Infinity/' > "$work/config"
    grep -q '[^"]Infinity' "$work/config" || failed "the configuration has no infinity"
    cp "$work/config" "$work/folder/config.json"
    "$tenon" convert "$work/folder" "$work/infinity.gguf" > "$work/out" 2>&1 || failed "an infinity: $(cat "$work/out")"
    # Multipliers become part of the weights.
    zoo falcon_h1; "$tenon" convert "$work/folder" "$work/plain.gguf" > /dev/null
    sed -i 's/"key_multiplier": 1.0/"key_multiplier": 0.5/' "$work/folder/config.json"
    "$tenon" convert "$work/folder" "$work/scaled.gguf" > /dev/null || failed "Falcon-H1 with a multiplier"
    cmp -s "$work/plain.gguf" "$work/scaled.gguf" && failed "a multiplier of Falcon-H1 changed nothing"
else
    echo "note: no zoo; classes with recurrent layers were not compared"
fi

# ---- Tokens ----
if ! "$tenon" tokenize --help > /dev/null 2>&1; then
    echo "note: this build has no \"tenon tokenize\"; tokens were not compared"
elif command -v node > /dev/null && command -v npm > /dev/null && "$here/peer/install.sh" "$build/npm"; then
    mkdir "$work/tokens"
    (cd "$build/npm" && node "$here/peer/tokenizers.mjs" "$tenon" "$hf/qwen3" "$work/tokens") || failed "tokens differ"
else
    echo "note: npm cannot install @huggingface/tokenizers; tokens were not compared"
fi

finish
