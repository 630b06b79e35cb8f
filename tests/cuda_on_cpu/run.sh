#!/bin/bash
# run.sh BUILD CAPABILITY: runs the tests of GPUs with the CUDA backend on the CPU, and models that use its fast kernels.
# Without TENON_LONG, tests run for those capabilities at which their kernels are compiled or launched differently, with fewer
# rounds (TENON_QUICK). TENON_LONG=1 (`make test-cuda`) runs all of test_gpu, more models, and other orders of threads.
set -u
build=$(realpath "$1") capability=$2 failures=0
tenon=$build/bin/tenon
[ -e "$build/cuda_on_cpu/$capability/libtenon-cuda.so" ] || { echo "skipped: no CUDA backend for $capability"; exit 77; }
[ -x "$tenon" ] || { echo "skipped: the tenon program is not built"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TENON_BACKEND_PATH=$build/cuda_on_cpu/$capability TENON_GPU=cuda0

run() { # program, pattern, VARIABLE=VALUE…
    local program=$1 pattern=$2 begin=$SECONDS
    shift 2
    echo "---- $program $pattern $*"
    env "$@" TENON_TESTS="$pattern" "$build/tests/$program" 2>&1 || failures=$((failures + 1))
    echo "---- $((SECONDS - begin)) s"
}
tests() { run test_gpu "$@"; }
edges() { run test_gpu_edges "$@"; }
synth() { # name, type, architecture, shape
    "$tenon" synth "$work/$1.gguf" --type "$2" --arch "$3" --shape "layers=2,width=256,ffn=512,vocab=512,ctx=512,$4" > /dev/null ||
        failures=$((failures + 1))
}

# Few tokens and small matrices, but rows of at least the length that a warp processes per step. With quantized weights all experts
# are used: otherwise rounding would decide between experts with almost equal scores.
[ -n "${TENON_LONG:-}" ] || export TENON_QUICK=1
is() { # capabilities…: whether this is one of them, or everything runs
    [ -n "${TENON_LONG:-}" ] || [[ " $* " == *" $capability "* ]]
}
synth pairs f16 llama heads=4,kv=2,head=64,layers=1,width=512,ffn=1024
synth wide q8_0 qwen3 heads=4,kv=1,head=128,ffn=1024
synth mixed Q4_K_M llama heads=4,kv=4,head=64,layers=1,ffn=2048
synth padded Q4_K_M llama heads=4,kv=2,head=64,layers=1,width=768,ffn=2304 # rows of q6_K are no multiple of 16 bytes
if [ -n "${TENON_LONG:-}" ]; then
    synth eights q4_0 llama heads=8,kv=1,head=64,ffn=2048
    synth fours Q4_K_S llama heads=4,kv=2,head=64,ffn=2048,layers=1
    synth sixes Q6_K llama heads=4,kv=2,head=64,ffn=2048,width=2048,layers=1
    synth padded8 q8_0 llama heads=3,kv=3,head=96,layers=1,width=1056,ffn=2080
    synth longest Q4_K_M llama heads=4,kv=2,head=64,layers=1,ffn=28672
    synth many f16 llama heads=8,kv=8,head=64,layers=1,width=512
    synth brain bf16 llama heads=4,kv=2,head=64
    synth capped f16 gemma2 heads=4,kv=2,head=64,window=16
    synth sinks f16 gpt-oss heads=4,kv=2,head=64,experts=4,used=2,expert-ffn=256,window=16
    synth hybrid f16 qwen35 heads=4,kv=2,head=64,layers=4,width=512
fi
synth types Q5_K_M llama heads=4,kv=2,head=64,layers=1,width=2048 # q5_K and q6_K of one input
synth experts Q4_K_M qwen3moe heads=4,kv=2,head=64,experts=4,used=4,expert-ffn=768
[ $failures = 0 ] || exit 1
models=$(echo "$work"/*.gguf)
memory_models=$models # all kinds of launches of a capability: tile kernels from 8.0 on, the persistent kernel from 9.0 on
if [ -z "${TENON_LONG:-}" ]; then
    memory_models="$work/mixed.gguf $work/pairs.gguf"
    [ "$capability" = 90 ] && models="$work/pairs.gguf $work/wide.gguf $work/types.gguf $work/experts.gguf"
    [ "$capability" = 75 ] && models="$work/mixed.gguf $work/wide.gguf"
    [ "$capability" = 80 ] && models="$work/experts.gguf $work/padded.gguf"
fi
# Metadata only, for planning.
shape=layers=2,width=1024,vocab=512,ctx=8192,heads=16,kv=4,head=64
"$tenon" synth "$work/dense.plan" --no-data --type Q4_K_M --arch llama --shape $shape,ffn=2048 > /dev/null
"$tenon" synth "$work/experts.plan" --no-data --type Q4_K_M --arch qwen3moe --shape $shape,experts=16,used=4,expert-ffn=512 > /dev/null

if [ -z "${TENON_LONG:-}" ]; then
    # Ops and attention without matmuls are compiled alike for 7.5 and 8.0, and attention's matmuls alike from 8.0 on.
    is 75 90 && tests 'every*'
    is 80 && tests 'every*' TENON_OPS=mul_mat_id
    tests 'named*' TENON_GPU_MODELS="$models"
    is 75 90 && tests 'models*' TENON_GPU_ARCHS="llama-dense"
else
    tests '*' TENON_GPU_MODELS="$models"
    tests 'named*' TENON_GPU_MODELS="$models" TENON_EMULATED_PROCESSORS=1
    for seed in 1 2; do
        tests 'every*' TENON_EMULATED_SEED=$seed
        tests 'named*' TENON_GPU_MODELS="$models" TENON_EMULATED_SEED=$seed
        tests 'named*' TENON_GPU_MODELS="$models" TENON_EMULATED_SEED=$seed TENON_CUDA_PERSISTENT=0
    done
fi
plans=
is 75 && plans=$(echo "$work"/*.plan) # devices that are described do not depend on the capability of this one
is 75 90 && run test_gpu_memory '*' TENON_GPU_STEPS=10 TENON_GPU_MODELS="$memory_models" TENON_PLAN_MODELS="$plans" TENON_COUNT_GPU_BYTES="$work/bytes"
run test_gpu_memory 'integrated*' TENON_EMULATED_INTEGRATED=1
edges '*'
run test_gpu_matmul '*'
is 75 90 && run test_gpu_pages '*'
is 75 90 && run test_gpu_attention '*'
is 75 90 && run test_gpu_recurrent '*'
is 75 && run test_adapters '*'
is 90 && run test_gpu_pages 'layers*' TENON_EMULATED_PROCESSORS=24 TENON_EMULATED_SEED=3
is 80 && run test_gpu_attention 'mixed*' TENON_EMULATED_PROCESSORS=3 TENON_EMULATED_SEED=3
is 90 && run test_gpu_recurrent '*' TENON_EMULATED_PROCESSORS=24 TENON_EMULATED_SEED=3
edges 'devices*' TENON_EMULATED_DEVICES=2
edges 'long*' TENON_EMULATED_PROCESSORS=132 TENON_CUDA_PERSISTENT=0
exit $((failures > 0))
