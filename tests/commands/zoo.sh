#!/bin/bash
# zoo.sh BUILD: one model of the golden zoo for every kind of layer, as a batch and as two interleaved sequences. `make zoo` runs all of them.
here=$(cd "$(dirname "$0")/.." && pwd) build=$1
[ -x "$build/tests/zoo" ] || { echo "skipped: tests/zoo is not built"; exit 77; }
MODES="batch pairs" "$here/zoo/run.sh" "$build" llama-dense gpt-oss-moe qwen2moe-moe llama4-moe apertus-dense grovemoe-moe gemma4-dense dream-dense \
    deepseek2-moe minicpm3-dense deepseek32-moe minimax-m3-moe mamba-dense mamba2-dense jamba-dense falcon-h1-dense plamo2-dense lfm2-dense \
    qwen35-dense minimax-01-moe kimi-linear-moe kimi-k3-moe
