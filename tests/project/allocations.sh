#!/bin/bash
# Every exported function that returns a status is called by a test in which each allocation fails in turn
# (check_every_allocation_failure), or tests/data/allocations_elsewhere.txt says why not. Nothing else is exported.
. "$(dirname "$0")/../support/checks.sh"
build=$(cd "$build" && pwd)
cd "$(dirname "$0")/../.." || exit 1
libraries=("$build"/lib/libtenon.so "$build"/lib/libtenon-llm.so)
nm -D --defined-only "${libraries[@]}" | awk '$2 ~ /[TW]/ { print $3 }' | sort -u > "$work/exported"
# Declarations without comments, each on one line.
find include/tenon -name "*.h" -exec cat {} + | tr '\n' ' ' | sed 's/\*\//\n/g' | sed 's/\/\*.*//' | tr '\n' ' ' | grep -oE '\bTN_API\b[^;{]*' > "$work/declared"
sed -nE 's/^TN_API [^(]*\b(tn_[a-z0-9_]+) *\(.*/\1/p' "$work/declared" | sort -u > "$work/names"
sed -nE 's/^TN_API tn_status +(tn_[a-z0-9_]+) *\(.*/\1/p' "$work/declared" | sort -u > "$work/statuses"
[ "$(wc -l < "$work/statuses")" -gt 150 ] || failed "only $(wc -l < "$work/statuses") functions that return a status were found"
same "functions that are exported and not in the headers" "" "$(comm -23 "$work/exported" "$work/names" | paste -sd' ')"

elsewhere=tests/data/allocations_elsewhere.txt
grep -v '^#' $elsewhere | cut -f1 | sort > "$work/elsewhere"
same "names in $elsewhere that do not exist" "" "$(comm -23 "$work/elsewhere" "$work/statuses" | paste -sd' ')"
grep -v '^#' $elsewhere | grep -vP '^tn_\w+\t\S' && failed "$elsewhere: a name, a tab, a reason"
grep -lE 'check_every_allocation_failure|fail_allocation' tests/unit/*/*.c | xargs cat | grep -oE '\btn_[a-z0-9_]+' | sort -u > "$work/called"
same "functions without a test in which each allocation fails" "" \
    "$(comm -12 "$work/statuses" "$work/exported" | comm -23 - "$work/called" | comm -23 - "$work/elsewhere" | paste -sd' ')"
same "functions in $elsewhere that have such a test" "" "$(comm -12 "$work/elsewhere" "$work/called" | paste -sd' ')"
finish
