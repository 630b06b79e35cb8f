#!/bin/bash
# Several ranks: the same text as one, from processes, devices and an MPI job; refusals.
. "$(dirname "$0")/../support/checks.sh"
model=$work/model.gguf
"$tenon" synth "$model" --shape layers=2,width=64,heads=4,kv=2,head=16,ffn=128,vocab=512,ctx=256 --type f32 --seed 3 > /dev/null || exit 1
# As JSON, because the launcher gives rank 0 a terminal, for which control characters are replaced.
options="run $model -p hello -n 24 -c 128 --temp 0 --repeatable -ctk f32 -ctv f32 -t 1 --json"
# shellcheck disable=SC2086
text() { "$tenon" $options "$@" 2> "$work/err" | grep -E '"text"|"memory_(planned|used)"'; }
fits() { [ "$(grep memory_ <<< "$1" | sed 's/.*: //; s/,//' | sort -u | wc -l)" = 1 ]; }
one=$(text | grep text)
[ -n "$one" ] || failed "one rank writes nothing"
for several in "--ranks 2" "--ranks 3" "--ranks 2 --net delay:20us,10G:shm" "--ranks 2 --nodes-split layer" "--ranks 2 -ts 3,1" \
    "--ranks 3 --share-weights" "--ranks 2 --nodes-split layer --share-weights"; do
    # shellcheck disable=SC2086
    got=$(text $several)
    [ "$(grep text <<< "$got")" = "$one" ] || failed "$several: another text than one rank's"
    fits "$got" || failed "$several: other memory is used than was planned"
done
for type in bf16 q8; do
    got=$(text --ranks 2 --net-type $type)
    [ -n "$(grep text <<< "$got")" ] || failed "--net-type $type: $(cat "$work/err")"
    fits "$got" || failed "--net-type $type: other memory is used than was planned"
    # One rank has all layers but the last: what travels is the state of the tokens.
    [ -n "$(text --ranks 2 --nodes-split layer --net-type $type | grep text)" ] || failed "--net-type $type by layers"
done
check "another type of messages" 2 "net-type" "$tenon" run "$model" -p x -n 1 -c 64 --ranks 2 --net-type f8
got=$(text --split-mode row --device "sim:64M,name=ra" --device "sim:64M,name=rb" --device "sim:64M,name=rc")
[ "$(grep text <<< "$got")" = "$one" ] || failed "--split-mode row: another text"
if command -v mpirun > /dev/null && [ -e "$build/lib/libtenon_net-mpi.so" ]; then
    # shellcheck disable=SC2086
    got=$(mpirun --allow-run-as-root --oversubscribe -n 2 "$tenon" $options 2> "$work/err" | tr -d '\r' | grep '"text"')
    [ "$got" = "$one" ] || failed "mpirun -n 2: another text"
    # Rank 1 has no file.
    other="${options/"$model"/$work/nowhere.gguf}"
    for how in row layer; do
        # shellcheck disable=SC2086
        got=$(mpirun --allow-run-as-root --oversubscribe -n 1 "$tenon" $options --share-weights --nodes-split $how : \
            -n 1 "$tenon" $other --share-weights --nodes-split $how 2> "$work/err" | tr -d '\r' | grep '"text"')
        [ "$got" = "$one" ] || failed "a rank without the file, by ${how}s: $got$(cat "$work/err")"
    done
    # shellcheck disable=SC2086
    check "a rank that was not told to receive weights" '*' 'give all ranks the same options' \
        mpirun --allow-run-as-root --oversubscribe -n 1 "$tenon" $options --share-weights : -n 1 "$tenon" $options
fi
check "an unknown transport" 1 "unknown transport 'pigeons'" "$tenon" run "$model" -p x -n 1 -c 64 --ranks 2 --net pigeons
check "a missing model" 1 "missing.gguf" "$tenon" run "$work/missing.gguf" -p x -n 1 --ranks 2
check "a plan of this machine's CPU, not measured" 1 "tenon devices --measure" env XDG_CACHE_HOME="$work" "$tenon" plan "$model" -c 128 --nodes "2x1x cpu; net=125M,latency=100us,prompt=100"
check "a plan of machines" 0 "Fastest decode that fits: 1 rank" "$tenon" plan "$model" -c 128 --nodes "2x2x h200,link=450G; net=1M,latency=1s"
check "ranks that pay" 0 "Fastest decode that fits: 2 ranks, --nodes-split row" "$tenon" plan "$model" -c 128 --nodes "2x 8G,read=1M,f16=1G,f32=1G,i8=1G,link=450G,link-latency=1ns"
check "nothing fits" 3 "Nothing fits" "$tenon" plan "$model" -c 128 --nodes "2x 300K,read=1M,f16=1G,f32=1G,i8=1G"
check "a wrong description" 1 "MACHINESx" "$tenon" plan "$model" --nodes "2x h200,net=fast"
finish
