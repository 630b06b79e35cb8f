#!/bin/bash
# type_page.sh PAGE: types the commands of a page's sh blocks, in order, in one shell, and says how long each took. A server runs until the
# end; a chat gets one question. Fails with the number of commands that failed.
page=$1 failures=0 server=
command -v sudo > /dev/null || sudo() { "$@"; }
work=$(mktemp -d)
trap 'kill $server 2> /dev/null; rm -rf "$work"' EXIT
awk '/^```sh$/ { inside = 1; next } /^```/ { inside = 0 } inside && NF' "$page" > "$work/lines"
while IFS= read -r line <&3; do
    begin=$(date +%s%N) code=0
    case $line in
    "tenon serve "*)
        eval "${line%%#*} > $work/server 2>&1 &"
        server=$!
        for _ in $(seq 600); do grep -q 'is ready' "$work/server" && break || sleep 0.1; done
        cp "$work/server" "$work/out"
        grep -q 'is ready' "$work/server" || code=1
        ;;
    "curl "*) # it ends with 0 for the server's errors, too
        eval "$line" > "$work/out" 2>&1 < /dev/null || code=$?
        grep -q '"choices"' "$work/out" || code=1
        ;;
    'tenon chat $MODEL') eval "$line -n 40" > "$work/out" 2>&1 <<< $'What is the capital of France?\n/bye' || code=$? ;;
    *) eval "$line" > "$work/out" 2>&1 < /dev/null || code=$? ;;
    esac
    printf '%7.1f s  %s\n' "$((($(date +%s%N) - begin) / 100000000))e-1" "$line"
    [ $code = 0 ] && continue
    failures=$((failures + 1))
    echo "FAILED with exit code $code:"
    tail -n 20 "$work/out"
done 3< "$work/lines"
if [ -n "$server" ]; then
    kill -INT "$server"
    wait "$server" || { echo "FAILED: the server ends with $?"; failures=$((failures + 1)); }
    server=
fi
exit $failures
