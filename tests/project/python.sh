#!/bin/bash
# The Python package: declarations against headers and library, Llama, the examples of docs/python.md, and the installed copy.
. "$(dirname "$0")/../support/checks.sh"
build=$(cd "$build" && pwd)
cd "$(dirname "$0")/../.." || exit 1
[ -z "$(sed -n 's/^TENON_SANITIZE:STRING=//p' "$build/CMakeCache.txt")" ] || skip "a sanitized library cannot be loaded by python3"
python=$(PATH=/usr/bin:$PATH command -v python3) || skip "no python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' || skip "python3 is older than 3.9"
export TENON_LIBRARY=$build/lib TENON_PROGRAM=$build/bin/tenon PYTHONPATH=$PWD/bindings/python PYTHONDONTWRITEBYTECODE=1
for part in bindings/python/tests/test_*.py; do
    check "$part" 0 '^OK' "$python" "$part"
done
check "docs/python.md" 0 '^[0-9]+ blocks' "$python" bindings/python/tests/run_page.py docs/python.md
if "$python" -m mypy --version > /dev/null 2>&1; then # Debian's mypy is optional
    check "type hints" 0 '^Success' "$python" -m mypy --cache-dir "$work/mypy" bindings/python/tenon
fi
unset TENON_LIBRARY
cmake --install "$build" --prefix "$work/prefix" > /dev/null
check "the installed package" 0 '^0\.[0-9.]+ .*/prefix/' env PYTHONPATH="$work/prefix/share/tenon/python" "$python" -c \
    'import tenon; print(tenon.__version__, tenon.lib._name)'
finish
