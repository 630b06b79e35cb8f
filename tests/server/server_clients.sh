#!/bin/bash
# The official OpenAI and Anthropic clients from npm hold a conversation with tenon serve.
. "$(dirname "$0")/../support/checks.sh"
. "$(dirname "$0")/../support/server.sh"
here=$(cd "$(dirname "$0")/.." && pwd)
model=$golden/models/stories15M-f16.gguf
if [ ! -r "$model" ]; then # the default model under the name that the clients expect
    cp "$here/../models/tales.gguf" "$work/stories15M-f16.gguf"
    model=$work/stories15M-f16.gguf
fi
command -v npm > /dev/null && command -v node > /dev/null || skip "npm is not installed"
cp "$here/data/server_clients.mjs" "$work/"
(cd "$work" && timeout 100 npm install --no-audit --no-fund --ignore-scripts openai@6.49.0 @anthropic-ai/sdk@1.8.0) > "$work/npm.log" 2>&1 ||
    { tail -n 3 "$work/npm.log"; skip "the clients could not be installed from npm"; }
serve "$model" --api-key secret --embedding
WIDTH=$("$tenon" inspect "$model" --json | sed -n 's/.*"llama.embedding_length": *\([0-9]*\).*/\1/p') \
    timeout 60 node "$work/server_clients.mjs" "$url"
