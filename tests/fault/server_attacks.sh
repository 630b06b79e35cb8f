#!/bin/bash
# Requests that stopped or delayed a server before (tests/data/server_attacks.py), and no descriptors left.
. "$(dirname "$0")/../support/checks.sh"
. "$(dirname "$0")/../support/server.sh"
here=$(cd "$(dirname "$0")/.." && pwd)
model=$golden/server/stories260K.gguf
[ -r "$model" ] || skip "no model (set TENON_GOLDEN to the golden data)"
command -v python3 > /dev/null || skip "python3 is not installed"
serve "$model" -c 2048 -np 4 -kvu
timeout 300 python3 "$here/data/server_attacks.py" "$url" "$(pgrep -P "$server")" > "$work/out" 2> "$work/times" || failed "$(cat "$work/out" "$work/times")"
cat "$work/times"
stop_server
mkdir "$work/models" && cp "$model" "$work/models/"
serve --models-dir "$work/models" -c 2048 -np 4 -kvu
timeout 300 python3 "$here/data/server_attacks.py" "$url" "$(pgrep -P "$server")" "$(basename "$model" .gguf)" > "$work/out" 2> "$work/times" || failed "several models: $(cat "$work/out" "$work/times")"
stop_server
serve "$model" -c 256 -np 2 -kvu --api-key k --timeout 2 --max-bodies 64M --max-connections 300
timeout 200 python3 "$here/data/server_floods.py" "$port" "$(pgrep -P "$server")" > "$work/out" 2>&1 || failed "$(cat "$work/out")"
stop_server
# A model file that is cut short while it is mapped: every client gets an error, and the server ends with one.
cp "$golden/models/stories15M-f16.gguf" "$work/cut.gguf"
serve "$work/cut.gguf" --no-pack --mmap -np 2 -c 512 -kvu --context-shift
for i in 1 2 3; do
    curl -sN -m 30 "$url/completion" -d '{"prompt":"Once","n_predict":100000,"ignore_eos":true,"stream":true}' > "$work/stream.$i" &
done
sleep 0.5
truncate -s 4096 "$work/cut.gguf"
wait "$server"
code=$?
server=
sleep 0.5
[ "$code" = 1 ] || failed "a cut model file ends the server with $code: $(cat "$work/log")"
grep -q "was truncated" "$work/log" || failed "no word about a cut model file: $(cat "$work/log")"
for i in 1 2 3; do grep -q "was truncated" "$work/stream.$i" || failed "client $i got no error: $(tail -c 300 "$work/stream.$i")"; done
# With few descriptors the server pauses, says so once, and goes on.
ulimit -n 32
serve "$model" -c 256 -np 1
ticks() { awk '{ print $14 + $15 }' "/proc/$(pgrep -P "$server")/stat"; } # processor time, in hundredths of a second
before=$(ticks)
python3 - "$port" << 'PY'
import socket, sys, time
all = []
try:
    while len(all) < 60:
        all.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
except OSError:
    pass  # this process has no more, either
time.sleep(1)
PY
[ $(($(ticks) - before)) -lt 40 ] || failed "without descriptors the server spins: $(($(ticks) - before)) ticks in a second"
[ "$(wc -c < "$work/log")" -lt 4000 ] || failed "the log grows: $(head -c 500 "$work/log")"
grep -q "cannot accept connections" "$work/log" || failed "no word about missing descriptors: $(cat "$work/log")"
curl -s -m 5 "$url/health" | grep -q ok || failed "no answer after descriptors were missing"
finish
