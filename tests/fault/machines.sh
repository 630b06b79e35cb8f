# Part of run.sh: ranks of an MPI job on two machines (network namespaces) that are killed, stopped or cut off while loading, in a
# prompt, while generating and while serving; another version on one of them. Whoever is not stopped must end within the timeout.
# shellcheck source=tests/fault/network.sh
. "$here/network.sh"
machines_timeout=2 machines_slack=8
head -c 1500 long.txt > prompt.txt

machines_ranks() { # namespace: processes of tenon there that run
    local pid
    for pid in $(ip netns pids "$1" 2> /dev/null); do
        grep -q '^tenon$' "/proc/$pid/comm" 2> /dev/null && sed 's/.*) //' "/proc/$pid/stat" 2> /dev/null | grep -qv '^[ZTt]' && echo "$pid"
    done
}
machines_start() { # command…
    machines_make 1gbit || { fail "the network namespaces cannot be made"; return 1; }
    (machines_run "$tenon" "$@" --net-timeout $machines_timeout -t 1) > out/machines.txt 2> err < /dev/null &
    machines_root=$!
    local n
    for n in $(seq 200); do
        [ -n "$(machines_ranks $machine_a)" ] && [ -n "$(machines_ranks $machine_b)" ] && return 0
        sleep 0.05
    done
    fail "the ranks of '$*' do not start"
}
machines_break() { # KILL, STOP or CUT; which machine
    local space=$machine_a
    [ "$2" = 0 ] || space=$machine_b
    # shellcheck disable=SC2046
    if [ "$1" = CUT ]; then ip -n $space link set v0 down; else kill -"$1" $(machines_ranks $space) 2>> err; fi
}
machines_gone() { # what
    local end=$((SECONDS + machines_timeout + machines_slack)) left
    checks=$((checks + 1))
    while left=$(machines_ranks $machine_a; machines_ranks $machine_b); [ -n "$left" ]; do
        if [ $SECONDS -ge $end ]; then
            fail "$1: $(tr '\n' ' ' <<< "$left")still runs after $((machines_timeout + machines_slack)) s"
            break
        fi
        sleep 0.1
    done
    machines_end
    wait $machines_root 2> /dev/null
}

machines_stage() { # stage, what, machine
    machines_start run big.gguf -f prompt.txt -n 2000 -c 2048 --ignore-eos --context-shift --nodes-split "$4" || { machines_end; return; }
    case $1 in
    loading) ;;
    prompt) sleep 1 ;;
    generating)
        for _ in $(seq 100); do [ -s out/machines.txt ] && break; sleep 0.05; done
        [ -s out/machines.txt ] || fail "$1, $2, machine $3: nothing is generated"
        ;;
    esac
    machines_break "$2" "$3"
    machines_gone "$1, $2, machine $3, by ${4}s"
}

machines_serve() { # what
    local code port
    machines_start serve -m model.gguf --port 0 -c 128 || { machines_end; return; }
    for _ in $(seq 100); do
        port=$(sed -n 's/.*listening at http:.*:\([0-9]*\)$/\1/p' err | tr -d '\r')
        [ -n "$port" ] && grep -q 'model is ready' err && break
        sleep 0.1
    done
    ask() { ip netns exec $machine_a curl -s -m 20 -o out/reply.json -w '%{http_code}' "http://127.0.0.1:$port/completion" -d '{"prompt":"hi","n_predict":4}'; }
    code=$(ask)
    checks=$((checks + 2))
    [ "$code" = 200 ] || fail "serve on two machines: $code"
    machines_break "$1" 1
    code=$(ask)
    # The launcher ends the job of a rank that is killed: then nobody answers.
    case $1$code in KILL000 | ?*5??) ;; *) fail "serve, $1: a request without the other machine is answered with $code" ;; esac
    machines_gone "serve, $1"
}

if machines_can && mpi_can; then
    for machines_what in KILL STOP CUT; do
        for machines_which in 0 1; do
            machines_stage loading $machines_what $machines_which row
            machines_stage prompt $machines_what $machines_which layer
            machines_stage generating $machines_what $machines_which row
        done
        machines_stage generating $machines_what 1 layer
        machines_serve $machines_what
    done
else
    echo "machines: skipped, needs root, iproute2 and MPI"
fi

# Another version on one of the ranks.
if mpi_can; then
    checks=$((checks + 1))
    if timeout 60 "${mpi_run[@]}" -n 1 "$tenon" run model.gguf -p hi -n 2 -c 64 -t 1 : \
        -n 1 env LD_PRELOAD="$preload" FAULT_VERSION=1 "$tenon" run model.gguf -p hi -n 2 -c 64 -t 1 > out/mpi.txt 2> err; then
        fail "mpirun with two versions succeeded"
    fi
    grep -q 'different version' err || fail "mpirun with two versions does not say so"
fi
