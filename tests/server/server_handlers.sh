#!/bin/bash
# Each handler of the server survives the failure of every allocation, and answers the next request as before. A handler without a row in
# tests/data/server_handlers.tsv fails the test.
. "$(dirname "$0")/../support/checks.sh"
. "$(dirname "$0")/../support/server.sh"
here=$(cd "$(dirname "$0")/.." && pwd)
preload=$build/tests/libfault_preload.so
command -v python3 > /dev/null || skip "python3 is not installed"
command -v curl > /dev/null || skip "curl is not installed"
nm -D "$tenon" 2> /dev/null | grep -q __asan && skip "the sanitizer has an allocator of its own"
head -c 16 /dev/zero > "$work/control"
cp "$here/../models/tales.gguf" "$work/tales.gguf"
export LD_PRELOAD=$(realpath "$preload") FAULT_CONTROL=$work/control
serve "$work/tales.gguf" -b 64 -c 256 -np 2 -kvu --embeddings --slots
unset LD_PRELOAD FAULT_CONTROL
[ -n "$port" ] || failed "the server does not start: $(tail -n 3 "$work/log")"
[ -z "$port" ] || timeout 250 python3 "$here/data/server_handlers.py" "$url" "$work/control" "$here/data/server_handlers.tsv" \
    "$here/../tools/tenon/serve/http/routes.c" || failed "see above; the server said: $(tail -n 3 "$work/log")"
[ -z "$port" ] || stop_server
finish
