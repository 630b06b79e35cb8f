#!/bin/bash
# Compares metadata and tensor tables of the golden files and of files written by tenon with another GGUF reader,
# @huggingface/gguf. Needs npm and, the first time, the network.
set -u
build=$1
golden=${TENON_GOLDEN:-${TENON_GOLDEN_DEFAULT:-}}
here=$(cd "$(dirname "$0")/.." && pwd)
tenon=$build/bin/tenon
skip() { echo "skipped: $1"; exit 77; }

[ -x "$tenon" ] || skip "the tenon program is not built"
[ -d "$golden/archs" ] || skip "no golden data (set TENON_GOLDEN)"
command -v node > /dev/null && command -v npm > /dev/null || skip "node and npm are not installed"
"$here/peer/install.sh" "$build/npm" || skip "npm cannot install @huggingface/gguf (no network?)"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
set -e
golden=$(cd "$golden" && pwd)
for arch in llama qwen3moe gemma3 bert; do
    "$tenon" synth "$work/synth-$arch.gguf" --arch $arch --type q4_0 > /dev/null
done
"$tenon" synth "$work/plan.gguf" --shape 8b --type Q4_K_M --no-data > /dev/null
"$tenon" quantize "$golden/models/stories15M-f16.gguf" "$work/q4.gguf" Q4_K_M > /dev/null
"$tenon" split "$work/q4.gguf" "$work/parts.gguf" --max-size 4M > /dev/null
"$tenon" merge "$work"/parts-00001-of-*.gguf "$work/merged.gguf" > /dev/null
"$tenon" convert "$golden/hf/llama3-rope" "$work/converted.gguf" > /dev/null
cd "$build/npm"
node "$here/peer/gguf.mjs" "$tenon" "$golden"/{quants,archs,vocab,models}/*.gguf "$work"/*.gguf
