#!/bin/bash
# A thousand hostile clients do not disturb the others, and a client that disconnects frees its slot.
. "$(dirname "$0")/../support/checks.sh"
model=$golden/models/stories15M-f16.gguf
[ -r "$model" ] || model=$(dirname "$0")/../../models/tales.gguf
command -v python3 > /dev/null || skip "python3 is not installed"
timeout 120 python3 "$(dirname "$0")/../load/hostile.py" "$tenon" "$model" 1000
