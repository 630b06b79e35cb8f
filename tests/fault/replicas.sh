# Part of run.sh: two servers behind HAProxy with docs/haproxy.cfg. Requests that begin alike reach the same server;
# a server that drains or dies loses no later request.
replicas_get() { # body; prints the replica that answered, and fails without an answer
    curl -sf -m 10 -D out/replica.txt -o out/reply.json "http://127.0.0.1:$replicas_port/completion" -d "$1" || return 1
    tr -d '\r' < out/replica.txt | sed -n 's/^x-replica: //Ip'
}
replicas_start() { # number; sets replicas_pid and replicas_at
    "$tenon" serve -m model.gguf --port 0 -t 1 -c 256 > /dev/null 2> "err.$1" &
    replicas_pid=$!
    for _ in $(seq 100); do
        replicas_at=$(sed -n 's/.*listening at http:.*:\([0-9]*\)$/\1/p' "err.$1")
        [ -n "$replicas_at" ] && curl -sf -m 2 "http://127.0.0.1:$replicas_at/health" > /dev/null && return
        sleep 0.1
    done
    fail "server $1 does not start"
}

if ! command -v haproxy > /dev/null; then
    echo "replicas: skipped, HAProxy is not installed"
else
    replicas_start a && replicas_a=$replicas_pid && replicas_port_a=$replicas_at
    replicas_start b && replicas_b=$replicas_pid && replicas_port_b=$replicas_at
    replicas_port=$((20000 + RANDOM % 20000))
    sed -e "s|127.0.0.1:8080|127.0.0.1:$replicas_port|; s|127.0.0.1:8081|127.0.0.1:$replicas_port_a|" \
        -e "s|127.0.0.1:8082|127.0.0.1:$replicas_port_b|; s|127.0.0.1:8404|127.0.0.1:$((replicas_port + 1))|" \
        -e "s|/run/haproxy/admin.sock|$work/admin.sock|" "$here/../../docs/haproxy.cfg" > haproxy.cfg
    checks=$((checks + 1))
    haproxy -c -f haproxy.cfg > err 2>&1 || fail "docs/haproxy.cfg is not valid"
    haproxy -f haproxy.cfg > err 2>&1 &
    server_pid=$!
    for _ in $(seq 50); do
        replicas_get '{"prompt":"hi","n_predict":1}' > /dev/null && break
        sleep 0.1
    done
    for replicas_text in alpha beta gamma delta; do
        replicas_first=
        for replicas_turn in 1 2 3; do
            checks=$((checks + 1))
            # Later turns of a conversation begin alike.
            replicas_got=$(replicas_get "{\"user\":\"$(printf "$replicas_text%.0s" $(seq 130))\",\"n_predict\":2,\"prompt\":\"hi $replicas_turn\"}") ||
                fail "$replicas_text $replicas_turn: no answer"
            replicas_first=${replicas_first:-$replicas_got}
            [ "$replicas_got" = "$replicas_first" ] || fail "$replicas_text: turns reach $replicas_first and $replicas_got"
        done
    done
    checks=$((checks + 1))
    curl -sf -m 5 "http://127.0.0.1:$((replicas_port + 1))/metrics" | grep -q haproxy_server_status || fail "no metrics"
    # Draining: new requests reach the other server only.
    replicas_admin() { # command
        python3 -c 'import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(sys.argv[2].encode() + b"\n"); s.recv(4096)' \
            "$work/admin.sock" "$1"
    }
    replicas_admin "set server replicas/b state drain"
    for replicas_turn in 1 2 3 4; do
        checks=$((checks + 1))
        replicas_got=$(replicas_get "{\"n_predict\":2,\"prompt\":\"text $replicas_turn\"}")
        [ "$replicas_got" = a ] || fail "answered by '$replicas_got' while server b drains"
    done
    replicas_admin "set server replicas/b state ready"
    kill -KILL "$replicas_a"
    wait "$replicas_a" 2> /dev/null
    for replicas_turn in 1 2 3 4 5 6; do
        checks=$((checks + 1))
        replicas_got=$(replicas_get "{\"n_predict\":2,\"prompt\":\"text $replicas_turn\"}") || fail "no answer after a server died"
        [ "$replicas_got" = b ] || fail "answered by '$replicas_got' after server a died"
    done
    kill "$server_pid" "$replicas_b" 2> /dev/null
    wait "$server_pid" "$replicas_b" 2> /dev/null
    server_pid=
fi
