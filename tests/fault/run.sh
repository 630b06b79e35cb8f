#!/bin/bash
# run.sh BUILD [PART…]: the tenon program with injected faults. It must always end by itself with a documented exit code,
# print the reason on standard error and leave no partial file. Parts: memory device exact reads full kill change clock server tiers ranks machines replicas replica_machines.
set -u
build=$(cd "$1" && pwd)
shift
parts=${*:-memory device exact reads full kill change clock server tiers ranks machines replicas replica_machines}
tenon=$build/bin/tenon
# $FAULT_MPI=mpich: the ranks of jobs use MPICH, with a module compiled for it, instead of Open MPI.
mpi=${FAULT_MPI:-openmpi}
preload=$build/tests/libfault_preload.so
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
server_pid=
mounted=
cleanup() {
    [ -z "$server_pid" ] || kill -KILL "$server_pid" 2> /dev/null
    [ -z "$mounted" ] || umount "$mounted"
    [ -z "${machines_agent:-}" ] || machines_end
    [ -z "${rm_pids:-}" ] || rm_end
    rm -rf "$work"
}
trap cleanup EXIT
failures=0 checks=0
fail() {
    failures=$((failures + 1))
    echo "FAIL: $*"
    [ ! -s "$work/err" ] || tail -n 3 "$work/err" | sed 's/^/      /'
}

# Findings of sanitizers must show; their allocator must not fail.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} LC_ALL=C NO_COLOR=1
sanitized=
grep -q __asan_init "$tenon" && sanitized=1

cd "$work" || exit 1
if [ "$mpi" = mpich ]; then
    mpi_run=(mpirun.mpich)
    export TENON_NET_MODULE=$work/mpich/libtenon_net-mpi.so
    mkdir mpich && mpicc.mpich -O2 -shared -fPIC -I"$here/../../include" "$here"/../../src/net/mpi/*.c -o "$TENON_NET_MODULE" -L"$build/lib" -ltenon || exit 1
else
    mpi_run=("$(command -v mpirun.openmpi || command -v mpirun || true)" --allow-run-as-root --oversubscribe)
fi
mpi_can() { command -v "${mpi_run[0]}" > /dev/null && [ -e "${TENON_NET_MODULE:-$build/lib/libtenon_net-mpi.so}" ]; }
export XDG_CACHE_HOME=$work/cache
"$tenon" synth model.gguf --shape layers=2,width=64,heads=2,kv=1,head=32,ffn=128,vocab=512,ctx=256 --type f16 > /dev/null || exit 1
"$tenon" synth big.gguf --shape 15m --type f16 > /dev/null || exit 1
# With exact effort, planning this one takes long enough for the cache.
"$tenon" synth many.gguf --no-data --type q8_0 --arch qwen3moe \
    --shape layers=61,width=512,heads=8,kv=2,head=64,experts=64,used=8,expert-ffn=128,vocab=2000 > /dev/null || exit 1
many="plan many.gguf -dev cpu -c 512 --effort exact"
"$tenon" split big.gguf parts.gguf --max-size 8M > /dev/null || exit 1
printf 'id,lower,upper,size\n0,0,3,16\n1,2,5,32\n' > items.csv
echo '{"messages":[{"role":"user","content":"hi"}]}' > messages.json
echo '{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}' > template.jinja
for _ in 1 2 3 4; do echo 'Once upon a time there was a tenon.'; done > text.txt
for _ in $(seq 2000); do cat text.txt; done > long.txt
mkdir out
"$tenon" plan model.gguf -c 128 --save saved.plan > /dev/null || exit 1
# shellcheck disable=SC2086
"$tenon" $many > /dev/null || exit 1 # its plan is in the cache from here on

# Every command; %O is its output file.
commands=(
    "run model.gguf -p hello -n 8 -c 128"
    "inspect model.gguf"
    "inspect model.gguf --json"
    "tokenize model.gguf hello"
    "logits model.gguf --tokens 1,2,3,4 --out %O"
    "pack items.csv"
    "quantize model.gguf %O q8_0"
    "merge parts-00001-of-*.gguf %O"
    "split model.gguf %O --max-size 16K"
    "synth %O --shape tiny --type q8_0"
    "plan model.gguf -c 128"
    "plan model.gguf -c 128 --html %O"
    "plan model.gguf -c 128 --save %O"
    "plan model.gguf -c 128 --plan saved.plan"
    "plan model.gguf -c 128 -dev sim:64M,name=gpu --budget gpu=2M,cpu=1G"
    "run model.gguf -p hello -n 8 -c 128 -dev sim:64M,name=gpu --budget gpu=2M,cpu=1G --prefer context"
    "$many"
    "detokenize model.gguf 300 301 302"
    "render template.jinja messages.json"
    "embed model.gguf -p hello -c 64"
    "perplexity model.gguf -f text.txt -c 16"
    "bench model.gguf -p 16 -n 4 -r 1"
    "devices"
    "help run"
    "version"
)
# Hugging Face folders are part of the golden data.
golden=${TENON_GOLDEN:-$here/../../../shared/golden}
[ ! -d "$golden/hf/llama3-rope" ] || commands+=("convert $golden/hf/llama3-rope %O")
[ -z "${TENON_FAULT_COMMANDS:-}" ] || mapfile -t commands <<< "$TENON_FAULT_COMMANDS"

# Runs a command with additions to its environment; sets $code to its exit code.
run_command() { # command [VARIABLE=VALUE…]
    local line=${1//%O/out/file.gguf}
    shift
    rm -rf out/*
    # shellcheck disable=SC2086
    timeout -s KILL 120 env "$@" "$tenon" $line > stdout 2> err < /dev/null
    code=$?
    checks=$((checks + 1))
}
# After a fault: a documented exit code, a message, and no partial file.
expect_clean_failure() { # description
    case $code in
    0) return ;;
    1 | 2 | 130 | 143) [ -s err ] || fail "$1: exit code $code without a message" ;;
    *) fail "$1: exit code $code" ;;
    esac
    local left
    left=$(ls out)
    [ -z "$left" ] || fail "$1: left behind: $left"
}

part_ranks() {
    # shellcheck source=tests/fault/ranks.sh
    . "$here/ranks.sh"
}

part_machines() {
    # shellcheck source=tests/fault/machines.sh
    . "$here/machines.sh"
}

part_replica_machines() {
    # shellcheck source=tests/fault/replica_machines.sh
    . "$here/replica_machines.sh"
}

part_replicas() {
    # shellcheck source=tests/fault/replicas.sh
    . "$here/replicas.sh"
}

part_memory() {
    local line total n step
    if [ -n "$sanitized" ]; then echo "memory: skipped, the sanitizer has its own allocator"; return; fi
    for line in "${commands[@]}"; do
        run_command "$line" LD_PRELOAD="$preload" FAULT_COUNT="$work/count"
        [ $code = 0 ] || { fail "'$line' without a fault: exit code $code"; continue; }
        total=$(cat "$work/count")
        step=$((total / ${TENON_FAULT_POINTS:-60} + 1))
        for ((n = 1; n <= total; n += n < 40 ? 1 : step)); do
            run_command "$line" LD_PRELOAD="$preload" FAULT_MALLOC="$n"
            expect_clean_failure "'$line', allocation $n of $total failing"
        done
        for ((n = 1; n <= total; n += 5 * step)); do
            run_command "$line" LD_PRELOAD="$preload" FAULT_MALLOC="$n" FAULT_MALLOC_ALL=1
            expect_clean_failure "'$line', no memory from allocation $n on"
        done
    done
}

# On a simulated device of exactly the planned size the command works; after each failure of the device it ends cleanly.
part_device() {
    local line kind n bytes used
    bytes=$("$tenon" plan model.gguf -c 128 -ngl 99 -dev sim:64M --json | sed -n 's/.*"needed": \([0-9]*\).*/\1/p' | head -n 1)
    line="run model.gguf -p hello -n 8 -c 128 -ngl 99 -dev sim:$bytes"
    run_command "$line"
    [ $code = 0 ] || fail "'$line', the planned size: exit code $code"
    for line in "$line" "embed model.gguf -p hello -c 64 -ngl 99 -dev sim:64M" "perplexity model.gguf -f text.txt -c 16 -ngl 99 -dev sim:64M"; do
        for kind in alloc copy lost; do
            used=1
            for ((n = 1; used && n < 2000; n += n < 12 ? 1 : 7)); do
                run_command "$line,fail=$kind:$n"
                expect_clean_failure "'$line', $kind $n failing"
                [ $code != 0 ] || used=
            done
            [ $n -gt 2 ] || fail "'$line': no $kind fails"
        done
    done
}

# Simulated devices of exactly the planned size serve prompts of many sizes and a chat whose context overflows, which shifts cells; the
# results are those of a device with ample memory. Then the device fails. test_fault and test_plan_law try eval and states.
part_exact() {
    local settings layers options bytes line n kind exact
    local texts=() results
    # A micro-batch has tensors of 1 MiB, and so has the cache, which is larger than the mapped file: that counts in unified memory.
    "$tenon" synth wide.gguf --shape layers=3,width=256,heads=4,kv=2,head=64,ffn=2048,vocab=512,ctx=2048 --type q8_0 > /dev/null || exit 1
    for n in 1 2 24 33 100 200 500; do texts+=("$(head -c "$n" long.txt | tr ' \n' '__')"); done
    for settings in "" ,max-alloc=1M ,max-alloc=1152K ,max-alloc=2M ,offload=1 ,offload=1,max-alloc=1M ,report=0 ,report=0,max-alloc=1M \
        ,uma=1 ,uma=1,max-alloc=1M ,uma=1,offload=1; do
        for layers in 99 2; do
            options="-c 2048 -ub 128 -ctk f32 -ngl $layers"
            # shellcheck disable=SC2086
            "$tenon" plan wide.gguf $options -dev "sim:1G$settings" --json > plan.json 2> err ||
                { fail "plan with '$settings', $layers layers"; continue; }
            # Of unified memory the host has a part.
            case $settings in *uma*) n=2 ;; *) n=1 ;; esac
            bytes=$(($(sed -n 's/.*"needed": \([0-9]*\).*/\1/p' plan.json | head -n $n | paste -sd+)))
            results=()
            for exact in 1G $bytes; do
                line="--temp 0 $options -dev sim:$exact$settings"
                : > "results.$exact"
                for n in "${texts[@]}"; do
                    run_command "run wide.gguf -p $n -n 6 --ignore-eos $line"
                    [ $code = 0 ] || fail "a prompt of ${#n} characters, '$line': exit code $code"
                    cat stdout >> "results.$exact"
                done
                # shellcheck disable=SC2086
                for n in $(seq 12); do head -c 700 long.txt | tr '\n' ' '; echo; done |
                    timeout -s KILL 120 "$tenon" chat wide.gguf -n 24 --seed 1 $line >> "results.$exact" 2> err ||
                    fail "a chat, '$line': exit code $?"
                checks=$((checks + 1))
                results+=("results.$exact")
            done
            cmp -s "${results[@]}" || fail "'$line' has other results than a device with ample memory"
            for kind in alloc copy lost; do
                for n in 1 2 9 40; do
                    run_command "run wide.gguf -p hello -n 8 $line,fail=$kind:$n"
                    expect_clean_failure "'$line', $kind $n failing"
                    [ $n != 1 ] || [ $code = 1 ] || fail "'$line': no $kind fails"
                done
            done
        done
    done
}

part_reads() {
    local line
    for line in "${commands[@]}"; do
        case $line in devices* | run* | bench* | plan* | perplexity*) continue ;; esac # print speeds and memory, which vary
        run_command "$line"
        [ $code = 0 ] || { fail "'$line' without a fault: exit code $code"; continue; }
        cp stdout expected
        rm -rf expected.out
        cp -r out expected.out
        run_command "$line" LD_PRELOAD="$preload" FAULT_SHORT=1000 FAULT_EINTR=7
        [ $code = 0 ] || fail "'$line' with short and interrupted reads and writes: exit code $code"
        diff -r out expected.out > /dev/null || fail "'$line' with short reads writes another file"
        sed -i 's/[0-9.]* m\?s\b//g' stdout expected
        cmp -s stdout expected || fail "'$line' with short reads prints something else"
    done
}

part_full() {
    local line space
    for line in "${commands[@]}"; do
        case $line in *%O*) ;; *) continue ;; esac
        for space in 0 1 100 5000 30000; do
            run_command "$line" LD_PRELOAD="$preload" FAULT_SPACE=$space
            [ $code != 0 ] || [ -n "$(ls out)" ] || fail "'$line' with $space bytes of disk: success without a file"
            expect_clean_failure "'$line' with $space bytes of disk"
        done
        (ulimit -f 8; run_command "$line"; exit $code)
        code=$?
        expect_clean_failure "'$line' with files of at most 8 KiB"
    done
    # A plan that cannot be kept in the cache is used all the same, and nothing is left of it.
    for space in 0 1 5000 100000; do
        run_command "$many" LD_PRELOAD="$preload" FAULT_SPACE=$space XDG_CACHE_HOME="$work/full"
        [ $code = 0 ] || fail "'$many' with $space bytes of disk for the cache: exit code $code"
        [ -z "$(find full -type f 2> /dev/null)" ] || fail "'$many' with $space bytes of disk left $(find full -type f)"
    done
    run_command "inspect model.gguf"
    "$tenon" inspect model.gguf > /dev/full 2> err && fail "inspect into a full disk: success"
    "$tenon" help --markdown > /dev/full 2> err && fail "help into a full disk: success"
    if [ "$(id -u)" = 0 ] && mkdir -p small && mount -t tmpfs -o size=256k tmpfs small 2> /dev/null; then
        mounted=$work/small
        for line in "quantize big.gguf small/file.gguf q8_0" "merge parts-00001-of-*.gguf small/file.gguf" "synth small/file.gguf --shape 15m"; do
            # shellcheck disable=SC2086
            "$tenon" $line > stdout 2> err
            code=$? checks=$((checks + 1))
            [ $code = 1 ] || fail "'$line' on a full disk: exit code $code"
            [ -z "$(ls small)" ] || fail "'$line' on a full disk left $(ls small)"
        done
        umount small && mounted=
    else
        echo "full: cannot mount a small disk (not root); the rest ran"
    fi
}

part_kill() {
    local line signal delay long=(
        "run big.gguf -p hello -n 100000 -c 4096"
        "quantize big.gguf %O Q2_K"
        "synth %O --shape 100m --type Q3_K_M"
        "merge parts-00001-of-*.gguf %O"
        "logits big.gguf --out %O --tokens $(seq -s, 1 400)"
        "serve big.gguf --port 0"
        "bench big.gguf -p 512 -n 512 -r 50"
        "perplexity big.gguf -f long.txt"
        "embed big.gguf -f long.txt"
        "plan big.gguf --html %O"
    )
    for line in "${long[@]}"; do
        for signal in INT TERM; do
            for delay in 0.005 0.05 0.3 0.8; do
                rm -rf out/*
                # The shell starts background jobs with SIGINT ignored; env restores the default until the program sets its handler.
                # shellcheck disable=SC2086
                env --default-signal=INT "$tenon" ${line//%O/out/file.gguf} > stdout 2> err < /dev/null &
                local pid=$! waited=0
                sleep $delay
                kill -$signal $pid 2> /dev/null
                while kill -0 $pid 2> /dev/null && [ $waited -lt 300 ]; do sleep 0.1; waited=$((waited + 1)); done
                kill -KILL $pid 2> /dev/null && fail "'$line' still runs 30 s after SIG$signal at $delay s"
                wait $pid 2> /dev/null
                code=$? checks=$((checks + 1))
                case $code in
                0 | 130 | 143) ;;
                *) fail "'$line', SIG$signal after $delay s: exit code $code" ;;
                esac
                [ $code = 0 ] || [ -z "$(ls out)" ] || fail "'$line', SIG$signal after $delay s left $(ls out)"
            done
        done
    done
}

part_change() {
    local size n
    size=$(stat -c %s model.gguf)
    # Truncated in the header, the metadata, the tensor table and the data.
    for n in 0 3 8 24 100 1000 $((size / 3)) $((size / 2)) $((size - 1)); do
        head -c "$n" model.gguf > short.gguf
        for line in "run short.gguf -p hello -n 4" "inspect short.gguf" "quantize short.gguf %O q8_0" "tokenize short.gguf hello"; do
            run_command "$line"
            [ $code != 0 ] || [ "${line%% *}" = inspect ] || [ "${line%% *}" = tokenize ] || fail "'$line' at $n bytes: success"
            expect_clean_failure "'$line', truncated to $n bytes"
        done
    done
    # Changed during use: the command must end by itself.
    for n in $(seq 1 8); do
        cp big.gguf change.gguf
        "$tenon" quantize change.gguf out/file.gguf Q4_K_M > stdout 2> err &
        local pid=$!
        sleep 0.0$n
        : > change.gguf
        wait $pid
        code=$? checks=$((checks + 1))
        [ $code = 0 ] || [ $code = 1 ] || fail "quantize of a file that is emptied meanwhile: exit code $code"
        [ $code = 0 ] || [ -z "$(ls out)" ] || fail "quantize of a file that is emptied meanwhile left $(ls out)"
        rm -f out/*
    done
    rm -f model2.gguf
    mkdir -p folder.gguf
    for line in "run folder.gguf -p x" "run /dev/null -p x" "inspect missing.gguf" "run text.txt -p x"; do
        run_command "$line"
        [ $code = 1 ] || [ $code = 2 ] || fail "'$line': exit code $code"
    done
}

part_clock() {
    run_command "run model.gguf -p hello -n 16 -c 128 --temp 0"
    cp stdout expected
    run_command "run model.gguf -p hello -n 16 -c 128 --temp 0" LD_PRELOAD="$preload" FAULT_CLOCK=1
    [ $code = 0 ] || fail "run while the clock jumps: exit code $code"
    cmp -s stdout expected || fail "run while the clock jumps prints another text"
    run_command "pack items.csv" LD_PRELOAD="$preload" FAULT_CLOCK=1
    [ $code = 0 ] || fail "pack while the clock jumps: exit code $code"
}

# Starts a server with the given environment and sets $url; $url is empty when it did not start.
server_options=
start_server() {
    # shellcheck disable=SC2086
    env "$@" "$tenon" serve model.gguf --port 0 -c 256 $server_options > stdout 2> err &
    server_pid=$!
    url=
    for _ in $(seq 100); do
        url=$(sed -n 's/.*listening at \(http:[^ ]*\).*/\1/p' err)
        [ -n "$url" ] && curl -sf -o /dev/null --max-time 1 "$url/health" && return 0
        kill -0 $server_pid 2> /dev/null || break
        sleep 0.1
    done
    return 1
}
stop_server() { # description
    kill -TERM $server_pid 2> /dev/null
    wait $server_pid 2> /dev/null
    code=$? checks=$((checks + 1))
    server_pid=
    # libevent 2.1.12 frees headers that it failed to allocate; callers cannot prevent that.
    if [ $code = 139 ] && grep -q 'evhttp_request_new: calloc' err; then
        known=$((known + 1))
        return
    fi
    case $code in 0 | 1 | 130 | 143) ;; *) fail "$1: the server's exit code is $code" ;; esac
}
body='{"prompt":"hello","n_predict":4,"max_tokens":4,"messages":[{"role":"user","content":"hi"}]}'
ask_server() { # path
    curl -s -o answer -w '%{http_code}' --max-time 20 -H 'Content-Type: application/json' -d "$body" "$url$1"
}

part_server() {
    local total n step answered known=0
    command -v curl > /dev/null || { echo "server: skipped, no curl"; return; }
    start_server FAULT_CLOCK=1 LD_PRELOAD="$preload" || { fail "the server does not start while the clock jumps"; return; }
    for path in /v1/completions /v1/chat/completions /completion; do
        [ "$(ask_server $path)" = 200 ] || fail "$path while the clock jumps: $(head -c 200 answer)"
    done
    stop_server "while the clock jumps"
    [ -z "$sanitized" ] || return
    start_server LD_PRELOAD="$preload" FAULT_COUNT="$work/count" || { fail "the server does not start"; return; }
    [ "$(ask_server /v1/completions)" = 200 ] || fail "completions: $(head -c 200 answer)"
    stop_server "after one request"
    total=$(cat "$work/count" 2> /dev/null || echo 0)
    [ "$total" -gt 0 ] || { fail "no allocations were counted"; return; }
    step=$((total / ${TENON_FAULT_POINTS:-60} + 1))
    for ((n = 1; n <= total; n += step)); do
        start_server LD_PRELOAD="$preload" FAULT_MALLOC="$n"
        if [ -n "$url" ] && kill -0 $server_pid 2> /dev/null; then
            answered=$(ask_server /v1/completions)
            case $answered in 200 | 500 | 503 | 400 | 000) ;; *) fail "allocation $n failing: the answer is $answered" ;; esac
            # After one failure the next request must succeed.
            answered=$(ask_server /v1/completions)
            kill -0 $server_pid 2> /dev/null && [ "$answered" != 200 ] && fail "after allocation $n failed: $answered $(head -c 200 answer)"
        fi
        stop_server "allocation $n of $total failing" 2> /dev/null
    done
    [ $known = 0 ] || echo "server: $known crashes inside libevent's evhttp_request_new without memory (known)"
}

# The reply to text number $1, as token ids.
ask_text() {
    curl -s --max-time 20 -H 'Content-Type: application/json' "$url/completion" \
        -d "{\"prompt\":[$(seq -s, $((3 + 17 * $1)) $((122 + 17 * $1)))],\"n_predict\":3,\"temperature\":0,\"ignore_eos\":true}" |
        sed -n 's/.*"tokens": *\[\([^]]*\)\].*/\1/p'
}
ask_texts() { # description
    local i got
    for i in $(seq 0 19); do
        got=$(ask_text "$i")
        checks=$((checks + 1))
        [ "$got" = "$(sed -n "$((i + 1))p" replies)" ] || fail "$1: the reply to text $i is '$got'"
    done
}
expect_budget() { # description
    local bytes
    bytes=$(find kept -type f -printf '%s\n' 2> /dev/null | paste -sd+ | sed 's/^$/0/')
    [ $((bytes)) -le $tier_budget ] || fail "$1: $((bytes)) bytes in the folder of $tier_budget"
}

# Kept prefixes on disk: the server is killed while it writes them, the disk is full, files are damaged. Replies stay those of a server
# without tiers, and the folder stays within its budget.
tier_budget=150000
part_tiers() {
    local i n known=0
    command -v curl > /dev/null || { echo "tiers: skipped, no curl"; return; }
    rm -rf kept
    server_options="-np 1 -ctk f32 -ctv f32 --cache-prefixes 0"
    start_server || { fail "the server does not start"; return; }
    for i in $(seq 0 19); do ask_text "$i"; echo; done > replies
    stop_server "without tiers"
    [ "$(sort -u replies | wc -l)" -gt 5 ] || fail "the replies are all alike"
    server_options="-np 1 -ctk f32 -ctv f32 --cache-disk $work/kept,$tier_budget"
    for n in 0 1 2 3 4 5 6 7; do
        start_server || { fail "the server does not start after $n kills"; return; }
        (for i in $(seq $((n * 5 % 20)) 19) $(seq 0 19); do ask_text "$i"; done) > /dev/null 2>&1 &
        local asker=$!
        sleep 0.$((1 + n * 7 % 5))$n
        kill -KILL $server_pid
        wait $server_pid 2> /dev/null
        server_pid=
        kill $asker 2> /dev/null
        wait $asker 2> /dev/null
        expect_budget "after $((n + 1)) kills"
    done
    [ -n "$(ls kept)" ] || fail "nothing was written before the kills"
    start_server || { fail "the server does not start after the kills"; return; }
    ask_texts "after the kills"
    expect_budget "after the kills"
    stop_server "after the kills"
    expect_budget "at the end"
    [ -z "$(find kept -name '*.partial')" ] || fail "left behind: $(find kept -name '*.partial')"
    for i in kept/*.blob; do printf 'damaged' | dd of="$i" bs=1 seek=$((RANDOM % 8000)) conv=notrunc 2> /dev/null; done
    start_server || { fail "the server does not start with damaged files"; return; }
    ask_texts "with damaged files"
    stop_server "with damaged files"
    for n in 0 100 20000 60000; do
        rm -rf kept
        # Without room for its lock file the folder cannot be used: the server says so and ends.
        if start_server LD_PRELOAD="$preload" FAULT_SPACE=$n; then
            ask_texts "with $n bytes of disk"
            stop_server "with $n bytes of disk"
            grep -q 'No space left' err || fail "with $n bytes of disk: no note"
        else
            wait $server_pid
            code=$? checks=$((checks + 1))
            server_pid=
            [ "$n $code" = "0 1" ] || fail "with $n bytes of disk the server does not start: $code"
        fi
        [ -z "$(find kept -name '*.partial')" ] || fail "with $n bytes of disk: left behind: $(ls kept)"
    done
    server_options=
}

for part in $parts; do
    declare -F "part_$part" > /dev/null || { echo "unknown part $part"; exit 2; }
    before=$failures
    start=$SECONDS
    "part_$part"
    echo "$part: $((failures - before)) failures, $((SECONDS - start)) s"
done
echo "$checks checks, $failures failures"
[ $failures = 0 ]
