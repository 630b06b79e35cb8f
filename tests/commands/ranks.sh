#!/bin/bash
# Several ranks: the same text as one, from processes, devices and an MPI job; refusals.
. "$(dirname "$0")/../support/checks.sh"
model=$work/model.gguf
"$tenon" synth "$model" --shape layers=2,width=64,heads=4,kv=2,head=16,ffn=128,vocab=512,ctx=256 --type f32 --seed 3 > /dev/null || exit 1
"$tenon" synth "$work/deep.gguf" --shape layers=4,width=64,heads=4,kv=2,head=16,ffn=128,vocab=512,ctx=256 > /dev/null || exit 1
"$tenon" synth "$work/wide.gguf" --no-data --type f32 --shape layers=4,width=256,heads=4,kv=2,head=64,ffn=512,vocab=512,ctx=2048 > /dev/null || exit 1
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
    # Two machines with two ranks each: layers between them, rows within them.
    # shellcheck disable=SC2086
    got=$(mpirun --allow-run-as-root --oversubscribe -n 2 env TENON_MACHINE=a "$tenon" $options --nodes-split layer : \
        -n 2 env TENON_MACHINE=b "$tenon" $options --nodes-split layer 2> "$work/err" | tr -d '\r' | grep -E '"text"|"memory_(planned|used)"')
    [ "$(grep text <<< "$got")" = "$one" ] || failed "two machines of two ranks: another text: $(cat "$work/err")"
    fits "$got" || failed "two machines of two ranks: other memory is used than was planned"
    check "a pipeline across machines" 0 '4 ranks, by layers;' mpirun --allow-run-as-root --oversubscribe \
        -n 2 env TENON_MACHINE=a "$tenon" plan "$work/deep.gguf" -c 128 --nodes-split pipeline : \
        -n 2 env TENON_MACHINE=b "$tenon" plan "$work/deep.gguf" -c 128 --nodes-split pipeline
    check "the plan of two machines" 0 '4 ranks, by layers between 2 machines and rows within them' \
        mpirun --allow-run-as-root --oversubscribe -n 2 env TENON_MACHINE=a "$tenon" plan "$model" -c 128 --nodes-split layer : \
        -n 2 env TENON_MACHINE=b "$tenon" plan "$model" -c 128 --nodes-split layer
    check "machines with different numbers of ranks" 0 'every rank has layers of its own' \
        mpirun --allow-run-as-root --oversubscribe -n 1 env TENON_MACHINE=a "$tenon" plan "$work/deep.gguf" -c 128 --nodes-split layer : \
        -n 2 env TENON_MACHINE=b "$tenon" plan "$work/deep.gguf" -c 128 --nodes-split layer
    too_big=(run "$model" -p x -n 1 -c 128 -ngl 99 -t 1 --nodes-split row -ts 1,1)
    check "a rank that does not fit says what it needs" "[1-9]*" 'tiny of .*: rank 1 needs [0-9]* bytes, 102400 are free; try' \
        mpirun --allow-run-as-root --oversubscribe -n 1 "$tenon" "${too_big[@]}" --device sim:64M,name=big : -n 1 "$tenon" "${too_big[@]}" --device sim:100K,name=tiny
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
# The plan of every rank, without running: what the ranks take when they run.
plan_options="-c 128 --repeatable -ctk f32 -ctv f32 -t 1"
run_ranks() { # options…: what rank 0 of a run plans
    # shellcheck disable=SC2086
    "$tenon" $options "$@" 2> "$work/err" | sed -n 's/.*"memory_planned": \([0-9]*\).*/\1/p'
}
for several in "--ranks 2" "--ranks 3 --nodes-split row" "--ranks 2 --nodes-split layer" "--ranks 2 -ts 3,1"; do
    # shellcheck disable=SC2086
    "$tenon" plan "$model" $plan_options $several --json > "$work/plan.json" 2> "$work/err" || failed "plan $several: $(cat "$work/err")"
    # shellcheck disable=SC2086
    read -r n planned <<< "$(python3 -c 'import json, sys; r = json.load(sys.stdin)["ranks"]; print(len(r), sum(d["needed"] for d in r[0]["devices"]))' < "$work/plan.json")"
    # shellcheck disable=SC2086
    taken=$(run_ranks $several)
    [ -n "$taken" ] && [ "$planned" = "$taken" ] || failed "plan $several: rank 0 needs $planned, a run plans $taken"
    [ "$n" = "$(sed 's/--ranks \([0-9]\).*/\1/' <<< "$several")" ] || failed "plan $several: $n ranks"
done
check "a plan of devices" 0 '2 ranks, by rows' "$tenon" plan "$model" -c 128 --split-mode row --device sim:64M,name=pa --device sim:64M,name=pb
check "a device of one rank is too small" 3 'pb of .*rank 1 needs' "$tenon" plan "$model" -c 128 -ngl 99 --split-mode row -ts 1,1 --device sim:64M,name=pa --device sim:100K,name=pb
# Without shares the larger device takes what the smaller one cannot; the devices' rates decide where both have room.
check "a small device has a small share" '?' 'Shares of the ranks: 6[0-9]% on rank 0' "$tenon" plan "$model" -c 128 -ngl 99 --split-mode row --device sim:64M,name=pa --device sim:200K,name=pb
check "a fast device has a large share" 0 'Shares of the ranks: 75% on rank 0' "$tenon" plan "$model" -c 128 -ngl 99 --split-mode row --device sim:64M,read=900G,name=fa --device sim:64M,read=300G,name=fb
check "ranks that do not fit say what each of them needs" 1 'does not fit its ranks: tiny of .*rank 0 needs [0-9]* bytes, rank 1 needs [0-9]* bytes, [0-9]* together, 102400 are free' \
    "$tenon" run "$model" -p x -n 1 -c 128 -ngl 99 -t 1 --ranks 2 --device sim:100K,name=tiny
check "a plan file of several ranks" 1 'plan files are of one rank' "$tenon" plan "$model" -c 128 --ranks 2 --save "$work/ranks.plan"
check "no such rank" 2 'ranks' "$tenon" plan "$model" -c 128 --ranks 65
check "speculation with ranks" 1 'not supported with several ranks' "$tenon" run "$model" -p x -n 1 -c 64 --ranks 2 --spec-type ngram
if command -v mpirun > /dev/null && [ -e "$build/lib/libtenon_net-mpi.so" ]; then
    check "the plan of a job's ranks" 0 '3 ranks, by rows' mpirun --allow-run-as-root --oversubscribe -n 3 "$tenon" plan "$model" -c 128
    [ "$(grep -c 'It fits' "$work/out")" = 1 ] || failed "mpirun tenon plan: not one verdict"
    check "a job whose ranks are not measured" 0 'no speed, the device of rank 0 is not measured' \
        env XDG_CACHE_HOME="$work/unmeasured" mpirun --allow-run-as-root --oversubscribe -n 2 "$tenon" plan "$model" -c 128 -t 1
    # With the same peaks, and the links that the ranks have measured, --nodes predicts what they do.
    mkdir -p "$work/measured/tenon"
    "$tenon" devices --json | python3 -c "
import json, sys
about = json.load(sys.stdin)
cpu = next(d for d in about['devices'] if d['name'] == 'cpu')
json.dump({'format': 4, 'devices': [dict(
    name='cpu', description=cpu['description'], version='$("$tenon" version | awk 'NR == 1 { print $2 }')', kernels=about['cpu']['level'], threads=1,
    read=4e10, read_mapped=4e10, move=1e11, ramp=0, attention_fixed=0.1, attention_many=1e11, link=0, run=0, multiply={'f32': [2e10] + [2e11] * 4},
    experts=[1] * 5, launch=[1e-6] * 3, attention_keys=[4e7, 3e7, 2e7])]}, open('$work/measured/tenon/devices.json', 'w'))"
    export XDG_CACHE_HOME=$work/measured
    for how in row layer; do
        mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 "$tenon" plan "$work/wide.gguf" -c 2048 -t 1 --nodes-split $how --json \
            > "$work/job.json" 2> "$work/err" < /dev/null || failed "mpirun tenon plan, by ${how}s: $(cat "$work/err")"
        read -r prefill decode rate latency <<< "$(python3 -c "
import json
text = open('$work/job.json').read()
p = json.loads(text[text.index('{'):])['predicted']
print('%.4g %.4g' % (p['prefill'][0]['tokens_per_second'], p['decode']['tokens_per_second']), p['link']['bytes_per_second'], p['link']['latency'])")"
        check "the prediction of a job, by ${how}s" 0 "2 *$how .* ${prefill/+/[+]} +${decode/+/[+]} " "$tenon" plan "$work/wide.gguf" -c 2048 -t 1 \
            --nodes "2x cpu; link=$rate,link-latency=$latency,prompt=512"
    done
    unset XDG_CACHE_HOME
fi
# --numa isolate: a memory node for each rank. The nodes are made up, one for each processor.
if [ "$(nproc)" -ge 2 ] && [ "$(cat /sys/devices/system/cpu/online)" != 0 ]; then
    for node in 0 1; do
        mkdir -p "$work/sys/devices/system/node/node$node"
        echo $node > "$work/sys/devices/system/node/node$node/cpulist"
    done
    TENON_SYSFS=$work/sys "$tenon" serve -m "$model" --port 0 -c 128 --ranks 2 --numa isolate > /dev/null 2> "$work/err" &
    server=$!
    for _ in $(seq 100); do grep -q 'listening at' "$work/err" && break; sleep 0.1; done
    processors() { # pid: of all its threads, as the kernel has it
        for task in /proc/"$1"/task/*; do sed -n 's/^Cpus_allowed_list:\t//p' "$task/status"; done | sort | uniq -c | sort -rn | awk '{ print $2; exit }'
    }
    same "processors of rank 0" 0 "$(processors $server)"
    same "processors of rank 1" 1 "$(processors "$(cat /proc/$server/task/*/children | tr -d ' ')")"
    kill -INT $server
    wait $server 2> /dev/null
    got=$(TENON_SYSFS=$work/sys text --ranks 2 --numa isolate)
    [ "$(grep text <<< "$got")" = "$one" ] || failed "--numa isolate with two ranks: another text"
fi
# The threads that move messages sleep while a server is idle.
idle_ticks() { # pids: clock ticks of all their threads but the first
    local pid task
    for pid in "$@"; do
        for task in /proc/"$pid"/task/*; do [ "${task##*/}" = "$pid" ] || sed 's/.*) //' "$task/stat"; done
    done | awk '{ n += $12 + $13 } END { print n + 0 }'
}
if command -v mpirun > /dev/null && [ -e "$build/lib/libtenon_net-mpi.so" ]; then
    mpirun --allow-run-as-root --oversubscribe -n 2 "$tenon" serve -m "$model" --port 0 -c 128 -t 1 > "$work/out" 2> "$work/err" < /dev/null &
    job=$!
    for _ in $(seq 200); do
        grep -q 'listening at' "$work/out" "$work/err" && break
        sleep 0.1
    done
    # shellcheck disable=SC2046
    ranks=$(for pid in $(cat /proc/$job/task/*/children); do [ "$(cat "/proc/$pid/comm")" = tenon ] && echo "$pid"; done)
    # shellcheck disable=SC2086
    before=$(idle_ticks $ranks)
    sleep 1
    # shellcheck disable=SC2086
    spent=$(($(idle_ticks $ranks) - before))
    [ "$(wc -w <<< "$ranks")" = 2 ] || failed "mpirun tenon serve: not two ranks: $ranks"
    [ "$spent" -lt 40 ] || failed "threads of idle ranks took $spent hundredths of a second in one"
    kill -INT $job
    wait $job 2> /dev/null
fi
check "an unknown transport" 1 "unknown transport 'pigeons'" "$tenon" run "$model" -p x -n 1 -c 64 --ranks 2 --net pigeons
check "a missing model" 1 "missing.gguf" "$tenon" run "$work/missing.gguf" -p x -n 1 --ranks 2
check "a plan of this machine's CPU, not measured" 1 "tenon devices --measure" env XDG_CACHE_HOME="$work" "$tenon" plan "$model" -c 128 --nodes "2x1x cpu; net=125M,latency=100us,prompt=100"
check "a plan of machines" 0 "Fastest decode that fits: 1 rank" "$tenon" plan "$model" -c 128 --nodes "2x2x h200,link=450G; net=1M,latency=1s"
check "layers between machines, rows within them" 0 'Fastest decode that fits: 4 ranks, --nodes-split layer' "$tenon" plan "$model" -c 128 --nodes "2x2x 475K,read=1M,f16=1G,f32=1G,i8=1G,link=450G; net=1G"
check "ranks that pay" 0 "Fastest decode that fits: 2 ranks, --nodes-split row" "$tenon" plan "$model" -c 128 --nodes "2x 8G,read=1M,f16=1G,f32=1G,i8=1G,link=450G,link-latency=1ns"
check "nothing fits" 3 "Nothing fits" "$tenon" plan "$model" -c 128 --nodes "2x 300K,read=1M,f16=1G,f32=1G,i8=1G"
check "a wrong description" 1 "MACHINESx" "$tenon" plan "$model" --nodes "2x h200,net=fast"
finish
