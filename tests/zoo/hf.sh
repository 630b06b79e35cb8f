#!/bin/bash
# hf.sh BUILD [NAME …]: converts the Hugging Face folders of the golden data (all, or those named), compares the models
# with the logits of transformers and prints a line for each. $MODES as for run.sh. Exits with 1 if one fails, 77 where
# the golden data is absent.
build=$1
shift
golden=${TENON_GOLDEN:-$(dirname "$0")/../../../shared/golden}/hf-zoo
[ -d "$golden" ] || { echo "skipped: no golden data at $golden"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
for folder in "$golden"/*/; do
    name=$(basename "$folder")
    [ $# -eq 0 ] || [[ " $* " == *" $name "* ]] || continue
    # An indexer selects the lower of two positions with equal scores; the reference's order is applied here.
    case $name in deepseek_v32 | glm_moe_dsa) ties=quick ;; *) ties= ;; esac
    if text=$("$build/bin/tenon" convert "$folder" "$work/model.gguf" --type f32 --force 2>&1) &&
        text=$(TENON_ZOO_TIES=$ties TENON_ZOO_BAR=${TENON_ZOO_BAR:-1e-5} "$build/tests/zoo" "$work/model.gguf" "$folder/logits.bin" ${MODES:-batch} 2>&1); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
    echo "$name: ${text//$'\n'/; }${ties:+ (equal scores in the order of the reference)}"
    rm -f "$work/model.gguf"
done
echo "hf-zoo: $passed passed, $failed failed"
[ $failed -eq 0 ]
