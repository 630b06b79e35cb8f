#!/bin/bash
# Adapters in tenon serve: GET and POST /lora-adapters, the request field lora, requests with different adapters at the same time, and
# prefixes that never cross from one choice to another.
. "$(dirname "$0")/../support/checks.sh"
. "$(dirname "$0")/../support/server.sh"
here=$(cd "$(dirname "$0")/.." && pwd)
model=$here/../models/tales.gguf
[ -r "$model" ] || skip "models/tales.gguf is missing"
command -v python3 > /dev/null || skip "python3 is not installed"
for i in 1 2; do python3 "$here/data/make_adapter.py" "$model" "$work/$i.gguf" "$i" || failed "make_adapter"; done
python3 "$here/data/make_adapter.py" "$model" "$work/vector.gguf" 3 directions
serve "$model" -np 3 -c 768 -kvu --metrics --repeatable --embedding --lora "$work/1.gguf" --lora-scaled "$work/2.gguf:0.5" --lora-init-without-apply
timeout 200 python3 "$here/data/server_adapters.py" "$url" > "$work/out" 2>&1 || { failed "adapters"; tail -n 20 "$work/out"; }
stop_server || failed "the server ends with $?"
serve "$model" -np 1 -c 256 --lora "$work/1.gguf" --control-vector-scaled "$work/vector.gguf:2" --control-vector-layer-range 2 5
curl -s "$url/lora-adapters" | grep -q '"scale": *1' || failed "an adapter that is applied"
curl -s "$url/completion" -d '{"prompt": "Once", "n_predict": 4}' | grep -q '"content"' || failed "a control vector"
stop_server || failed "the server ends with $?"
check "an adapter that is none" 1 'not an adapter' timeout 60 "$tenon" serve "$model" --port 0 --lora "$model"
finish
