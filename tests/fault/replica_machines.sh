# Part of run.sh: three machines of network namespaces, HAProxy with docs/haproxy.cfg on one, and on the others a server as
# docs/tenon@.service starts it. Needs root, iproute2 and HAProxy. Requests stay with the server that has their prefix, and go to
# the other one while a server drains, ends or is cut off.
rm_proxy=tnp$$ rm_a=tna$$ rm_b=tnb$$
rm_pids=

rm_end() {
    local space
    for space in $rm_proxy $rm_a $rm_b; do
        # shellcheck disable=SC2046
        kill -KILL $(ip netns pids $space 2> /dev/null) 2> /dev/null
        ip netns del $space 2> /dev/null
    done
    # shellcheck disable=SC2086
    [ -z "$rm_pids" ] || wait $rm_pids 2> /dev/null
    rm_pids=
}
rm_can() {
    [ "$(id -u)" = 0 ] && command -v ip haproxy curl > /dev/null && ip netns add $rm_proxy 2> /dev/null && ip netns del $rm_proxy
}
rm_make() { # a link from the proxy to each server
    local n=1 space
    ip netns add $rm_proxy && ip -n $rm_proxy link set lo up || return 1
    for space in $rm_a $rm_b; do
        ip netns add $space && ip link add v$n netns $rm_proxy type veth peer name v0 netns $space &&
            ip -n $rm_proxy addr add 10.78.$n.1/24 dev v$n && ip -n $rm_proxy link set v$n up &&
            ip -n $space addr add 10.78.$n.2/24 dev v0 && ip -n $space link set v0 up && ip -n $space link set lo up || return 1
        n=$((n + 1))
    done
}
rm_serve() { # namespace, address, port: the command of the unit, with its limit of files where the host allows that many
    local command files
    command=$(sed -n 's/^ExecStart=//p' "$here/../../docs/tenon@.service" |
        sed "s|/usr/bin/tenon|$tenon|; s|\${MODEL}|$work/big.gguf|; s|127.0.0.1|$2|; s|%i|$3|")
    files=$(sed -n 's/^LimitNOFILE=//p' "$here/../../docs/tenon@.service")
    ip netns exec "$1" bash -c "ulimit -n $files 2> /dev/null; exec $command -t 1 -c 1024" > /dev/null 2> "err.$1" &
    rm_pids="$rm_pids $!"
}
rm_ask() { # body, header: prints the replica that answered; fails without an answer
    ip netns exec $rm_proxy curl -sf -m 15 -D out/replica.txt -o out/reply.json http://127.0.0.1:8080/completion ${2:+-H "$2"} -d "$1" || return 1
    tr -d '\r' < out/replica.txt | sed -n 's/^x-replica: //Ip'
}
rm_admin() { # command
    python3 -c 'import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(sys.argv[2].encode() + b"\n"); print(s.recv(65536).decode())' \
        "$work/rm.sock" "$1"
}
rm_wait() { # server, state: until HAProxy sees it so
    local n
    for n in $(seq 100); do
        [ "$(rm_admin "show servers state replicas" | awk -v s="$1" '$4 == s { print $6 }')" = "$2" ] && return 0
        sleep 0.1
    done
    fail "HAProxy does not see server $1 $([ "$2" = 2 ] && echo up || echo down)"
}
rm_all() { # what, server: every request is answered, by this server
    local turn got
    for turn in 1 2 3 4; do
        checks=$((checks + 1))
        got=$(rm_ask "{\"n_predict\":2,\"prompt\":\"text $turn\"}") || fail "$1: no answer"
        [ "$got" = "$2" ] || fail "$1: answered by '$got'"
    done
}

rm_run() {
    local text turn first got seen= slow pid
    rm_serve $rm_a 10.78.1.2 8081
    rm_serve $rm_b 10.78.2.2 8082
    sed -e "s|127.0.0.1:8081|10.78.1.2:8081|; s|127.0.0.1:8082|10.78.2.2:8082|; s|/run/haproxy/admin.sock|$work/rm.sock|" \
        "$here/../../docs/haproxy.cfg" > rm.cfg
    ip netns exec $rm_proxy haproxy -f rm.cfg > err.haproxy 2>&1 &
    rm_pids="$rm_pids $!"
    for _ in $(seq 100); do [ -S "$work/rm.sock" ] && break; sleep 0.1; done
    rm_wait a 2
    rm_wait b 2
    # Affinity: by the beginning of the body, or by the header.
    for text in alpha beta gamma delta epsilon zeta; do
        first=
        for turn in 1 2 3; do
            checks=$((checks + 1))
            got=$(rm_ask "{\"n_predict\":2,\"prompt\":\"hi $turn\"}" "X-Conversation: $text") || fail "$text, turn $turn: no answer"
            first=${first:-$got}
            [ "$got" = "$first" ] || fail "$text: turns reach $first and $got"
        done
        seen="$seen$first"
    done
    checks=$((checks + 1))
    case $seen in *a*b* | *b*a*) ;; *) fail "all conversations reach one server: $seen" ;; esac
    # Metrics of the proxy, and of a server.
    checks=$((checks + 2))
    ip netns exec $rm_proxy curl -sf -m 5 http://127.0.0.1:8404/metrics | grep -q 'haproxy_server_status.*server="a"' || fail "no metrics of HAProxy"
    ip netns exec $rm_proxy curl -sf -m 5 http://10.78.1.2:8081/metrics | grep -q requests || fail "no metrics of server a"
    # Draining.
    rm_admin "set server replicas/b state drain" > /dev/null
    rm_all "while server b drains" a
    rm_admin "set server replicas/b state ready" > /dev/null
    # A machine that is cut off: the request that meets it is sent to the other one, later ones do not meet it.
    ip -n $rm_proxy link set v1 down
    checks=$((checks + 1))
    rm_ask '{"n_predict":2,"prompt":"first"}' > /dev/null || fail "a request just after the link was cut has no answer"
    rm_wait a 0
    rm_all "without server a's machine" b
    ip -n $rm_proxy link set v1 up
    rm_wait a 2
    # SIGTERM lets a running request finish; the server then ends by itself, before the unit's TimeoutStopSec.
    rm_admin "set server replicas/a state drain" > /dev/null
    ip netns exec $rm_proxy curl -sf -m 15 -o out/slow.json http://10.78.2.2:8082/completion \
        -d '{"n_predict":600,"ignore_eos":true,"prompt":"a"}' &
    slow=$!
    sleep 0.3
    checks=$((checks + 1))
    [ ! -s out/slow.json ] || fail "the request that shall be running has ended"
    for pid in $(ip netns pids $rm_b); do kill -TERM "$pid"; done
    checks=$((checks + 3))
    wait $slow || fail "a request that ran when its server was stopped has no answer"
    grep -q '"tokens_predicted": *600' out/slow.json || fail "a request that ran when its server was stopped is not complete"
    for _ in $(seq $((10 * $(sed -n 's/^TimeoutStopSec=//p' "$here/../../docs/tenon@.service")))); do
        [ -z "$(ip netns pids $rm_b)" ] && break
        sleep 0.1
    done
    [ -z "$(ip netns pids $rm_b)" ] || fail "a server that was stopped still runs after TimeoutStopSec"
    rm_admin "set server replicas/a state ready" > /dev/null
    rm_wait b 0
    rm_all "after server b was stopped" a
}

# The units, with the program of this build.
if command -v systemd-analyze > /dev/null; then
    for rm_unit in tenon.service tenon@.service; do
        sed "s|/usr/bin/tenon|$tenon|" "$here/../../docs/$rm_unit" > "$work/$rm_unit"
        checks=$((checks + 1))
        rm_found=$(systemd-analyze verify --man=no --recursive-errors=no "$work/$rm_unit" 2>&1)
        [ -z "$rm_found" ] || fail "$rm_unit: $rm_found"
    done
fi
if rm_can; then
    if rm_make; then rm_run; else fail "the network namespaces cannot be made"; fi
    rm_end
else
    echo "replica_machines: skipped, needs root, iproute2 and HAProxy"
fi
