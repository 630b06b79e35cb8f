#!/bin/bash
# A thousand clients that mean no good do not disturb the others, and a client that goes away frees its slot.
set -u
tenon=$1/bin/tenon here=$(cd "$(dirname "$0")/.." && pwd)
golden=${TENON_GOLDEN:-${TENON_GOLDEN_DEFAULT:-}}
model=$golden/models/stories15M-f16.gguf
[ -r "$model" ] || { echo "skipped: no model (set TENON_GOLDEN to the golden data)"; exit 77; }
command -v python3 > /dev/null || { echo "skipped: python3 is not installed"; exit 77; }
timeout 120 python3 "$here/load/hostile.py" "$tenon" "$model" 1000 && echo "server_hostile: all well"
