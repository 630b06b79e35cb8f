#!/bin/bash
# A greedy story is the same for every number of threads and without repacked weights, and each of its tokens is the argmax of the logits
# of all tokens before it. With golden data: the story of stories15M begins with the text of its 48 golden tokens, each of which is
# the argmax of its golden logits. (tests/unit/llm/test_llm.c compares the logits.)
set -u
build=$(cd "$1" && pwd)
golden=${TENON_GOLDEN:-${TENON_GOLDEN_DEFAULT:-../shared/golden}}
model=$golden/models/stories15M-f16.gguf
if [ ! -e "$model" ]; then
    model=$(cd "$(dirname "$0")/../.." && pwd)/models/tales.gguf
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    tell() { "$build/bin/tenon" run "$model" -p "Once upon a time" --temp 0 -n 60 --ignore-eos "$@" 2> /dev/null; }
    story=$(tell -t 1)
    [ "${#story}" -gt 100 ] || { echo "FAILED: the story is only: $story"; exit 1; }
    for options in "-t 2" "-t 3 -b 2"; do
        [ "$(tell $options)" = "$story" ] || { printf 'FAILED: with %s the story is another one\n' "$options"; exit 1; }
    done
    # Without repacking sums round otherwise: at least the beginning is the same.
    other=$(tell --no-pack)
    [ "${other:0:60}" = "${story:0:60}" ] || { printf 'FAILED: without repacked weights the story is\n%s\n' "$other"; exit 1; }
    printf '%s' "$story" | "$build/bin/tenon" tokenize "$model" --add-special | tr ' ' '\n' > "$work/ids"
    first=$(printf 'Once upon a time' | "$build/bin/tenon" tokenize "$model" --add-special | wc -w)
    "$build/bin/tenon" logits "$model" --tokens @"$work/ids" --out "$work/logits" 2> /dev/null || { echo "FAILED: logits"; exit 1; }
    rows=$(wc -l < "$work/ids")
    row=$(($(stat -c %s "$work/logits") / rows))
    od -An -v -t f4 -w$row "$work/logits" | awk -v first="$first" -v ids="$(tr '\n' ' ' < "$work/ids")" '
        BEGIN { n = split(ids, id, " ") }
        { best = 1; for (i = 2; i <= NF; i++) if ($i > $best) best = i; if (NR >= first && NR < n && best - 1 != id[NR + 1]) wrong++ }
        END { if (NR != n || wrong) { print "FAILED: " wrong + 0 " of " n - first " tokens are not the argmax"; exit 1 } }'
    exit
fi

ids=$(od -An -v -t d4 -j 8 -N $((48 * 4)) "$golden/models/stories15M-f16.logits")
expected=$("$build/bin/tenon" detokenize "$model" $ids)
story=$("$build/bin/tenon" run "$model" -p "Once upon a time" --temp 0 -n 100 2> /dev/null)
case $story in
"$expected was"*) ;;
*)
    printf 'FAILED: the story should begin with\n%s was\nbut is\n%s\n' "$expected" "$story"
    exit 1
    ;;
esac
# The same for every thread count and without repacked weights.
for options in "-t 1" "-t 2" --no-pack; do
    other=$("$build/bin/tenon" run "$model" -p "Once upon a time" --temp 0 -n 100 $options 2> /dev/null)
    case $other in "$expected was"*) continue ;; esac
    printf 'FAILED: with %s the story is\n%s\n' "$options" "$other"
    exit 1
done
