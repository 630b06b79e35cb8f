#!/bin/bash
# Where the CUDA module is installed but there is no GPU, it is not loaded: the program starts small and fast. A described device
# still loads it.
. "$(dirname "$0")/../support/checks.sh"
build=$(cd "$build" && pwd)
resident() { # command…: peak in KiB; the best of three
    for _ in 1 2 3; do
        /usr/bin/time -f %M -o "$work/kib" "$@" > /dev/null 2>&1
        tail -n 1 "$work/kib"
    done | sort -n | head -n 1
}
python3 -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2> /dev/null && skip "there is a CUDA driver"
nm -D "$build/bin/tenon" 2> /dev/null | grep -q __asan && skip "a sanitizer takes more memory"

# A library folder with a file of the module's name: loading it would show.
mkdir "$work/lib"
cp -P "$build"/lib/libtenon*.so* "$work/lib" || skip "no shared libraries"
[ -e "$work/lib/libtenon-cuda.so" ] || cp "$(readlink -f "$build/lib/libtenon-llm.so")" "$work/lib/libtenon-cuda.so"
export LD_LIBRARY_PATH=$work/lib
check "the module is left alone" 0 'no CUDA driver or device; not loaded' "$tenon" devices -v
grep -q 'skipped backend' "$work/out" && failed "the module was loaded"
"$tenon" devices 2>&1 | grep -q skipped && failed "devices loads the module"
[ -x /usr/bin/time ] || echo "note: no /usr/bin/time; memory is not measured"
[ -x /usr/bin/time ] && for line in --help devices version "help run"; do
    # shellcheck disable=SC2086
    [ "$(resident "$tenon" $line)" -lt 12288 ] || failed "tenon $line takes $(resident "$tenon" $line) KiB"
done
"$tenon" plan -dev cuda:h200 -v > "$work/out" 2>&1
grep -qE 'skipped backend|cuda:h200' "$work/out" || failed "a described device loads the module: $(head -n 5 "$work/out")"
finish
