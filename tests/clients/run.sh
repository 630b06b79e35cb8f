#!/bin/bash
# run.sh BUILD: clients from npm talk to tenon serve, and a table says what each of them did. Here a skip is a failure.
. "$(dirname "$0")/../support/checks.sh"
. "$(dirname "$0")/../support/server.sh"
here=$(cd "$(dirname "$0")" && pwd)
model=$golden/server/stories260K.gguf
[ -r "$model" ] || { echo "no model (set TENON_GOLDEN to the golden data)"; exit 1; }
cache=${TENON_CLIENTS:-$build/clients}
mkdir -p "$cache" && cp "$here/package.json" "$here/clients.mjs" "$cache/" && cd "$cache" || exit 1
npm install --no-audit --no-fund --ignore-scripts > npm.log 2>&1 || { tail -n 5 npm.log; echo "the clients could not be installed from npm"; exit 1; }
cd - > /dev/null || exit 1
serve "$model" --api-key secret --embedding # a context of 2,048 tokens, for prompts with tools
timeout 300 node "$cache/clients.mjs" "$url" || failed "a client could not do what it should"
stop_server
node "$here/../peer/rerankers.mjs" "$work" > /dev/null && "$tenon" convert "$work/bert" "$work/bert.gguf" --type f32 > "$work/out" 2>&1 ||
    failed "the model that ranks could not be made: $(cat "$work/out")"
serve "$work/bert.gguf" --api-key secret
timeout 60 node "$cache/clients.mjs" "$url" rank || failed "a client could not rank"
finish
