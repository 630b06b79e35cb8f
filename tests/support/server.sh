# Starts tenon serve for a shell test, to be sourced after checks.sh. Sets server (process id), port and url.
server=
serve() { # options…
    : > "$work/log"
    # --foreground: timeout must not signal the whole group, as the second signal would end the server at once.
    timeout --foreground 300 "$tenon" serve --port 0 -t 2 "$@" 2> "$work/log" &
    server=$!
    for _ in $(seq 150); do
        port=$(sed -n 's/.*listening at http:.*:\([0-9]*\)$/\1/p' "$work/log")
        [ -n "$port" ] && curl -sf -m 2 "http://127.0.0.1:$port/health" > /dev/null && break
        sleep 0.1
    done
    url=http://127.0.0.1:$port
}
stop_server() { # returns its exit code
    local pid=$server
    server=
    kill "$pid" 2> /dev/null
    wait "$pid"
}
trap '[ -z "$server" ] || stop_server 2> /dev/null; rm -rf "$work"' EXIT
