#!/bin/bash
# Memory of tenon serve: when requests begin, what happens when the KV cache or a context is full, and what is reported.
. "$(dirname "$0")/../support/checks.sh"
. "$(dirname "$0")/../support/server.sh"
here=$(cd "$(dirname "$0")/.." && pwd)
model=$here/../models/tales.gguf
[ -r "$model" ] || skip "models/tales.gguf is missing"
command -v python3 > /dev/null || skip "python3 is not installed"
drive() { # part of the test
    timeout 300 python3 "$here/data/server_memory.py" "$url" "$1" "$work/texts" > "$work/out" 2>&1 ||
        { failed "$*"; tail -n 20 "$work/out"; }
}

# Without -c: as trained, and the log says so.
serve "$model"
grep -q "4 slots share a context of [0-9]* (as trained; -c sets another)" "$work/log" || failed "the chosen context: $(cat "$work/log")"
stop_server

serve "$model" -np 4 -c 2048 -kvu --repeatable
drive record
stop_server
serve "$model" -np 6 -c 300 -kvu --admit-tokens 8 --repeatable --metrics
drive squeeze
stop_server
serve "$model" -np 4 -c 900 -kvu --metrics
drive admission
stop_server
if [ -r "$golden/server/stories260K.gguf" ]; then
    serve "$golden/server/stories260K.gguf" -np 4 -c 1200 -kvu --admit-tokens 8 --metrics
    drive readers
    stop_server
fi
serve "$model" -np 4 -c 512 --metrics
drive shares
stop_server
serve "$model" -np 2 -c 512 --no-kv-unified --context-shift --metrics
drive shift
stop_server
serve "$model" -np 3 -c 1024 -kvu --metrics
drive tree
stop_server
serve "$model" -np 1 -c 100000 -ctk q4_0
grep -q "longer than the [0-9]* that the model was trained with: a request uses at most that many" "$work/log" || failed "beyond the trained length"
stop_server

# A saved plan: for the same slots only.
"$tenon" plan "$model" --serve -np 2 -c 512 -t 2 --save "$work/serve.plan" > /dev/null || failed "plan --serve --save"
serve "$model" -np 2 -c 512 --plan "$work/serve.plan"
drive answers
stop_server
serve "$model" -np 2 --plan "$work/serve.plan"
grep -q "2 slots share a context of 512" "$work/log" || failed "the context of the plan: $(cat "$work/log")"
stop_server
"$tenon" serve "$model" --port 0 -t 2 -np 3 -c 512 --plan "$work/serve.plan" > "$work/out" 2>&1 && failed "a plan for other slots"
grep -q "for other parameters: plan again" "$work/out" || failed "a stale plan: $(cat "$work/out")"
"$tenon" serve --models-dir "$(dirname "$model")" --port 0 --plan "$work/serve.plan" > "$work/out" 2>&1
[ $? = 2 ] || failed "--plan with --models-dir"
finish
