#!/bin/bash
# netns.sh BUILD MODEL COMMAND…: two machines of network namespaces, joined by a veth link that tbf shapes, with one rank of an
# MPI job (Open MPI) in each. Needs root and iproute2. Latency is added by the delay transport, because many kernels lack netem.
#
#   bench/machines/netns.sh build model.gguf link           time of sums between the ranks: what tenon plan needs of the link
#   bench/machines/netns.sh build model.gguf peaks          the speed of both machines, measured at the same time: they share one memory
#   bench/machines/netns.sh build model.gguf compare        measured and predicted speed of both splits, and of one rank
#   bench/machines/netns.sh build model.gguf run ARGUMENTS  tenon with these arguments, as two ranks
#
# RATE (bits per second for tc, 1gbit) and LATENCY (100us) describe the link. Peaks are kept in $XDG_CACHE_HOME.
set -u
build=$(realpath "${1:?folder of the build}") model=$(realpath "${2:?model}") command=${3:?command}
shift 3
rate=${RATE:-1gbit} latency=${LATENCY:-100us}
work=$(mktemp -d)
. "$(dirname "$0")/../../tests/fault/network.sh"
end() {
    machines_end
    rm -rf "$work"
}
trap end EXIT
export XDG_CACHE_HOME=${XDG_CACHE_HOME:-$work/cache}

two_ranks() { (machines_run "$@" 2> "$work/err") || { cat "$work/err" >&2; exit 1; }; }

# Latency in µs and bytes per second, from the least times of sums of 4 bytes and of 4 MiB.
measure_link() {
    two_ranks "$build/bench/net" 2 "delay:$latency:mpi" > "$work/net.txt"
    awk '$1 == 4 { a = $3 } $1 == 4194304 { printf "%.1f %.0f\n", a, $1 / (($3 - a) * 1e-6) }' "$work/net.txt"
}

measure_peaks() {
    XDG_CACHE_HOME=$work/other taskset -c 1 "$build/bin/tenon" devices --measure -t 1 --device cpu > /dev/null 2>&1 &
    taskset -c 0 "$build/bin/tenon" devices --measure -t 1 --device cpu 2> /dev/null | grep -v '^ *$'
    wait
}

# A run of tenon bench: prompt and decode in tokens per second, in "$work/NAME.txt".
bench() { # name, program and arguments…
    local name=$1
    shift
    "$@" -r 1 -t 1 --json > "$work/$name.json" 2> "$work/err" || { cat "$work/err" >&2; exit 1; }
    python3 -c "
import json, sys
text = open(sys.argv[1]).read()
print(*[r['median'] for r in json.loads(text[text.index('{'):])['results']])" "$work/$name.json" >> "$work/$name.txt"
}

compare() {
    local i link row layer
    read -r -a link <<< "$(measure_link)"
    echo "link $rate, $latency: ${link[0]} us and ${link[1]} bytes per second between the ranks"
    plan() { # peaks belong to one processor
        taskset -c 0 "$build/bin/tenon" plan "$model" -t 1 "$@" --nodes "2x1x cpu; net=${link[1]},latency=${link[0]}us,prompt=$prompt" 2>> "$work/err"
    }
    row=(-p 512 -n 32) layer=(-p 2048 -n 32 -c 4096 -b 2048)
    for ((i = 0; i < ${REPEAT:-3}; i++)); do
        bench one "$build/bin/tenon" bench "$model" "${layer[@]}"
        bench layer two_ranks "$build/bin/tenon" bench "$model" "${layer[@]}" --nodes-split layer --net "delay:$latency:mpi"
        bench row two_ranks "$build/bin/tenon" bench "$model" "${row[@]}" --nodes-split row --net "delay:$latency:mpi"
    done
    prompt=512 plan -c 1024 | awk '$2 == "row" { print $(NF - 2), $(NF - 1) }' > "$work/row.plan"
    prompt=2048 plan -c 4096 -b 2048 | awk '$2 == "layer" { print $(NF - 2), $(NF - 1) }' > "$work/layer.plan"
    prompt=2048 plan -c 4096 -b 2048 | awk '$1 == 1 { print $(NF - 2), $(NF - 1) }' > "$work/one.plan"
    python3 - "$work" << 'END'
import statistics, sys
def rows(name):
    return [list(map(float, line.split())) for line in open(f'{sys.argv[1]}/{name}')]
base = None
for name in 'one', 'row', 'layer':
    runs = rows(name + '.txt')
    for i, what in enumerate(('prompt', 'decode')):
        measured, predicted = statistics.median(r[i] for r in runs), rows(name + '.plan')[0][i]
        base = base or measured
        note = f', {measured / base:.2f} of one rank' if (name, what) == ('layer', 'prompt') else ''
        print(f'{name:6} {what:7} measured {measured:7.1f} predicted {predicted:7.1f} tokens/s, {measured / predicted - 1:+.1%}{note}'
              f'   ({", ".join(f"{r[i]:.1f}" for r in runs)})')
END
}

case $command in
link) machines_make "$rate" && { measure_link; cat "$work/net.txt"; } ;;
peaks) measure_peaks ;;
compare) machines_make "$rate" && compare ;;
run) machines_make "$rate" && two_ranks "$build/bin/tenon" "$@" ;;
*) echo "unknown command $command"; exit 2 ;;
esac
