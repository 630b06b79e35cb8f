#!/bin/bash
# check.sh BUILD [--update]: measures a short list of ratios and compares them with the committed ones of this machine's
# level, bench/results/regression-LEVEL.tsv. Says what got worse by more than 10% and fails then. Speeds are divided by
# what the machine can do at that moment (read bandwidth, arithmetic peak), memory is exact.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
update=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tenon=$build/bin/tenon
now=$work/now.tsv

# name value more|less
put() { printf '%s\t%s\t%s\n' "$1" "$2" "$3" >> "$now"; }

level=
for type in q4_0 q8_0 Q4_K_M bf16; do
    "$tenon" synth "$work/model.gguf" --shape 100m --type $type --force > /dev/null
    "$build/bench/model" "$work/model.gguf" prompt=256 generate=32 repeat="${REPEAT:-5}" > "$work/text"
    level=$(sed -n 's/^level \([a-z0-9]*\),.*/\1/p' "$work/text")
    put "prefill $type: share of the f32 peak, %" "$(sed -n 's/^prompt .* \([0-9]*\)% of f32.*/\1/p' "$work/text")" more
    put "decode $type: share of read bandwidth, %" "$(sed -n 's/^generate .* \([0-9]*\)% of read bandwidth.*/\1/p' "$work/text")" more
done
peak=$(sed -n 's/.* f32 \([0-9.]*\) Tflops.*/\1/p' "$work/text")

# Planned bytes are the same on every machine.
while read -r name options; do
    # shellcheck disable=SC2086
    "$tenon" synth "$work/plan.gguf" $options --no-data --force > /dev/null
    "$tenon" plan "$work/plan.gguf" -c 8192 -dev sim:64G --json > "$work/plan.json"
    put "compute memory $name, KiB" "$(awk -F'[:,]' '/"compute"/ { s += $2 } END { printf "%d", s / 1024 }' "$work/plan.json")" less
    put "plan over lower bound $name" "$(awk -F'[:,]' '/"compute"/ { s += $2 } /"lower_bound"/ { b += $2 } END { printf "%.4f", b ? s / b : 0 }' "$work/plan.json")" less
done << END
1b --shape 1b --type q4_0
8b --shape 8b --type Q4_K_M
70b --shape 70b --type Q4_K_M
gemma3 --arch gemma3 --shape 1b --type q8_0
moe --arch qwen3moe --shape 1b --type Q4_K_M
END

if [ -e "$here/../models/tales.gguf" ]; then
    rate=$(cd "$here/.." && "$build/bench/tokenizer" | awk '$1 == "words" { print $2; exit }')
    put "tokenizer, MB/s per f32 Tflops" "$(awk "BEGIN { printf \"%.1f\", $rate / $peak }")" more
fi
micro=$("$build/bench/sampler" | awk '/^default chain/ { for (i = 1; i < NF; i++) if ($(i + 1) == "min") print $i; exit }')
[ -z "$micro" ] || put "default sampler, us times f32 Tflops" "$(awk "BEGIN { printf \"%.2f\", $micro * $peak }")" less

file=$here/results/regression-$level.tsv
if [ "$update" = --update ] || [ ! -e "$file" ]; then
    mkdir -p "$here/results"
    cp "$now" "$file"
    cat "$file"
    echo "written: $file"
    exit 0
fi
awk -F'\t' '
    NR == FNR { old[$1] = $2; next }
    {
        if (!($1 in old) || old[$1] == 0 || $2 == "") { printf "new    %-48s %10s\n", $1, $2; next }
        change = 100 * ($2 / old[$1] - 1)
        bad = $3 == "more" ? change < -10 : change > 10
        if (bad) worse++
        printf "%-6s %-48s %10s %10s %+7.1f%%\n", bad ? "WORSE" : "ok", $1, old[$1], $2, change
    }
    END { printf "%d worse by more than 10%%\n", worse; exit worse > 0 }' "$file" "$now"
