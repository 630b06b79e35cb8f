#!/bin/bash
# The official OpenAI and Anthropic clients from npm hold a conversation with tenon serve.
set -u
tenon=$1/bin/tenon here=$(cd "$(dirname "$0")/.." && pwd)
golden=${TENON_GOLDEN:-${TENON_GOLDEN_DEFAULT:-}}
model=$golden/models/stories15M-f16.gguf
[ -r "$model" ] || { echo "skipped: no model (set TENON_GOLDEN to the golden data)"; exit 77; }
command -v npm > /dev/null && command -v node > /dev/null || { echo "skipped: npm is not installed"; exit 77; }
work=$(mktemp -d)
server=
stop() { [ -n "$server" ] && kill "$server" 2> /dev/null && wait "$server" 2> /dev/null; rm -rf "$work"; }
trap stop EXIT
cp "$here/data/server_clients.mjs" "$work/"
(cd "$work" && timeout 100 npm install --no-audit --no-fund --ignore-scripts openai@6.49.0 @anthropic-ai/sdk@1.8.0) > "$work/npm.log" 2>&1 ||
    { echo "skipped: the clients could not be installed from npm"; tail -n 3 "$work/npm.log"; exit 77; }
timeout 120 "$tenon" serve "$model" --port 0 -t 2 --api-key secret --embedding 2> "$work/log" &
server=$!
for _ in $(seq 100); do
    port=$(sed -n 's/.*listening at http:.*:\([0-9]*\)$/\1/p' "$work/log")
    [ -n "$port" ] && curl -sf -m 2 "http://127.0.0.1:$port/health" > /dev/null && break
    sleep 0.1
done
timeout 60 node "$work/server_clients.mjs" "http://127.0.0.1:$port"
