#!/bin/bash
# Wrong values at every place of every request body (tests/data/server_walk.py).
. "$(dirname "$0")/../support/checks.sh"
. "$(dirname "$0")/../support/server.sh"
here=$(cd "$(dirname "$0")/.." && pwd)
model=$golden/server/stories260K.gguf
[ -r "$model" ] || model=$here/../models/tales.gguf
command -v python3 > /dev/null || skip "python3 is not installed"
mkdir "$work/slots"
# Requests without a limit of their own end after 64 tokens: several at once that filled the shared context got status 500 once, which was not
# reproduced since.
serve "$model" -c 2048 -np 4 -kvu -n 64 --embedding --slot-save-path "$work/slots" --metrics
timeout 800 python3 "$here/data/server_walk.py" "$url" "$here/../tools/tenon/serve" > "$work/out" 2>&1 || failed "$(cat "$work/out")"
head -n 1 "$work/out"
curl -sf -m 5 "$url/health" > /dev/null || failed "the server is gone: $(tail -n 3 "$work/log")"
stop_server
finish
