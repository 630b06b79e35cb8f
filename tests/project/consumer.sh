#!/bin/bash
# An installed copy serves other projects through find_package and pkg-config, exports only tn_ symbols, and its
# program runs from where it was installed.
set -eu
build=$1 source=$(cd "$(dirname "$0")/.." && pwd)
if grep -qE '^TENON_SANITIZE:STRING=.|^CMAKE_C_FLAGS:.*--coverage' "$build/CMakeCache.txt"; then
    echo "an instrumented build is not for installing"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
cmake --install "$build" --prefix "$prefix" > /dev/null
libraries=$(ls "$prefix"/lib*/libtenon*.so)

for library in $libraries; do
    foreign=$(nm -D --defined-only "$library" | awk '$3 !~ /^tn_/ { print $3 }')
    [ -z "$foreign" ] || { echo "$library exports more than tn_ symbols: $foreign"; exit 1; }
    # tn__ names are shared between files of the core only.
    internal=$(nm -D --defined-only "$library" | awk '$3 ~ /^tn__/ { print $3 }')
    [ -z "$internal" ] || { echo "$library exports internal symbols: $internal"; exit 1; }
done

# The headers, the installed files and the soname have the project's version. Until 1.0 the soname includes the minor version.
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:[A-Z]*=//p' "$build/CMakeCache.txt")
case $version in 0.*) soversion=${version%.*} ;; *) soversion=${version%%.*} ;; esac
for library in $libraries; do
    case $library in *libtenon-cuda.so | *libtenon_net-*.so) continue ;; esac # modules, loaded by their file names
    soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
    [ "$soname" = "$(basename "$library").$soversion" ] || { echo "$library: soname $soname, not $soversion"; exit 1; }
    [ -e "$library.$version" ] || { echo "$library.$version is not installed"; exit 1; }
done

cmake -S "$source/consumer" -B "$work/cmake" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" > "$work/log" 2>&1 &&
    cmake --build "$work/cmake" >> "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/cmake/consumer" | tee "$work/out"
grep -qF "tenon $version:" "$work/out" || { echo "the headers' version is not $version"; exit 1; }
"$work/cmake/consumer_static"

export PKG_CONFIG_PATH=$(dirname "$(ls "$prefix"/lib*/pkgconfig/tenon.pc "$prefix"/lib/*/pkgconfig/tenon.pc 2> /dev/null | head -n 1)")
modules=tenon
case $libraries in *libtenon-llm.so*) modules="tenon tenon-llm" ;; esac
cc -std=c17 -Wall -Werror "$source/consumer/main.c" $(pkg-config --cflags --libs $modules) \
    -Wl,-rpath,"$(pkg-config --variable=libdir tenon)" -o "$work/consumer"
"$work/consumer"

# Every public header compiles on its own, as C and, where there is a compiler for it, as C++.
for header in "$prefix"/include/tenon/*.h; do
    echo "#include <tenon/$(basename "$header")>" > "$work/alone.c"
    cc -std=c17 -Wall -Wextra -Werror -fsyntax-only -I"$prefix/include" "$work/alone.c"
    if command -v c++ > /dev/null; then
        c++ -x c++ -std=c++20 -Wall -Werror -fsyntax-only -I"$prefix/include" "$work/alone.c"
    fi
done

# The umbrella leaves out none but the one for who writes a backend, and serves C++ as well as C.
for header in "$prefix"/include/tenon/*.h; do
    case $(basename "$header") in tenon.h | backend_impl.h) continue ;; esac
    grep -q "\"tenon/$(basename "$header")\"" "$prefix/include/tenon/tenon.h" ||
        { echo "tenon.h does not include $(basename "$header")"; exit 1; }
done
if command -v c++ > /dev/null; then
    c++ -std=c++17 -Wall -Wextra -pedantic -Werror "$source/consumer/main.cpp" $(pkg-config --cflags --libs $modules) \
        -Wl,-rpath,"$(pkg-config --variable=libdir tenon)" -o "$work/consumer_cpp"
    "$work/consumer_cpp"
fi

# The tree may be moved as a whole.
mv "$prefix" "$work/elsewhere"
# The loader learns where the program lies from /proc, which a bare chroot lacks.
[ -e /proc/self/exe ] || export LD_LIBRARY_PATH=$(dirname "$(ls "$work"/elsewhere/lib*/libtenon.so)")
"$work/elsewhere/bin/tenon" version
for file in man/man1/tenon.1 bash-completion/completions/tenon zsh/site-functions/_tenon fish/vendor_completions.d/tenon.fish; do
    [ -s "$work/elsewhere/share/$file" ] || { echo "not installed: share/$file"; exit 1; }
done
