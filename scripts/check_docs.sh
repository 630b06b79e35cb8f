#!/bin/bash
# check_docs.sh: pages that a person writes have at most 1,500 words; longer ones are divided. Generated reference is exempt.
cd "$(dirname "$0")/.." || exit 1
long=$(find docs README.md CONTRIBUTING.md SECURITY.md bench/README.md -name '*.md' ! -name cli.md ! -name flags.md ! -name api.md ! -name migration.md -exec wc -w {} + |
    awk '$2 != "total" && $1 > 1500 { print $2 ": " $1 " words; at most 1500" }')
lines=$(wc -l < README.md)
[ "$lines" -le 120 ] || long+=$'\n'"README.md: $lines lines; at most 120"
[ -z "$long" ] || { printf '%s\n' "$long"; exit 1; }
find docs -name '*.md' ! -name cli.md ! -name flags.md ! -name api.md ! -name migration.md -exec wc -w {} + | sort -n | awk 'END { print "longest page " w " words" } $2 != "total" { w = $1 }'
