#!/bin/bash
# tenon bench: numbers that agree with each other, as a table and as JSON.
set -u
tenon=$1/bin/tenon failures=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
complain() {
    echo "FAILED: $1"
    cat "$work/out"
    failures=$((failures + 1))
}
"$tenon" bench -p 16 -n 4 -d 8 -r 3 > "$work/out" 2>&1 || complain "exit code"
grep -qE '^prompt +16 +[0-9.]+ +[0-9.]+ … [0-9.]+' "$work/out" || complain "prompt"
grep -qE '^generation +4 +[0-9.]+ +[0-9.]+ … [0-9.]+ +[0-9]+ %' "$work/out" || complain "generation and its share of the bandwidth"
grep -qE 'memory planned ([0-9.]+ [KMG]?i?B) = used \1' "$work/out" || complain "memory"
"$tenon" bench -p 16 -n 4 -r 3 --json > "$work/out" 2>&1 || complain "exit code with --json"
LC_ALL=C awk -F'[:,]' '
    /"lowest"/ { lowest = $2 } /"highest"/ { highest = $2 } /"median"/ { median = $2 }
    /"rates"/ { n++; if (!(0 < lowest && lowest <= median && median <= highest)) bad = 1 }
    /"share_of_bandwidth"/ { if (!($2 > 0 && $2 < 100)) bad = 1 }
    END { exit bad || n != 2 }' "$work/out" || complain "lowest ≤ median ≤ highest"
"$tenon" bench -p 0 -n 4 -r 1 -dev sim:1G > "$work/out" 2>&1 || complain "on another device"
grep -q 'measured on sim' "$work/out" || complain "bandwidth of another device"
grep -q '^prompt' "$work/out" && complain "-p 0 leaves the prompt out"
"$tenon" bench -p 0 -n 0 > "$work/out" 2>&1 && complain "nothing to measure is wrong usage"
"$tenon" bench --sequences 3 -p 16 -n 4 -r 3 --json > "$work/out" 2>&1 || complain "several sequences"
python3 - "$work/out" << 'END' || complain "prompts, generation and both of three sequences agree"
import json, sys
rows = {r['test']: r for r in json.load(open(sys.argv[1]))['results']}
p, g, b = (rows[name]['median'] for name in ('prompts', 'generation', 'both'))
assert all(r['sequences'] == 3 for r in rows.values())
assert 0 < b < g and abs(1 / b - (16 / 4 / p + 1 / g)) < 0.5 / b, (p, g, b)
END
"$tenon" bench --sequences 3 -p 0 -n 4 > "$work/out" 2>&1 && complain "several sequences need a prompt"
exit $((failures > 0))
