#!/bin/bash
# Reuse of prompts in tenon serve: who gets which tokens without computing them, by key, by slot, and without room.
. "$(dirname "$0")/../support/checks.sh"
. "$(dirname "$0")/../support/server.sh"
here=$(cd "$(dirname "$0")/.." && pwd)
model=$here/../models/tales.gguf
[ -r "$model" ] || skip "models/tales.gguf is missing"
command -v python3 > /dev/null || skip "python3 is not installed"
drive() { # part of the test
    timeout 120 python3 "$here/data/server_prefixes.py" "$url" "$@" > "$work/out" 2>&1 || { failed "$*"; tail -n 20 "$work/out"; }
}
serve "$model" -np 4 -c 2048 -kvu --metrics --api-key "first,second" --slot-save-path "$work"
drive reuse
stop_server
serve "$model" -np 4 -c 2048 -kvu --api-key "first,second" --slot-save-path "$work" --share-prefixes
drive restored
stop_server
serve "$model" -np 4 -c 160 -kvu --metrics --api-key "first"
drive crowd
stop_server
serve "$model" -np 2 -c 512 -kvu --api-key "first" --cache-prefixes 0
drive none
stop_server
"$tenon" synth "$work/windows.gguf" --arch gemma2 --shape layers=4,width=64,heads=2,kv=1,head=32,ffn=128,window=32 > "$work/out" 2>&1 || failed "synth"
serve "$work/windows.gguf" -np 2 -c 8192 -kvu --ubatch 64 --api-key "first"
drive windows
stop_server
"$tenon" synth "$work/hybrid.gguf" --arch jamba --shape layers=8,width=64,heads=2,kv=1,head=32,ffn=128,vocab=600,ctx=2048 > "$work/out" 2>&1 || failed "synth"
serve "$work/hybrid.gguf" -np 2 -c 8192 -kvu --checkpoints 64 --checkpoint-every 128 --api-key "first"
drive checkpoints
stop_server
serve "$model" -np 2 -c 512 -kvu --metrics --api-key "first,second" --cache-ram 64 --cache-disk "$work/kept,64M"
drive tiers
stop_server
serve "$model" -np 2 -c 512 -kvu --metrics --api-key "first,second" -cram 64M --cache-disk "$work/kept,64M"
drive restarted
stop_server
"$tenon" serve "$model" --cache-ram lots > "$work/out" 2>&1 && failed "a wrong size is accepted"
"$tenon" serve "$model" --cache-disk "$work/kept" > "$work/out" 2>&1 && failed "a folder without a size is accepted"
finish
