# Starts tenon serve for a shell test, to be sourced after checks.sh. Sets server (process id), port and url.
server=
serve() { # options…
    : > "$work/log"
    # --foreground: timeout must not signal the whole group, as the second signal would end the server at once.
    timeout --foreground 300 "$tenon" serve --port 0 -t 2 "$@" 2> "$work/log" &
    server=$!
    for _ in $(seq 150); do
        port=$(sed -n 's/.*listening at https\{0,1\}:.*:\([0-9]*\)$/\1/p' "$work/log")
        url=$(sed -n 's/.*listening at \(https\{0,1\}\):.*/\1/p' "$work/log")://127.0.0.1:$port
        [ -n "$port" ] && curl -sfk -m 2 "$url/health" > /dev/null && break
        sleep 0.1
    done
}
stop_server() { # returns its exit code
    local pid=$server
    server=
    kill "$pid" 2> /dev/null
    wait "$pid"
}
trap '[ -z "$server" ] || stop_server 2> /dev/null; rm -rf "$work"' EXIT
