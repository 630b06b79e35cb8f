#!/bin/bash
# The page of tenon serve in a headless Chromium, driven by playwright: send, stream, stop, regenerate, edit, settings,
# reload, memory view, dark mode and the width of a phone. TENON_SHOTS=FOLDER keeps the screenshots.
set -u
tenon=$1/bin/tenon here=$(cd "$(dirname "$0")/.." && pwd)
command -v chromium > /dev/null || { echo "skipped: chromium is not installed"; exit 77; }
command -v npm > /dev/null && command -v node > /dev/null || { echo "skipped: npm is not installed"; exit 77; }
work=$(mktemp -d)
server=
stop() { [ -n "$server" ] && kill "$server" 2> /dev/null && wait "$server" 2> /dev/null; rm -rf "$work"; }
trap stop EXIT
cp "$here/data/web_ui.mjs" "$work/"
(cd "$work" && timeout 100 npm install --no-audit --no-fund --ignore-scripts playwright-core@1.49.1) > "$work/npm.log" 2>&1 ||
    { echo "skipped: playwright-core could not be installed from npm"; tail -n 3 "$work/npm.log"; exit 77; }
timeout 10 chromium --headless=new --no-sandbox --disable-gpu --dump-dom about:blank > /dev/null 2> "$work/chromium" ||
    { echo "skipped: chromium does not start here"; tail -n 3 "$work/chromium"; exit 77; }
timeout --foreground 300 "$tenon" serve --port 0 -t 2 2> "$work/log" &
server=$!
for _ in $(seq 150); do
    port=$(sed -n 's/.*listening at http:.*:\([0-9]*\)$/\1/p' "$work/log")
    [ -n "$port" ] && curl -sf -m 2 "http://127.0.0.1:$port/health" > /dev/null && break
    sleep 0.1
done
timeout 200 node "$work/web_ui.mjs" "http://127.0.0.1:$port/" "$(command -v chromium)" "${TENON_SHOTS:-$work}"
