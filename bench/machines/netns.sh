#!/bin/bash
# netns.sh BUILD MODEL COMMAND…: two machines of network namespaces, joined by a veth link that tbf shapes, with one rank of an
# MPI job (Open MPI) in each. Needs root and iproute2. Latency is added by the delay transport, because many kernels lack netem.
#
#   bench/machines/netns.sh build model.gguf link           time of sums between the ranks: what tenon plan needs of the link
#   bench/machines/netns.sh build model.gguf compare        measured and predicted speed of both splits, and of one rank
#   bench/machines/netns.sh build model.gguf run ARGUMENTS  tenon with these arguments, as two ranks
#
# RATE (bits per second for tc, 1gbit) and LATENCY (100us) describe the link. compare measures the peaks before and after each of
# REPEAT (3) rounds of runs, because the speed of memory in a virtual machine changes within seconds: a run is compared with the mean
# of the predictions before and after it. READS=1 also prints these peaks.
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

row=(-p 512 -n 64) layer=(-p 2048 -n 32 -c 4096 -b 2048)

# Appends "prompt decode" to files of predictions. Both machines share one memory: a rank is slower while the other one computes, so
# the peaks of rows and of prompts by layers are measured on both at once, those of one rank and of decode by layers, where ranks take
# turns, on one processor alone.
predict() {
    local plan=("$build/bin/tenon" plan "$model" -t 1 --net "delay:$latency:mpi" -ts 1,1) alone
    rm -rf "$work/cache" "$work/alone"
    two_ranks "${plan[@]}" --nodes-split row -c 1024 --measure --json > "$work/row.json"
    two_ranks "${plan[@]}" --nodes-split layer -c 4096 -b 2048 --json > "$work/layer.json"
    alone=$(XDG_CACHE_HOME=$work/alone taskset -c 0 "$build/bin/tenon" devices --measure -t 1 --device cpu --json 2>> "$work/err" | tee "$work/alone.json" > /dev/null
        XDG_CACHE_HOME=$work/alone taskset -c 0 "$build/bin/tenon" plan "$model" -t 1 -c 4096 -b 2048 \
            --nodes "2x1x cpu; net=${link[1]},latency=${link[0]}us,prompt=2048" 2>> "$work/err")
    awk '$2 == "-" { print $(NF - 2), $(NF - 1) }' <<< "$alone" >> "$work/one.plan"
    python3 - "$work" "$(awk '$2 == "layer" { print $(NF - 1) }' <<< "$alone")" << 'END'
import json, sys
work = sys.argv[1]
def predicted(name):
    text = open(f'{work}/{name}.json').read()
    return json.loads(text[text.index('{'):])['predicted']
rows, layers = predicted('row'), predicted('layer')
print(rows['prefill'][0]['tokens_per_second'], rows['decode']['tokens_per_second'], file=open(f'{work}/row.plan', 'a'))
print(layers['prefill'][1]['tokens_per_second'], sys.argv[2], file=open(f'{work}/layer.plan', 'a'))
END
    [ -z "${READS:-}" ] || python3 -c "
import json, sys
both = [d['read'] / 1e9 for d in json.load(open(sys.argv[1]))['devices']]
alone = [d['read'] / 1e9 for d in json.load(open(sys.argv[2]))['devices']]
print('read GB/s: one of two ranks at once', *['%.1f' % r for r in both], 'alone', *['%.1f' % r for r in alone])" \
        "$work/cache/tenon/devices.json" "$work/alone/tenon/devices.json"
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
    local i
    read -r -a link <<< "$(measure_link)"
    echo "$rate, $latency: a sum of 4 bytes takes ${link[0]} us, large ones move ${link[1]} bytes per second"
    predict
    for ((i = 0; i < ${REPEAT:-3}; i++)); do
        rm -rf "$work/cache" # equal shares
        bench one taskset -c 0 "$build/bin/tenon" bench "$model" "${layer[@]}"
        bench layer two_ranks "$build/bin/tenon" bench "$model" "${layer[@]}" --nodes-split layer --net "delay:$latency:mpi"
        bench row two_ranks "$build/bin/tenon" bench "$model" "${row[@]}" --nodes-split row --net "delay:$latency:mpi"
        predict
    done
    python3 - "$work" << 'END'
import statistics, sys
def rows(name):
    return [list(map(float, line.split())) for line in open(f'{sys.argv[1]}/{name}')]
cases = [('one rank, prompt of 2,048', 'one', 0), ('one rank, decode', 'one', 1), ('rows, prompt of 512', 'row', 0),
         ('rows, decode', 'row', 1), ('layers, prompt of 2,048', 'layer', 0), ('layers, decode', 'layer', 1)]
print('| tokens per second | measured | runs | predicted, before and after | measured / predicted | each run |\n|---|--:|---|---|--:|---|')
base, worst = None, 0
for what, name, column in cases:
    runs, plans = [r[column] for r in rows(name + '.txt')], [r[column] for r in rows(name + '.plan')]
    ratios = [2 * run / (a + b) for run, a, b in zip(runs, plans, plans[1:])]
    base = base or runs
    note = f', {statistics.median(r / o for r, o in zip(runs, base)):.2f} of one rank' if what.startswith('layers, prompt') else ''
    ratio = statistics.median(ratios)
    show = lambda values, digits: ', '.join(f'{v:.{digits}f}' for v in values)
    print(f'| {what} | {statistics.median(runs):.1f}{note} | {show(runs, 1)} | {show(plans, 1)} | {ratio:.2f} | {show(ratios, 2)} |')
    worst = max(worst, abs(ratio - 1))
print(f'\nlargest difference {worst:.1%}')
END
}

case $command in
link) machines_make "$rate" && { measure_link; cat "$work/net.txt"; } ;;
compare) machines_make "$rate" && compare ;;
run) machines_make "$rate" && two_ranks "$build/bin/tenon" "$@" ;;
*) echo "unknown command $command"; exit 2 ;;
esac
