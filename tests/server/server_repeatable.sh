#!/bin/bash
# tenon serve --repeatable: seeded requests get the same texts alone, in a crowd, cold, cached, and in batches of other sizes.
# TENON_LONG=1: 200 requests in a crowd of 32.
. "$(dirname "$0")/../support/checks.sh"
. "$(dirname "$0")/../support/server.sh"
here=$(cd "$(dirname "$0")/.." && pwd)
model=$here/../models/tales.gguf
[ -r "$model" ] || skip "models/tales.gguf is missing"
command -v python3 > /dev/null || skip "python3 is not installed"
requests=12 crowd=8
[ -z "${TENON_LONG:-}" ] || requests=200 crowd=32
drive() { # part of the test
    timeout 1200 python3 "$here/data/server_repeatable.py" "$url" "$requests" "$crowd" "$work/texts" "$@" > "$work/out" 2>&1 ||
        { failed "$*"; tail -n 20 "$work/out"; }
    [ -z "${TENON_LONG:-}" ] || cat "$work/out"
}
serve "$model" -np "$crowd" -c 8192 -kvu --repeatable
drive record
drive cached
drive crowd
stop_server
serve "$model" -np "$crowd" -c 8192 -kvu --repeatable -b 48 -ub 11 -t 1
drive crowd
drive cold
stop_server
TENON_REPEATABLE=1 serve "$model" -np 3 -c 2048 -kvu -ub 64 --cache-prefixes 0
drive crowd
stop_server
finish
