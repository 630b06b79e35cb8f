#!/bin/bash
# netns.sh BUILD MODEL COMMAND…: two machines of network namespaces, joined by a veth link that tbf shapes, with one rank of an
# MPI job (Open MPI) in each. Needs root and iproute2. Latency is added by the delay transport, because many kernels lack netem.
#
#   bench/machines/netns.sh build model.gguf link           time of sums between the ranks: what tenon plan needs of the link
#   bench/machines/netns.sh build model.gguf compare        measured and predicted speed of both splits, and of one rank
#   bench/machines/netns.sh build model.gguf run ARGUMENTS  tenon with these arguments, as two ranks
#
# RATE (bits per second for tc, 1gbit) and LATENCY (100us) describe the link. compare measures the peaks before and after REPEAT
# (3) rounds of runs, because the speed of memory in a virtual machine changes within minutes; predictions are the mean of both.
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
export XDG_CACHE_HOME=$work/cache

two_ranks() { (machines_run "$@" 2> "$work/err") || { cat "$work/err" >&2; exit 1; }; }

# Latency in µs and bytes per second, from the least times of sums of 4 bytes and of 4 MiB.
measure_link() {
    two_ranks "$build/bench/net" 2 "delay:$latency:mpi" > "$work/net.txt"
    awk '$1 == 4 { a = $3 } $1 == 4194304 { printf "%.1f %.0f\n", a, $1 / (($3 - a) * 1e-6) }' "$work/net.txt"
}

# Both machines share one memory: a rank is slower while the other one computes. The peaks of a processor alone are those of one
# rank and of decode by layers, where ranks take turns; those of both at once are those of all else.
measure_on() { # processor, folder
    XDG_CACHE_HOME=$2 taskset -c "$1" "$build/bin/tenon" devices --measure -t 1 --device cpu > /dev/null 2>&1
}
measure_peaks() { # number
    measure_on 0 "$work/alone.$1"
    measure_on 1 "$work/other.$1" &
    measure_on 0 "$work/both.$1"
    wait
}
predict() { # peaks, PROMPT, split or - for one rank, arguments…: appends tokens per second of prompt and decode to a file
    local peaks=$1 prompt=$2 split=$3 n
    shift 3
    for n in 1 2; do
        XDG_CACHE_HOME=$work/$peaks.$n taskset -c 0 "$build/bin/tenon" plan "$model" -t 1 "$@" \
            --nodes "2x1x cpu; net=${link[1]},latency=${link[0]}us,prompt=$prompt" 2>> "$work/err" |
            awk -v how="$split" '$2 == how { print $(NF - 2), $(NF - 1) }' >> "$work/$split.$peaks.plan"
    done
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
    local i row=(-p 512 -n 32) layer=(-p 2048 -n 32 -c 4096 -b 2048)
    read -r -a link <<< "$(measure_link)"
    echo "$rate, $latency: a sum of 4 bytes takes ${link[0]} us, large ones move ${link[1]} bytes per second"
    measure_peaks 1
    for ((i = 0; i < ${REPEAT:-3}; i++)); do
        bench one taskset -c 0 "$build/bin/tenon" bench "$model" "${layer[@]}"
        bench layer two_ranks "$build/bin/tenon" bench "$model" "${layer[@]}" --nodes-split layer --net "delay:$latency:mpi"
        bench row two_ranks "$build/bin/tenon" bench "$model" "${row[@]}" --nodes-split row --net "delay:$latency:mpi"
    done
    measure_peaks 2
    predict alone 2048 - -c 4096 -b 2048
    predict alone 2048 layer -c 4096 -b 2048
    predict both 2048 layer -c 4096 -b 2048
    predict both 512 row -c 1024
    python3 - "$work" << 'END'
import statistics, sys
def rows(name):
    return [list(map(float, line.split())) for line in open(f'{sys.argv[1]}/{name}')]
cases = [('one rank, prompt of 2,048', 'one', '-.alone', 0), ('one rank, decode', 'one', '-.alone', 1),
         ('rows, prompt of 512', 'row', 'row.both', 0), ('rows, decode', 'row', 'row.both', 1),
         ('layers, prompt of 2,048', 'layer', 'layer.both', 0), ('layers, decode', 'layer', 'layer.alone', 1)]
print('| tokens per second | measured | runs | predicted | before, after | measured / predicted |\n|---|--:|---|--:|---|--:|')
base, worst = None, 0
for what, runs, plan, column in cases:
    runs, plans = [r[column] for r in rows(runs + '.txt')], [r[column] for r in rows(plan + '.plan')]
    measured, predicted = statistics.median(runs), statistics.mean(plans)
    base = base or measured
    note = f', {measured / base:.2f} of one rank' if what.startswith('layers, prompt') else ''
    print(f'| {what} | {measured:.1f}{note} | {", ".join(f"{r:.1f}" for r in runs)} | {predicted:.1f} '
          f'| {", ".join(f"{p:.1f}" for p in plans)} | {measured / predicted:.2f} |')
    worst = max(worst, abs(measured / predicted - 1))
print(f'\nlargest difference {worst:.1%}')
END
}

case $command in
link) machines_make "$rate" && { measure_link; cat "$work/net.txt"; } ;;
compare) machines_make "$rate" && compare ;;
run) machines_make "$rate" && two_ranks "$build/bin/tenon" "$@" ;;
*) echo "unknown command $command"; exit 2 ;;
esac
