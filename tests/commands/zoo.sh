#!/bin/bash
# zoo.sh BUILD: one model of the golden zoo for every kind of layer, as a batch and as two interleaved sequences. `make zoo` runs all of them.
# Without golden data tiny models of all architectures are compared with a reference in double precision, also cut at every position.
here=$(cd "$(dirname "$0")/.." && pwd) build=$1
[ -x "$build/tests/zoo" ] || { echo "skipped: tests/zoo is not built"; exit 77; }
if [ -d "${TENON_GOLDEN:-$here/../../shared/golden}/zoo" ]; then
    MODES="batch pairs" "$here/zoo/run.sh" "$build" llama-dense gpt-oss-moe qwen2moe-moe llama4-moe apertus-dense grovemoe-moe gemma4-dense dream-dense \
        deepseek2-moe minicpm3-dense deepseek32-moe minimax-m3-moe mamba-dense mamba2-dense jamba-dense falcon-h1-dense plamo2-dense lfm2-dense \
        qwen35-dense minimax-01-moe kimi-linear-moe kimi-k3-moe
    exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
TENON_FORWARD_FOLDER=$work "$build/tests/test_forward" > "$work/out" 2>&1 || { cat "$work/out"; exit 1; }
passed=0 failed=0
for model in "$work"/*.gguf; do
    name=$(basename "$model" .gguf) modes="batch cuts pairs"
    case $name in dream | llada | llada-moe | rnd1) modes=batch ;; esac # every token sees the later ones
    if text=$("$build/tests/zoo" "$model" "${model%.gguf}.logits" $modes 2>&1); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$name: ${text//$'\n'/; }"
    fi
done
echo "zoo: $passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -ge 100 ]
