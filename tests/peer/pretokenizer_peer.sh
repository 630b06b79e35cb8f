#!/bin/bash
# Compares every known way of splitting text with @huggingface/tokenizers, 2,000 texts each (TENON_PEER_STRINGS).
# Needs node, npm and, the first time, the network; packages stay in the build folder. Exits 77 if it cannot run.
set -u
build=$(cd "$1" && pwd) count=${TENON_PEER_STRINGS:-2000}
here=$(cd "$(dirname "$0")" && pwd)
command -v node > /dev/null && command -v npm > /dev/null || { echo "skipped: no node or no npm"; exit 77; }
bash "$here/install.sh" "$build/peer-packages" || { echo "skipped: npm cannot fetch the packages"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$build/peer-packages" && node "$here/pretokenizers.mjs" "$build/bin/tenon" "$work" "$count"
