#!/bin/bash
# run.sh BUILD: Tenon and llama.cpp side by side on the same models, processors and threads; see bench/README.md.
#   PEERS_DIR=…     a folder where the peer is installed already (no network is used then)
#   MODELS_DIR=…    where the models are made (5 GB; default: in PEERS_DIR)
#   OUT=FILE        the JSON file (default: bench/results/DATE-LEVEL.json)
#   THREADS=2  REPEAT=3  BUDGET=20   threads; repetitions; seconds after which nothing is repeated again
#   LIMIT=SECONDS   after which nothing new is begun
#   TYPES="q4_0 q8_0 Q4_K_M bf16"  SHAPE=1b
#   QUICK=1         one type, few measurements
#   ONLY=sequences  the decodes of many sequences alone
#   ONLY=families   models of other kinds instead: recurrent, hybrid, latent attention, experts (FAMILIES="qwen35-0.8b …" some of them)
#   CPU_TIME=1      measures them in CPU time; with THREADS=1 the figures hold on a busy machine as well
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:-build}" && pwd)
tenon=$build/bin/tenon
peers=${PEERS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tenon-peers}
models=${MODELS_DIR:-$peers/models}
quick=${QUICK:-} shape=${SHAPE:-1b}
types=${TYPES:-${quick:+q4_0}}
types=${types:-q4_0 q8_0 Q4_K_M bf16}
notes=()

folder=$peers/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64
if [ -z "${PEERS_DIR:-}" ]; then "$here/install.sh" "$peers"; fi
[ -d "$folder" ] || folder=$peers
ls "$folder"/libllama*.so > /dev/null 2>&1 || { echo "no shared objects of the peer in $folder" >&2; exit 1; }
package=$(sed -n 's/.*"version": "\(.*\)".*/\1/p' "$peers/node_modules/@node-llama-cpp/linux-x64/package.json" 2> /dev/null || true)
[ -z "$package" ] || notes+=(--note "package=@node-llama-cpp/linux-x64 $package")
commit=$(git -C "$here" describe --always --dirty 2> /dev/null || cat "$build/commit" 2> /dev/null || true)
[ -z "$commit" ] || notes+=(--note "commit=$commit")

mkdir -p "$models"
files=()
make_model() { # file shape type
    [ -e "$1" ] || "$tenon" synth "$1" --shape "$2" --type "$3" > /dev/null
}
only=${ONLY:-}
[ -z "$only" ] || types=
# Shapes of Qwen 3.5 0.8B, Mamba-2 780M, LFM 2 1.2B, eight layers of DeepSeek V2 Lite, and eight layers of Qwen 3 30B-A3B.
make_family() { # name
    case $1 in
        qwen35-0.8b) set -- "$1" --arch qwen35 --shape layers=24,width=1024,heads=8,kv=2,head=256,ffn=3584,vocab=151936 \
            --set ssm.state_size=128 --set ssm.time_step_rank=16 --set ssm.group_count=16 \
            --set rope.dimension_sections=11,11,10,0 ;;
        mamba2-780m) set -- "$1" --arch mamba2 --shape layers=48,width=1536,vocab=50288 --set ssm.state_size=128 --set ssm.time_step_rank=48 ;;
        lfm2-1.2b) set -- "$1" --arch lfm2 --shape layers=16,width=2048,heads=32,kv=8,head=64,ffn=8192,vocab=65536 ;;
        deepseek2-lite) set -- "$1" --arch deepseek2 --shape layers=8,width=2048,heads=16,kv=16,ffn=10944,experts=64,used=6,expert-ffn=1408,vocab=102400 \
            --set attention.kv_lora_rank=512 --set attention.key_length=576 --set attention.value_length=512 --set expert_shared_count=2 \
            --set expert_shared_feed_forward_length=2816 ;;
        a3b) set -- "$1" --arch qwen3moe --shape layers=8,width=2048,heads=32,kv=4,head=128,experts=128,used=8,expert-ffn=768,vocab=64000 ;;
        *) echo "unknown family $1" >&2; exit 2 ;;
    esac
    local file=$models/$1-Q4_K_M.gguf
    shift
    [ -e "$file" ] || "$tenon" synth "$file" "$@" --type Q4_K_M > /dev/null
    files+=("$file")
}
if [ "$only" = families ]; then
    for name in ${FAMILIES:-qwen35-0.8b mamba2-780m lfm2-1.2b deepseek2-lite a3b}; do make_family "$name"; done
fi
for type in $types; do
    make_model "$models/$shape-$type.gguf" "$shape" "$type"
    files+=("$models/$shape-$type.gguf")
done
more=()
if [ "$only" != families ]; then
    make_model "$models/$shape-Q4_K_M.gguf" "$shape" Q4_K_M
    more+=(--sequences "$models/$shape-Q4_K_M.gguf")
fi
[ -z "$quick" ] || more+=(--quick)
[ -z "${CPU_TIME:-}" ] || more+=(--cpu-time)
if [ -z "$only" ]; then
    make_model "$models/tiny.gguf" tiny q8_0
    make_model "$models/100m-f16.gguf" 100m f16
    more+=(--vocabulary "$models/tiny.gguf")
    [ ! -e "$here/../../models/tales.gguf" ] || more+=(--vocabulary "$here/../../models/tales.gguf")
    [ -n "$quick" ] || more+=(--quantize "$models/100m-f16.gguf")
fi

# A megabyte of English and of C.
text=$models/text.txt
while [ ! -s "$text" ] || [ "$(stat -c %s "$text")" -lt 1000000 ]; do
    cat "$here"/../../docs/*.md "$here"/../README.md "$here"/*.c >> "$text"
done

level=$(echo | "$build/peers/ours" | awk '{ print $NF; exit }')
out=${OUT:-$here/../results/$(date -u +%Y-%m-%d)-$level.json}
mkdir -p "$(dirname "$out")"
"$build/peers/compare" --ours "$build/peers/ours" --peer "$build/peers/peer" "$folder" --tenon "$tenon" --out "$out" \
    --text "$text" --threads "${THREADS:-2}" --repeat "${REPEAT:-3}" --budget "${BUDGET:-20}" --limit "${LIMIT:-0}" \
    "${notes[@]}" "${more[@]}" "${files[@]}"
echo
echo "samples: $out"
