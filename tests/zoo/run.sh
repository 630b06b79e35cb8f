#!/bin/bash
# run.sh BUILD [NAME …]: checks the models of the golden zoo (all, or those named) and prints a line for each.
# $MODES: batch (default), cuts, pairs, fit, rows, layers. $SEED: of the weights (7 is the reference's). Exits with 1 if one fails, 77
# where the golden data is absent.
build=$1
shift
golden=${TENON_GOLDEN:-$(dirname "$0")/../../../shared/golden}/zoo
[ -d "$golden" ] || { echo "skipped: no golden data at $golden"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc -O2 "$golden/fill.c" -o "$work/fill" -lm || exit 2
passed=0 failed=0
for head in "$golden"/*.head; do
    name=$(basename "$head" .head)
    [ $# -eq 0 ] || [[ " $* " == *" $name "* ]] || continue
    "$work/fill" "$head" "$work/$name.gguf" "${SEED:-7}"
    # An indexer selects the lower of two positions with equal scores; the reference's order is applied here.
    case $name in deepseek32-* | glm-dsa-* | dots3note-*) ties=heap ;; *) ties= ;; esac
    text=$(TENON_ZOO_TIES=$ties "$build/tests/zoo" "$work/$name.gguf" "$golden/$name.logits" ${MODES:-batch} 2>&1)
    if [ $? -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    echo "$name: ${text//$'\n'/; }${ties:+ (equal scores in the order of the reference)}"
    rm -f "$work/$name.gguf"
done
echo "zoo: $passed passed, $failed failed"
[ $failed -eq 0 ]
