#!/bin/bash
# count_gpu_bytes.sh [BUILD] MODEL…: on a machine with a GPU, compares the bytes that processes request from the CUDA driver, counted by
# a preloaded library, with the plan, to the byte. STEPS=1000 sets the further steps over which free memory must stay.
#
#   1. test_gpu_memory: sessions of each model, batches of mixed sizes; nothing is requested after a session is open; free memory as
#      the driver reports it stays the same.
#   2. tenon run against tenon plan --json.
set -u
build=build
[ $# -gt 0 ] && [ -d "$1" ] && { build=$1; shift; }
[ $# -gt 0 ] || { echo "usage: $0 [BUILD] MODEL…" >&2; exit 2; }
counter=$(realpath "$build/tests/modules/libcount_gpu_bytes.so") || exit 1
device=${TENON_GPU:-cuda0} failures=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

count() { # log, command…
    local log=$1
    shift
    : > "$log"
    env LD_PRELOAD="$counter" TENON_COUNT_GPU_BYTES="$log" TENON_GPU="$device" "$@"
}
requested() { awk -v kind="$2" '$1 == "+" && $2 == kind { sum += $3 } END { printf "%d\n", sum }' "$1"; }

echo "== sessions, batches of mixed sizes, ${STEPS:-1000} further steps"
TENON_GPU_MODELS="$*" TENON_GPU_STEPS=${STEPS:-1000} TENON_TESTS='*memory*' count "$work/test" "$build/tests/test_gpu_memory" ||
    failures=$((failures + 1))
[ -s "$work/test" ] || { echo "nothing was counted: the driver's functions were not replaced"; failures=$((failures + 1)); }

for model in "$@"; do
    echo "== $model: tenon run against tenon plan"
    options="--device $device -ngl 999 -c 2048"
    # shellcheck disable=SC2086
    planned=$("$build/bin/tenon" plan "$model" $options --json | python3 -c "
import json, sys
print(sum(d['needed'] for d in json.load(sys.stdin)['devices'] if d['name'] == '$device'))")
    # shellcheck disable=SC2086
    count "$work/run" "$build/bin/tenon" run "$model" $options -p "Once upon a time" -n 64 > "$work/text" || failures=$((failures + 1))
    echo "device: planned $planned, requested $(requested "$work/run" device)"
    echo "pinned: $(requested "$work/run" pinned), registered: $(requested "$work/run" registered)"
    sort "$work/run" | uniq -c | sort -k2,2 -k4,4nr
    [ "$planned" = "$(requested "$work/run" device)" ] || failures=$((failures + 1))
done
exit $((failures > 0))
