#!/bin/sh
# module_doc.sh: prints docs/architecture.md with the last column of its table of modules taken from scripts/include_rules.txt.
# A rule without a row gets one without a subject; a row without a rule is left out.
cd "$(dirname "$0")/.." || exit 1
# The text around the table comes from the page itself: without its marks it is damaged, and nothing is printed.
if ! grep -q '<!-- modules: begin' docs/architecture.md || ! grep -q '<!-- modules: end' docs/architecture.md; then
    echo "docs/architecture.md has lost the marks around its table of modules" >&2
    exit 1
fi
awk -F'|' '
    FILENAME != "docs/architecture.md" {
        if ($0 !~ /^#/ && $0 ~ /:/) {
            folder = $0; sub(/:.*/, "", folder)
            allowed = $0; sub(/^[^:]*: */, "", allowed); gsub(/ +/, ", ", allowed)
            order[++n] = folder
            rule[folder] = allowed == "" ? " |" : " " allowed " |"
        }
        next
    }
    /<!-- modules: end/ {
        for (i = 1; i <= n; i++) if (!(order[i] in seen)) print "| `" order[i] "` | |" rule[order[i]]
        inside = 0
    }
    inside && $2 ~ /`/ {
        folder = $2; gsub(/[` ]/, "", folder)
        if (folder in rule) { print "|" $2 "|" $3 "|" rule[folder]; seen[folder] = 1 }
        next
    }
    /<!-- modules: begin/ { inside = 1 }
    { print }' scripts/include_rules.txt docs/architecture.md
