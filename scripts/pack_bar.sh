#!/bin/bash
# pack_bar.sh BUILD instances|traces: packs the tables of FOLDER (default: packing/ of the golden data).
#   instances   every minimalloc-*.csv within 1,048,576 bytes in at most 2 s of processor time each, at exact effort
#   traces      every other table at most 1.01 times its lower bound, at balanced effort, in at most 2 s
set -eu
cd "$(dirname "$0")/.."
build=$1 kind=$2 folder=${FOLDER:-${TENON_GOLDEN:-../shared/golden}/packing}
status=0 count=0 worst=0 longest=0
TIMEFORMAT=%U
for table in "$folder"/*.csv; do
    case $kind:$(basename "$table") in
        instances:minimalloc-*) options="--effort exact --capacity 1048576" ;;
        instances:* | traces:minimalloc-*) continue ;;
        *) options="--effort balanced" ;;
    esac
    count=$((count + 1))
    # shellcheck disable=SC2086 # several words
    if ! seconds=$({ time "$build/bin/tenon" pack "$table" $options > /dev/null 2> "$build/pack_bar.log"; } 2>&1); then
        echo "$(basename "$table"): $(head -n 1 "$build/pack_bar.log")"
        status=1
        continue
    fi
    ratio=$(awk '/^ratio/ { print $2 }' "$build/pack_bar.log")
    if ! awk -v r="$ratio" -v s="$seconds" -v k="$kind" 'BEGIN { exit !(s <= 2 && (k == "instances" || r <= 1.01)) }'; then
        echo "$(basename "$table"): ratio $ratio in $seconds s"
        status=1
    fi
    worst=$(printf '%s\n%s\n' "$worst" "$ratio" | sort -g | tail -n 1)
    longest=$(printf '%s\n%s\n' "$longest" "$seconds" | sort -g | tail -n 1)
done
echo "$count tables, largest ratio $worst, longest $longest s"
[ "$count" -gt 0 ] || status=1
exit $status
