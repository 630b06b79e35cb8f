#!/bin/bash
# The greedy story of stories15M begins with the text of its 48 golden tokens, each of which is the argmax of its
# golden logits. (tests/unit/llm/test_llm.c compares the logits.)
set -u
build=$(cd "$1" && pwd)
golden=${TENON_GOLDEN:-${TENON_GOLDEN_DEFAULT:-../shared/golden}}
model=$golden/models/stories15M-f16.gguf
[ -e "$model" ] || { echo "no golden data: $model"; exit 77; }

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
