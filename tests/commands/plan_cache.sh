#!/bin/bash
# Saved and cached session plans of the program: plans that took long are kept, used, and refused when they are stale.
. "$(dirname "$0")/../support/checks.sh"
export XDG_CACHE_HOME=$work/cache TENON_PLAN_CACHE_MS=0
plans=$work/cache/tenon/plans
"$tenon" synth "$work/m.gguf" --no-data --type q8_0 --arch qwen3moe \
    --shape layers=61,width=512,heads=8,kv=2,head=64,experts=64,used=8,expert-ffn=128,vocab=2000 > /dev/null 2>&1 ||
    failed "synth"
count() { ls "$plans" 2> /dev/null | wc -l; }
long() { "$tenon" plan "$work/m.gguf" --device cpu --ctx 512 --threads 1 --effort exact "$@"; }

check "without the cache nothing is written" 0 'fits' long --no-plan-cache
same "no file" 0 "$(count)"
check "the first plan is made" 0 'fits' long -v
same "and kept" 1 "$(count)"
grep -q 'using the session plan' "$work/out" && failed "the first plan came from nowhere"
report() { grep -v '^tenon: ' "$work/out" | sed 's/ *[0-9.]* [KMG]iB$//'; } # without the memory that is free just now
report > "$work/first"
check "the second is adopted" 0 "using the session plan from $plans" long -v
report > "$work/second"
cmp -s "$work/first" "$work/second" || failed "the adopted plan prints another report"
check "the environment turns the cache off" 0 'fits' env TENON_PLAN_CACHE=off "$tenon" plan "$work/m.gguf" --device cpu \
    --ctx 512 --threads 1 --effort fast -v
check "other parameters are another plan" 0 'fits' long --ctx 1024
same "kept as well" 2 "$(count)"
for file in "$plans"/*; do echo damaged > "$file"; done
check "a damaged file is planned over" 0 'cached plan not used' long -v
check "and adopted again" 0 'using the session plan' long -v
check "without a home there is no cache" 0 'fits' env -u HOME -u XDG_CACHE_HOME "$tenon" plan "$work/m.gguf" \
    --device cpu --effort fast

check "saved" 0 'fits' "$tenon" plan "$work/m.gguf" --device cpu --ctx 512 --save "$work/p"
check "loaded" 0 'fits' "$tenon" plan "$work/m.gguf" --device cpu --ctx 512 --plan "$work/p"
check "verified" 0 'none overlap' "$tenon" plan --verify "$work/p" "$work/m.gguf" --device cpu --ctx 512
check "stale" 1 'for other parameters: plan again' "$tenon" plan "$work/m.gguf" --device cpu --ctx 511 --plan "$work/p"
finish
