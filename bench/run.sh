#!/bin/bash
# run.sh BUILD: our own figures against what the machine can do at most. One section per subject; about ten minutes.
#   ONLY="model plan"   some of them: machine model plan alloc sched threadpool tokenizer sampler grammar gpu
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
cd "$here/.." || exit 1
section() { # name command…
    case " ${ONLY:-$1} " in *" $1 "*) ;; *) return ;; esac
    echo
    echo "== $1: ${*:2}"
    "${@:2}" || { echo "FAILED: $1"; failed=1; }
}
models() {
    local type
    for type in q4_0 q8_0 Q4_K_M bf16; do
        "$build/bin/tenon" synth "$work/model.gguf" --shape "${SHAPE:-1b}" --type $type --force > /dev/null || return 1
        echo "-- ${SHAPE:-1b} $type"
        "$build/bench/model" "$work/model.gguf" prompt=512 generate=32 || return 1
    done
}
gpu() {
    "$build/bin/tenon" devices | grep -q '^cuda' || { echo "no GPU here"; return 0; }
    "$build/bin/tenon" synth "$work/model.gguf" --shape 8b --type Q4_K_M --force > /dev/null && "$build/bench/gpu" "$work/model.gguf"
}
cat /proc/loadavg
section machine "$build/bench/matmul" seconds=0.1
section model models
section plan "$build/bench/plan"
section alloc "$build/bench/alloc"
section sched "$build/bench/sched"
section threadpool "$build/bench/threadpool"
section tokenizer "$build/bench/tokenizer"
section sampler "$build/bench/sampler"
section grammar "$build/bench/grammar"
section gpu gpu
exit $failed
