# Part of run.sh: ranks that are killed or stopped while loading, in a prompt, while generating and while serving. All
# processes must end within the timeout and some time to start and clean up; whoever survives says why.
ranks_timeout=2 ranks_slack=6
head -c 1500 long.txt > prompt.txt

# Processes of a run that are still there, without those that are stopped.
ranks_left() { # root pid, its children…
    local pid
    for pid in "$@"; do
        if [ -e "/proc/$pid/stat" ] && ! sed 's/.*) //' "/proc/$pid/stat" 2> /dev/null | grep -q '^[ZTt]'; then echo "$pid"; fi
    done
}

ranks_wait_gone() { # what, pids…
    local what=$1 end=$((SECONDS + ranks_timeout + ranks_slack))
    shift
    checks=$((checks + 1))
    while [ -n "$(ranks_left "$@")" ]; do
        if [ $SECONDS -ge $end ]; then
            fail "$what: $(ranks_left "$@" | tr '\n' ' ')still runs after $((ranks_timeout + ranks_slack)) s"
            break
        fi
        sleep 0.1
    done
    kill -KILL "$@" 2> /dev/null
}

ranks_children() { # root pid, number
    local pids
    for _ in $(seq 100); do
        pids=$(cat /proc/"$1"/task/"$1"/children 2> /dev/null)
        [ "$(wc -w <<< "$pids")" -ge "$2" ] && break
        sleep 0.05
    done
    echo "$pids"
}

ranks_one() { # stage, signal, rank, delay
    local stage=$1 signal=$2 rank=$3 root pids target code
    "$tenon" run big.gguf -f prompt.txt -n 2000 -c 2048 --ignore-eos --context-shift -t 1 --ranks 3 --net-timeout $ranks_timeout \
        > out/ranks.txt 2> err &
    root=$!
    pids=$(ranks_children $root 2)
    sleep "$4"
    target=$root
    # shellcheck disable=SC2086
    [ "$rank" = 0 ] || target=$(set -- $pids; echo "${!rank}")
    kill -"$signal" "$target" 2> /dev/null
    # shellcheck disable=SC2086
    ranks_wait_gone "$stage, $signal, rank $rank" $root $pids
    wait $root 2> /dev/null
    code=$?
    [ "$rank" = 0 ] || [ $code = 1 ] || fail "$stage, $signal, rank $rank: exit $code of rank 0 (expected 1)"
    [ "$rank" = 0 ] || grep -q 'rank [12]' err || fail "$stage, $signal, rank $rank: nobody is named"
}

for ranks_signal in KILL STOP; do
    for ranks_number in 0 1; do
        ranks_one loading $ranks_signal $ranks_number 0.05
        ranks_one prompt $ranks_signal $ranks_number 0.6
        ranks_one generating $ranks_signal $ranks_number 2
    done
done

# Another model on one of the ranks.
checks=$((checks + 1))
if mpi_can; then
    if timeout 60 "${mpi_run[@]}" -n 1 "$tenon" run model.gguf -p hi -n 2 -c 64 -t 1 : \
        -n 1 "$tenon" run big.gguf -p hi -n 2 -c 64 -t 1 > out/mpi.txt 2> err; then
        fail "mpirun with two models succeeded"
    fi
    grep -q 'different model' err || fail "mpirun with two models does not say so"
fi

# Layers between machines, rows within them: a rank of the second machine is killed or stopped while others of its group wait for
# its sums, and the first machine for states.
# MPICH starts ranks from a proxy, Open MPI itself.
ranks_of_job() { # pid of the launcher
    local pid
    for pid in $(cat /proc/"$1"/task/*/children 2> /dev/null); do
        if grep -qs '^tenon$' "/proc/$pid/comm"; then echo "$pid"; else ranks_of_job "$pid"; fi
    done
}
ranks_stages() { # signal
    local line=(run big.gguf -f prompt.txt -n 20000 -c 2048 --ignore-eos --context-shift -t 1 --nodes-split layer --net-timeout $ranks_timeout) pids=
    "${mpi_run[@]}" -n 2 env TENON_MACHINE=a "$tenon" "${line[@]}" : \
        -n 2 env TENON_MACHINE=b "$tenon" "${line[@]}" > out/ranks.txt 2> err < /dev/null &
    root=$!
    for _ in $(seq 200); do [ -s out/ranks.txt ] && break; sleep 0.05; done
    [ -s out/ranks.txt ] || fail "stages, $1: nothing is generated"
    pids=$(ranks_of_job $root)
    checks=$((checks + 1))
    [ "$(wc -w <<< "$pids")" = 4 ] || fail "stages, $1: not four ranks: $pids"
    kill -"$1" "${pids##*$'\n'}"
    # shellcheck disable=SC2086
    ranks_wait_gone "stages, $1" $root $pids
    wait $root 2> /dev/null
}
if mpi_can; then
    ranks_stages KILL
    ranks_stages STOP
fi

# A server whose rank is killed: the request fails, and the server ends.
for ranks_signal in KILL STOP; do
    "$tenon" serve -m model.gguf --port 0 -t 1 -c 128 --ranks 2 --net-timeout $ranks_timeout > /dev/null 2> err &
    server_pid=$!
    for _ in $(seq 100); do
        ranks_port=$(sed -n 's/.*listening at http:.*:\([0-9]*\)$/\1/p' err)
        [ -n "$ranks_port" ] && curl -sf -m 2 "http://127.0.0.1:$ranks_port/health" > /dev/null && break
        sleep 0.1
    done
    ranks_pids=$(ranks_children $server_pid 1)
    checks=$((checks + 1))
    curl -sf -m 20 "http://127.0.0.1:$ranks_port/completion" -d '{"prompt":"hi","n_predict":4}' > /dev/null || fail "serve with two ranks does not answer"
    # shellcheck disable=SC2086
    kill -$ranks_signal $ranks_pids
    curl -s -m 20 -o out/reply.json "http://127.0.0.1:$ranks_port/completion" -d '{"prompt":"hello","n_predict":4}' -w '%{http_code}' > out/code.txt
    checks=$((checks + 1))
    grep -q '^5' out/code.txt || fail "serve, $ranks_signal: a request without ranks is answered with $(cat out/code.txt)"
    # shellcheck disable=SC2086
    ranks_wait_gone "serve, $ranks_signal" $server_pid $ranks_pids
    wait $server_pid 2> /dev/null
    server_pid=
done
