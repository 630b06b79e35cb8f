#!/bin/bash
# time_demo.sh SECONDS [CMAKE_FLAG…]: make demo in a fresh clone, three times, without a compiler cache; fails where the median
# takes longer.
set -eu
cd "$(dirname "$0")/.."
limit=$1
shift
times=()
for round in 1 2 3; do
    work=$(mktemp -d)
    git clone -q . "$work/tenon"
    start=$(date +%s.%N)
    (cd "$work/tenon" && CCACHE_DISABLE=1 CMAKE_FLAGS="$*" make demo) > "$work/log" 2>&1 || { tail "$work/log"; rm -rf "$work"; exit 1; }
    times+=("$(awk "BEGIN { print $(date +%s.%N) - $start }")")
    rm -rf "$work"
done
median=$(printf '%s\n' "${times[@]}" | sort -n | sed -n 2p)
echo "median $median s of ${times[*]}"
awk "BEGIN { exit !($median <= $limit) }"
