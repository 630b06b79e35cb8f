#!/bin/bash
# speed_bar.sh BUILD LEAST [1b|8b]: this build against the last release's, in turn (bench/peers/pairs.py). The release is built
# from its commit into build-old/ unless OLD names its tenon program.
set -eu
cd "$(dirname "$0")/.."
build=$1 least=$2 shapes=${3:-1b 8b} release=96c955c
old=${OLD:-}
if [ -z "$old" ]; then
    if [ ! -e build-old/bin/tenon ]; then
        git worktree add -q --detach build-old/source "$release"
        cmake -S build-old/source -B build-old -G Ninja -DTENON_TESTS=OFF -DTENON_BENCH=OFF > build-old/configure.log
        cmake --build build-old > build-old/build.log
        git worktree remove --force build-old/source
    fi
    old=$PWD/build-old/bin/tenon
fi
models=${TMPDIR:-/tmp}/tenon-speed
mkdir -p "$models"
status=0
for shape in $shapes; do
    model=$models/$shape-q4_K_M.gguf
    [ -e "$model" ] || "$build/bin/tenon" synth "$model" --shape "$shape" --type Q4_K_M > /dev/null
    case $shape in 8b) sizes="--prompt 128 --predict 16" ;; *) sizes="--prompt 512 --predict 64" ;; esac
    "$build/bin/tenon" devices | grep -q '^cuda' && sizes="--prompt 512 --predict 128 --repeat 5"
    bench/peers/pairs.py "$old" "$build/bin/tenon" "$model" --least "$least" $sizes || status=1
done
exit $status
