#!/bin/bash
# tenon convert --vocab-only: vocabularies in files of their own (ranks of byte strings, PLaMo's list, RWKV's list).
. "$(dirname "$0")/../support/checks.sh"
[ -x "$tenon" ] || skip "the tenon program is not built"

folder() { # vocabulary size, class, tokenizer_config.json
    rm -rf "$work/folder" "$work/out.gguf"
    mkdir "$work/folder"
    cat > "$work/folder/config.json" << CONFIG
{"architectures": ["$2"], "vocab_size": $1, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
 "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
 "rope_theta": 10000, "tie_word_embeddings": true, "hidden_act": "silu", "eos_token_id": 0}
CONFIG
    echo "$3" > "$work/folder/tokenizer_config.json"
}
convert() { "$tenon" convert "$work/folder" "$work/out.gguf" --vocab-only > "$work/said" 2>&1 || failed "$1: $(cat "$work/said")"; }
ids() { "$tenon" tokenize "$work/out.gguf" --parse-special "$@"; }
refused() { check "$1" 1 "$2" "$tenon" convert "$work/folder" "$work/out.gguf" --vocab-only; }

# ---- Ranks, as tiktoken has them: all bytes, then ab, abc, 中 (in two steps) and a token that no merge reaches ----
ranks() {
    for b in $(seq 0 255); do printf "%s %s\n" "$(printf "\\x$(printf %x "$b")" | base64)" "$b"; done
    n=256
    for bytes in 'ab' 'bc' 'abc' '\xe4\xb8' '\xe4\xb8\xad' 'wxyz'; do
        printf "%s %s\n" "$(printf "$bytes" | base64)" $n
        n=$((n + 1))
    done
}
folder 270 LlamaForCausalLM '{"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {"262": {"content": "[EOS]", "special": true}}}'
ranks > "$work/folder/tiktoken.model"
convert "ranks"
same "the pre-tokenizer of the class" kimi-k2 "$("$tenon" inspect "$work/out.gguf" --key tokenizer.ggml.pre)"
same "merges by rank" "258 99" "$(ids abcc)"
same "parts of characters" "260" "$(ids 中)"
same "a word that is a token" "261" "$(ids wxyz)"
same "a special token" "97 262" "$(ids 'a[EOS]')"
same "text of ids" "abc中wxyz" "$("$tenon" detokenize "$work/out.gguf" 258 260 261)"
head -c 3000 "$tenon" > "$work/bytes"
ids - < "$work/bytes" | "$tenon" detokenize "$work/out.gguf" | cmp - "$work/bytes" || failed "ranks: bytes do not come back"
mv "$work/folder/tiktoken.model" "$work/folder/tokenizer.model"
echo '{"tokenizer_class": "ChatGLM4Tokenizer"}' > "$work/folder/tokenizer_config.json"
convert "ranks in tokenizer.model"
same "another class" glm4 "$("$tenon" inspect "$work/out.gguf" --key tokenizer.ggml.pre)"
rm "$work/out.gguf"
echo '{"tokenizer_class": "Other"}' > "$work/folder/tokenizer_config.json"
refused "an unknown class" "class Other.*--pre"
echo 'YQ==' > "$work/folder/tokenizer.model"
echo '{"tokenizer_class": "ChatGLM4Tokenizer"}' > "$work/folder/tokenizer_config.json"
refused "a line without a rank" "line 1 is not base64 and a rank"

# ---- PLaMo ----
folder 300 Plamo2ForCausalLM '{"bos_token": "<|plamo:bos|>", "eos_token": "<|plamo:eos|>", "unk_token": "<|plamo:unk|>"}'
sed -i 's/"hidden_act"/"mamba_num_heads": 4, "hidden_size_per_head": 16, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_step": 2, "hidden_act"/' "$work/folder/config.json"
{
    printf '["<|plamo:unk|>", 0.0, "UNKNOWN"]\n["<|plamo:bos|>", 0.0, "CONTROL"]\n["<|plamo:eos|>", 0.0, "CONTROL"]\n["<|plamo:pad|>", 0.0, "CONTROL"]\n["<|plamo:op|>", 0.0, "NORMAL"]\n'
    for b in $(seq 0 255); do printf '["<0x%02X>", 0.0, "BYTE", null, null]\n' "$b"; done
    printf '["ab", -2.0, "NORMAL"]\n["a", -1.5, "NORMAL"]\n["b", -1.5, "NORMAL"]\n["\\u4e2d", -1, "NORMAL"]\n["bc", -0.1, "NORMAL"]\n["\\u0000", -3, "NORMAL"]\n'
} > "$work/folder/tokenizer.jsonl"
convert "PLaMo"
same "PLaMo: the cheapest tokens" "261 262 265 264" "$(ids 'aba bc中' | sed 's/ 37 / /')"
same "PLaMo: bytes" "230" "$(ids $'\xe1')"
same "PLaMo: a turn's end" 4 "$(ids '<|plamo:op|>')"
same "PLaMo: a turn's end in a user's text" 65 "$("$tenon" tokenize "$work/out.gguf" '<|plamo:op|>' | cut -d' ' -f1)"
echo '["a"]' >> "$work/folder/tokenizer.jsonl"
rm -f "$work/out.gguf"
refused "a line without a score" "line 268 is not a list"

# ---- RWKV ----
folder 280 LlamaForCausalLM '{}'
{
    for b in $(seq 0 255); do
        if [ "$b" -lt 128 ]; then printf "%d '\\\\x%02x' 1\n" $((b + 1)) "$b"; else printf "%d b'\\\\x%02x' 1\n" $((b + 1)) "$b"; fi
    done
    printf "%s\n" "257 '\\t\\t' 2" "258 '\\n\\n' 2" "259 \"it's\" 4" "260 '中国' 6" "261 b'\\xe4\\xb8' 2" "262 '\\u4e2d a' 5" "263 '\"\\'\\\\' 3"
} > "$work/folder/rwkv_vocab_v20230424.txt"
convert "RWKV"
same "RWKV: the longest token" "260 262 99 258" "$(ids $'中国中 ab\n\n')"
same "RWKV: quotes and escapes" "259 263 257" "$(ids $'it\'s"\'\\\t\t')"
same "RWKV: part of a character" "261 98" "$(ids $'\xe4\xb8a')"
same "RWKV: a blank line ends a turn" 258 "$("$tenon" inspect "$work/out.gguf" --key tokenizer.ggml.eot_token_id)"
ids - < "$work/bytes" | "$tenon" detokenize "$work/out.gguf" | cmp - "$work/bytes" || failed "RWKV: bytes do not come back"
echo "264 'abc' 4" >> "$work/folder/rwkv_vocab_v20230424.txt"
rm -f "$work/out.gguf"
refused "a wrong length" "line 264 has a text"
rm "$work/folder/rwkv_vocab_v20230424.txt"
refused "no vocabulary at all" "tiktoken.model, tokenizer.jsonl or rwkv_vocab"
finish
