#!/bin/bash
# Models made by the test: golden Hugging Face folders, converted and run; large synthetic models,
# planned and opened; and the commands plan, embed, perplexity and logits.
. "$(dirname "$0")/../support/checks.sh"
[ -x "$tenon" ] || skip "the tenon program is not built"

# ---- Converted models ----
if [ -d "$golden/hf" ] && [ -x "$build/tests/test_llm" ]; then
    mkdir "$work/hf"
    for folder in "$golden"/hf/*/; do
        name=$(basename "$folder")
        "$tenon" convert "$folder" "$work/hf/$name.gguf" > "$work/out" 2>&1 || failed "$name: $(cat "$work/out")"
        cp "$folder/logits.bin" "$work/hf/$name.logits"
    done
    for way in logits_at_once logits_one_by_one ${TENON_LONG:+'*'}; do # test_llm divides texts in other ways with its own models
        TENON_TESTS=$way TENON_LLM_FOLDER=$work/hf "$build/tests/test_llm" > "$work/out" 2>&1 || failed "converted models: $(grep -v OK "$work/out")"
        grep -q "OK.*$way" "$work/out" || failed "converted models were skipped: $(cat "$work/out")"
    done
else
    echo "note: no golden folders of Hugging Face models (set TENON_GOLDEN)"
fi

# ---- Large models ----
# A sparse file of the real size, without weights: enough for everything but running it.
hollow() { # shape, file
    "$tenon" synth "$2" --shape "$1" --type Q4_K_M --no-data > /dev/null || failed "synth $1"
    local bytes
    bytes=$("$tenon" plan "$2" --json | sed -n 's/.*"bytes": \([0-9]*\).*/\1/p')
    LC_ALL=C sed -i 's/tenon\.no_data/tenon.no_dat_/' "$2"
    truncate -s $(($(stat -c %s "$2") + bytes + 64)) "$2"
}
if [ -x "$build/tests/test_llm_fit" ]; then
    for shape in 1b ${TENON_LONG:+8b}; do
        mkdir "$work/$shape"
        hollow $shape "$work/$shape/$shape.gguf"
        TENON_LLM_FOLDER=$work/$shape "$build/tests/test_llm_fit" > "$work/out" 2>&1 || failed "$shape: $(grep -v OK "$work/out")"
    done
fi

# ---- tenon plan ----
for shape in 1b 8b 70b; do "$tenon" synth "$work/$shape.gguf" --shape $shape --type Q4_K_M --no-data > /dev/null; done
check "a model that fits" 0 'It fits' "$tenon" plan "$work/1b.gguf" --device sim:8G
check "a model that does not" 3 'sim[0-9]+ lacks .* bytes' "$tenon" plan "$work/1b.gguf" --device sim:64M -ngl 99
check "advice to make it fit" 3 'To make it fit: ' "$tenon" plan "$work/8b.gguf" --device sim:6G -ngl 99 --ctx 32768
check "a large model on devices that do not exist" 0 'It fits' \
    "$tenon" plan "$work/70b.gguf" --device sim:48G,name=a --device sim:48G,name=b
check "unified memory is counted once" 0 'dgx-spark and cpu share one memory: .* 119.0 GiB available' \
    "$tenon" plan "$work/70b.gguf" --device sim:dgx-spark
check "unified memory that is too small" 3 'The memory of small lacks' "$tenon" plan "$work/8b.gguf" --device sim:6G,uma=1,name=small --ctx 65536
check "a device that does not report its memory" 0 'does not report its memory' "$tenon" plan "$work/1b.gguf" --device sim:8G,report=0
"$tenon" synth "$work/moe.gguf" --arch qwen3moe > /dev/null
mapped() { "$tenon" plan "$work/moe.gguf" --device sim:8G,name=gpu "$@" | awk '$1 == "cpu" { print $5, $6 }'; }
check "experts on the CPU" 0 '^12.5 MiB$' mapped --cpu-moe
check "experts of the first layer on the CPU" 0 '^6.50 MiB$' mapped --n-cpu-moe 1
check "an override before the experts" 0 '^8.5[0-9] MiB$' mapped --cpu-moe -ot down_exps=gpu
check "cards that are simulated by name" 0 'sim:rtx4090 +GeForce RTX 4090 +24.0 GiB +1008 GB/s' "$tenon" devices --presets
check "the memory that a device draws from" 0 'draws from the memory of' "$tenon" devices --add sim:1G,uma=1
check "an unknown card" 1 'rtx4090' "$tenon" devices --add sim:rtx9999
"$tenon" synth "$work/wide.gguf" --shape 70b --type f32 --no-data > /dev/null
check "a model larger than all memory" 3 'use a (quantization of at most [0-9.]+ bits|smaller model)' "$tenon" plan "$work/wide.gguf" --device cpu
"$tenon" synth "$work/hollow.gguf" --shape 15m --type f16 --no-data > /dev/null
check "a model without data" 1 'planned but not run' "$tenon" run "$work/hollow.gguf" -p x -n 1
check "JSON" 0 '"fits": true' "$tenon" plan "$work/1b.gguf" --json
check "pictures" 0 'fits' "$tenon" plan "$work/1b.gguf" --svg "$work/p.svg" --html "$work/p.html"
grep -q '</svg>' "$work/p.svg" || failed "the picture is not complete"
[ "$(grep -c '</svg>' "$work/p.html")" = 2 ] || failed "the report does not have two pictures"
check "no such model" 1 'No such file' "$tenon" plan "$work/none.gguf"
# Compute and scratch memory of a prefill of 512 tokens, in context 4096.
sum=$("$tenon" plan "$work/1b.gguf" --ctx 4096 --ubatch 512 --device cpu --json |
    awk -F'[:,]' '/"compute"|"scratch"/ { s += $2 } END { print s }')
[ "$sum" -gt 0 ] && [ "$sum" -le $((24 << 20)) ] || failed "the 1B model computes in $sum bytes, more than 24 MiB"

# ---- --budget ----
gpu=sim:24G,read=936G,f16=71T,name=gpu
check "a budget" 0 'chosen' "$tenon" plan "$work/1b.gguf" --device $gpu --budget gpu=512M
check "a budget with a picture" 0 'It fits' "$tenon" plan "$work/1b.gguf" --device $gpu --budget gpu=512M,cpu=2G --html "$work/b.html"
grep -q 'class="frontier"' "$work/b.html" || failed "the report has no picture of memory and speed"
check "a budget in JSON" 0 '"chosen": true' "$tenon" plan "$work/1b.gguf" --device $gpu --budget gpu=512M --json
check "the longest context" 0 'context 32768' "$tenon" plan "$work/1b.gguf" --device $gpu --budget gpu=8G --prefer context
check "a fixed cache type" 0 'cache f16/q8_0' "$tenon" plan "$work/1b.gguf" --device $gpu --budget gpu=512M --cache-type-k f16 --cache-type-v q8_0
check "every cache type" 0 'cache fp8/q5_1' "$tenon" plan "$work/1b.gguf" --device $gpu -ctk fp8 -ctv q5_1
check "types for windows" 0 'cache q8_0/q8_0 .windows f16/f16.' "$tenon" plan "$work/1b.gguf" --device $gpu --cache-type-k q8_0,swa=f16
check "types for windows in JSON" 0 '"cache_type_v_window": "q4_0"' "$tenon" plan "$work/1b.gguf" --device $gpu -ctk f16 -ctv q8_0,swa=q4_0 --json
check "an unknown cache type" 2 "f32, f16, bf16, fp8, q8_0, q5_1, q5_0, q4_1 or q4_0, not 'q9'" "$tenon" plan "$work/1b.gguf" -ctk q9
check "an unknown cache type for windows" 2 "q4_1 or q4_0, not 'q4_K'" "$tenon" plan "$work/1b.gguf" -ctv q8_0,swa=q4_K
check "an unknown layer group" 2 'only swa=TYPE' "$tenon" plan "$work/1b.gguf" -ctk q8_0,full=f16
check "a budget above the memory" 0 'more than the 24.0 GiB that are free' "$tenon" plan "$work/1b.gguf" --device $gpu --budget gpu=64G
check "a budget in which nothing fits" 3 'lacks' "$tenon" plan "$work/1b.gguf" --device $gpu --budget gpu=64M,cpu=64M
check "a budget for another device" 1 'session uses gpu, cpu' "$tenon" plan "$work/1b.gguf" --device $gpu --budget cuda7=1G
check "a budget without a size" 2 'not a size' "$tenon" plan "$work/1b.gguf" --device $gpu --budget gpu=much
check "a budget without a device" 2 'DEVICE=SIZE' "$tenon" plan "$work/1b.gguf" --budget 4G
check "a cache type that does not exist" 2 'budget-cache' "$tenon" plan "$work/1b.gguf" --device $gpu --budget gpu=1G --budget-cache q9
"$tenon" synth "$work/small.gguf" --shape tiny > /dev/null
check "running in a budget" 0 'Chosen for the budget: context' "$tenon" run "$work/small.gguf" --device sim:1G,name=gpu --budget gpu=4M -p x -n 4

# ---- embed, perplexity, logits ----
small=layers=2,width=64,heads=4,kv=4,head=16,ffn=96,vocab=600,ctx=64
for arch in bert llama; do "$tenon" synth "$work/$arch.gguf" --arch $arch --shape $small --type f32 > /dev/null; done
check "cosines" 0 '^1.000000 1.000000$' "$tenon" embed "$work/bert.gguf" -p "the same" -p "the same" --similarity
"$tenon" embed "$work/llama.gguf" -p hello > "$work/a"
[ "$(wc -w < "$work/a")" = 64 ] || failed "an embedding has $(wc -w < "$work/a") numbers, not 64"
awk '{ for (i = 1; i <= NF; i++) s += $i * $i } END { exit !(s > 0.9999 && s < 1.0001) }' "$work/a" || failed "its length is not 1"
printf 'one\ntwo\n\nthree\n' | "$tenon" embed "$work/bert.gguf" > "$work/a"
[ "$(wc -l < "$work/a")" = 3 ] || failed "three lines did not give three embeddings"
check "JSON embeddings" 0 '"index":1,"text":1,"embedding":\[' "$tenon" embed "$work/bert.gguf" -p a -p b --json
check "no classifier" 1 'no classifier' "$tenon" embed "$work/bert.gguf" -p a --pooling rank
check "too long for an encoder" 1 'as a whole' "$tenon" embed "$work/bert.gguf" -p "a b c d e f g h i j k l" --ubatch 4

# The perplexity matches the logits.
words=$(for i in $(seq 30); do printf 'tree %d house ' $i; done)
printf '%s' "$words" > "$work/text"
"$tenon" tokenize "$work/llama.gguf" --add-special < "$work/text" | tr ' ' '\n' | head -n 32 > "$work/ids"
check "a text that is too short" 1 'fewer than one chunk' "$tenon" perplexity "$work/llama.gguf" -f "$work/text" --ctx 4096
"$tenon" perplexity "$work/llama.gguf" -f "$work/text" --ctx 32 --chunks 1 --cache-type f32 --json > "$work/a" ||
    failed "perplexity"
"$tenon" logits "$work/llama.gguf" --tokens @"$work/ids" --out "$work/l.f32" || failed "logits"
expected=$(od -An -v -t f4 -w2400 "$work/l.f32" | awk -v ids="$(tr '\n' ' ' < "$work/ids")" '
    BEGIN { split(ids, id, " ") }
    NR > 16 && NR < 32 { s = 0; for (i = 1; i <= NF; i++) s += exp($i); sum += log(s) - $(id[NR + 1] + 1); n++ }
    END { printf "%.4f", exp(sum / n) }')
got=$(sed 's/.*"perplexity": \([0-9.]*\).*/\1/' "$work/a")
awk -v a="$got" -v b="$expected" 'BEGIN { exit !(a > 0 && a / b > 0.9999 && a / b < 1.0001) }' ||
    failed "the perplexity is $got, the logits say $expected"

finish
