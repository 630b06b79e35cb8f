#!/bin/bash
# Compares metadata and tensor tables of files written by tenon, and of the golden files, with another GGUF reader,
# @huggingface/gguf. Needs npm and, the first time, the network.
set -u
build=$1
golden=${TENON_GOLDEN:-${TENON_GOLDEN_DEFAULT:-}}
here=$(cd "$(dirname "$0")/.." && pwd)
tenon=$build/bin/tenon
skip() { echo "skipped: $1"; exit 77; }

[ -x "$tenon" ] || skip "the tenon program is not built"
command -v node > /dev/null && command -v npm > /dev/null || skip "node and npm are not installed"
"$here/peer/install.sh" "$build/npm" || skip "npm cannot install @huggingface/gguf (no network?)"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
set -e
files=("$here"/../models/*.gguf)
small=$here/../models/tales.gguf
if [ -d "$golden/archs" ]; then
    golden=$(cd "$golden" && pwd)
    files+=("$golden"/{quants,archs,vocab,models}/*.gguf)
    small=$golden/models/stories15M-f16.gguf
    "$tenon" convert "$golden/hf/llama3-rope" "$work/converted.gguf" > /dev/null
fi
for arch in llama qwen3moe gemma3 bert; do
    "$tenon" synth "$work/synth-$arch.gguf" --arch $arch --type q4_0 > /dev/null
done
"$tenon" synth "$work/plan.gguf" --shape 8b --type Q4_K_M --no-data > /dev/null
"$tenon" quantize "$small" "$work/q4.gguf" Q4_K_M --allow-requantize > /dev/null
"$tenon" split "$work/q4.gguf" "$work/parts.gguf" --max-size 1M > /dev/null
"$tenon" merge "$work"/parts-00001-of-*.gguf "$work/merged.gguf" > /dev/null
cd "$build/npm"
node "$here/peer/gguf.mjs" "$tenon" "${files[@]}" "$work"/*.gguf
