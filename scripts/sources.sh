#!/bin/sh
# sources.sh [FOLDER…]: the project's C and CUDA files, one per line. Outside a git checkout all files count.
cd "$(dirname "$0")/.."
if git rev-parse --is-inside-work-tree > /dev/null 2>&1; then
    git ls-files --cached --others --exclude-standard -- "$@"
else
    find "${@:-.}" -path ./build\* -prune -o -type f -print | sed 's#^\./##'
fi | grep -E '\.(c|h|cu|cuh)$' | while read -r file; do [ -f "$file" ] && echo "$file"; done | sort -u
