#!/bin/bash
# The page of tenon serve in a headless Chromium: send, stream, stop, regenerate, edit, settings, reload, memory view,
# dark mode and the width of a phone.
set -u
tenon=$1/bin/tenon here=$(cd "$(dirname "$0")" && pwd)
golden=${TENON_GOLDEN:-${TENON_GOLDEN_DEFAULT:-}}
model=$golden/models/stories15M-f16.gguf
[ -r "$model" ] || { echo "skipped: no model (set TENON_GOLDEN to the golden data)"; exit 77; }
command -v chromium > /dev/null || { echo "skipped: chromium is not installed"; exit 77; }
node --experimental-websocket -e 'new WebSocket("ws://127.0.0.1:9").onerror = () => {}' 2> /dev/null ||
    { echo "skipped: no node with WebSocket (20.10 or newer)"; exit 77; }
work=$(mktemp -d)
server= browser=
stop() {
    for process in $browser $server; do kill "$process" 2> /dev/null && wait "$process" 2> /dev/null; done
    rm -rf "$work"
}
trap stop EXIT
timeout 120 "$tenon" serve "$model" --port 0 -t 2 2> "$work/log" &
server=$!
timeout 100 chromium --headless=new --no-sandbox --disable-gpu --remote-debugging-port=0 --user-data-dir="$work/profile" \
    about:blank > "$work/chromium" 2>&1 &
browser=$!
for _ in $(seq 150); do
    port=$(sed -n 's/.*listening at http:.*:\([0-9]*\)$/\1/p' "$work/log")
    debug=$(sed -n 's/.*DevTools listening on ws:..127.0.0.1:\([0-9]*\).*/\1/p' "$work/chromium")
    [ -n "$port" ] && [ -n "$debug" ] && curl -sf -m 2 "http://127.0.0.1:$port/health" > /dev/null && break
    sleep 0.1
done
[ -n "$debug" ] || { echo "skipped: chromium does not start here"; tail -n 3 "$work/chromium"; exit 77; }
timeout 80 node --experimental-websocket "$here/data/page.mjs" "http://127.0.0.1:$port/" "$debug" "${TENON_SHOTS:-$work}"
