#!/bin/sh
# api_doc.sh: prints docs/api.md with its table of headers generated from each header's first comment.
cd "$(dirname "$0")/.." || exit 1
# The text around the table comes from the page itself: without its marks it is damaged, and nothing is printed.
if ! grep -q '^<!-- headers -->' docs/api.md || ! grep -q '^<!-- end -->' docs/api.md; then
    echo "docs/api.md has lost the marks around its table of headers" >&2
    exit 1
fi
table=$(
    for header in include/tenon/*.h include/tenon/*/*.h; do
        # The first paragraph of the first comment, on one line.
        text=$(awk 'NR == 1 { sub(/^\/\* */, "") } { sub(/^ \* ?/, "") } /^$/ { exit } { end = sub(/ *\*\/.*/, ""); printf "%s ", $0; if (end) exit }' "$header")
        echo "| [\`${header#include/}\`](../$header) | ${text% } |"
    done
)
awk -v table="$table" '/^<!-- headers -->/ { print; print table; skip = 1; next } /^<!-- end -->/ { skip = 0 } !skip' docs/api.md
