#!/bin/bash
# run.sh BUILD MINUTES: a server under load from many clients; soak.c lists the conditions. Memory needs at least five
# minutes to settle, as caches fill first. SOAK_SHAPE sets the shape of the model, for example a smaller one for a server
# that a sanitizer slows down.
set -u
build=$(cd "$1" && pwd) minutes=${2:-5}
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill -KILL "$server" 2> /dev/null; rm -rf "$work"' EXIT
"$build/bin/tenon" synth "$work/model.gguf" --shape "${SOAK_SHAPE:-layers=6,width=1024,heads=16,kv=4,head=64,ffn=3072,vocab=2000,ctx=512}" --type q8_0 > /dev/null || exit 1
"$build/bin/tenon" serve "$work/model.gguf" --port 0 -c 2048 -np 4 -kvu --queue 32 --metrics --timeout 10 -n 64 -t 2 2> "$work/log" > /dev/null &
server=$!
for _ in $(seq 100); do
    port=$(sed -n 's/.*listening at http:.*:\([0-9]*\)$/\1/p' "$work/log")
    grep -q 'model is ready' "$work/log" && break
    sleep 0.1
done
[ -n "${port:-}" ] || { cat "$work/log"; exit 1; }
seconds=$(awk "BEGIN { print int($minutes * 60) }")
"$build/tests/soak" "$port" "$server" "$seconds" "${CLIENTS:-12}"
code=$?
kill -TERM "$server"
wait "$server"
ended=$?
server=
[ $ended = 0 ] || [ $ended = 130 ] || [ $ended = 143 ] || { echo "the server's exit code is $ended"; code=1; }
[ $code = 0 ] || tail -n 20 "$work/log"
exit $code
