#!/bin/bash
# tenon pack: tables in, offsets out, exit codes, pictures.
. "$(dirname "$0")/../support/checks.sh"
cat > "$work/small.csv" << EOF
size,id,upper,lower
100,a,3,0
50,b,4,2
70,c,6,3
EOF
check "offsets on standard output" 0 '^b,2,4,50,' "$tenon" pack "$work/small.csv"
check "a summary on standard error" 0 '^optimal +yes' "$tenon" pack "$work/small.csv"
check "a capacity that is met" 0 '^size +150 ' "$tenon" pack "$work/small.csv" --capacity 150
check "a capacity that cannot be met" 2 'id b: \[2, 4\) size 50' "$tenon" pack "$work/small.csv" --capacity 149
check "a missing file" 1 'cannot open' "$tenon" pack /no/such/file
printf 'id,lower,upper,size\n1,5,3,4\n' > "$work/bad.csv"
check "bad input names its line" 1 'line 2: upper 3 is before lower 5' "$tenon" pack "$work/bad.csv"
check "standard input" 0 '^a,0,3,100,' bash -c "'$tenon' pack - < '$work/small.csv'"
check "an unknown effort" 1 'effort' "$tenon" pack "$work/small.csv" --effort lots
check "chunks" 0 'in 2 chunks' "$tenon" pack "$work/small.csv" --max-chunk 100
check "a picture" 0 '' "$tenon" pack "$work/small.csv" --svg "$work/small.svg"
grep -q '</svg>' "$work/small.svg" || failed "no picture"
if command -v xmllint > /dev/null; then
    xmllint --noout "$work/small.svg" || failed "the picture is not XML"
fi
check "a picture that cannot be written" 1 'cannot write' "$tenon" pack "$work/small.csv" --svg /no/such/dir/x.svg

# A hard instance that stays undecided within few steps.
golden=$golden/packing
if [ -e "$golden/minimalloc-A.csv" ]; then
    check "undecided" 3 'undecided' "$tenon" pack "$golden/minimalloc-A.csv" --capacity 1048576 --effort exact --steps 100000
    check "a time limit" 3 'undecided' "$tenon" pack "$golden/minimalloc-A.csv" --capacity 1048576 --effort exact --time-limit 0.000001
    check "solved" 0 '^optimal +yes' "$tenon" pack "$golden/minimalloc-A.csv" --capacity 1M --effort exact
    "$tenon" pack "$golden/minimalloc-A.csv" --effort exact --steps 1000000 > "$work/one" 2> /dev/null
    "$tenon" pack "$golden/minimalloc-A.csv" --effort exact --steps 1000000 > "$work/two" 2> /dev/null
    cmp -s "$work/one" "$work/two" || failed "two runs differ"
else
    echo "skipped: no golden data"
fi
finish
