#!/bin/bash
# What is shipped is built hardened: position-independent, full RELRO, no executable stack, stack protector, checked
# string functions, and control-flow protection. Looks at the files with readelf.
set -u
build=$1 failures=0
command -v readelf > /dev/null || { echo "skipped: no readelf"; exit 77; }
grep -q '^TENON_SANITIZE:STRING=.' "$build/CMakeCache.txt" && { echo "skipped: a sanitizer build"; exit 77; }
grep -q '^CMAKE_BUILD_TYPE:STRING=Release' "$build/CMakeCache.txt" || { echo "skipped: not a release build"; exit 77; }
need() { # file what pattern readelf-option
    readelf -W "$4" "$1" 2> /dev/null | grep -Eq "$3" && return
    echo "FAILED: $(basename "$1"): $2"
    failures=$((failures + 1))
}
for file in "$build/bin/tenon" "$build"/lib/libtenon.so "$build"/lib/libtenon-llm.so; do
    [ -e "$file" ] || { echo "FAILED: no $file"; exit 1; }
    need "$file" "not position-independent" '^ *Type: +DYN' -h
    need "$file" "no RELRO" 'GNU_RELRO' -l
    need "$file" "not bound at start" 'BIND_NOW|FLAGS.*NOW' -d
    need "$file" "executable stack" 'GNU_STACK .* RW +0x' -l
    need "$file" "no stack protector" '__stack_chk_fail' -s
    need "$file" "no checked functions (FORTIFY)" '__(mem|str|sprintf|snprintf|fprintf|vsnprintf|printf|read)[a-z]*_chk' -s
done
# Debian's start-up objects carry no mark for control-flow protection, and the linker keeps it only when all do: what
# can be looked at is our own objects.
if [ "$(uname -m)" = x86_64 ]; then
    for file in "$build"/lib/libtenon.a "$build"/lib/libtenon-llm.a; do
        objects=$(ar t "$file" | grep -c '\.o$')
        marked=$(readelf -Wn "$file" 2> /dev/null | grep -c 'x86 feature: IBT, SHSTK')
        [ "$objects" = "$marked" ] && continue
        echo "FAILED: $(basename "$file"): $marked of $objects objects have control-flow protection (CET)"
        failures=$((failures + 1))
    done
fi
need "$build/bin/tenon" "not a PIE" 'FLAGS_1.*PIE' -d
# The server is reachable from this machine alone unless told otherwise.
"$build/bin/tenon" serve --help | grep -A1 -- '--host' | grep -q '127\.0\.0\.1' || { echo "FAILED: the default host is not loopback"; failures=$((failures + 1)); }
[ $failures = 0 ] && echo "hardened: tenon, libtenon, libtenon-llm"
exit $((failures > 0))
