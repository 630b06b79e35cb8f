#!/bin/bash
# The checkers of make lint find what they look for: each is run on a scratch project with one planted mistake.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
command -v python3 > /dev/null && command -v git > /dev/null || { echo "no python3 or git here"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

project() { # an empty project with the checkers and their tables
    rm -rf "$work/p"
    mkdir -p "$work/p/scripts" "$work/p/docs"
    cp "$root"/scripts/check_*.py "$root"/scripts/check_*.sh "$root"/scripts/sources.sh "$root"/scripts/api_doc.sh "$root"/scripts/include_rules.txt "$work/p/scripts/"
    printf '%s\n' "# A page" > "$work/p/README.md"
    printf 'chains?\tsrc\tpersistent decode kernel\tchain of nodes because that is a shape\n' > "$work/p/scripts/retired_words.txt"
    mkdir -p "$work/p/src/base" "$work/p/src/plan"
    echo 'int base(void);' > "$work/p/src/base/base.h"
    git -C "$work/p" init -q
}
expect() { # pass|fail checker what
    if (cd "$work/p" && "scripts/$2") > "$work/out" 2>&1; then outcome=pass; else outcome=fail; fi
    [ "$outcome" = "$1" ] || { echo "$2: $3: expected to $1"; cat "$work/out"; failed=1; }
}

project
for checker in check_sizes.py check_names.py check_words.py check_includes.sh check_docs.sh; do expect pass $checker "nothing wrong"; done

project
for i in $(seq 26); do echo "int x$i;" > "$work/p/src/base/f$i.c"; done
expect fail check_sizes.py "27 files in a folder"
project
for i in $(seq 701); do echo "int x$i;"; done > "$work/p/src/base/long.c"
expect fail check_sizes.py "a file of 701 lines"
project
{ echo 'int f(void) {'; for i in $(seq 99); do echo '    f();'; done; echo '}'; } > "$work/p/src/base/f.c"
expect fail check_sizes.py "a function of 101 lines"
{ echo 'int f(void) {'; for i in $(seq 98); do echo '    f();'; done; echo '}'; } > "$work/p/src/base/f.c"
expect pass check_sizes.py "a function of 100 lines"
{ echo 'static tn_status'; echo 'f(int a,'; echo '  int b) {'; for i in $(seq 97); do echo '    f();'; done; echo '}'; } > "$work/p/src/base/f.c"
expect fail check_sizes.py "a function of 101 lines whose head takes three"

project
echo 'static int twice(int x) { return x; }' | tee "$work/p/src/base/a.c" > "$work/p/src/base/b.c"
expect fail check_names.py "a static function in two files"
echo 'struct job { int x; };' | tee "$work/p/src/base/a.c" > "$work/p/src/base/b.c"
expect fail check_names.py "a struct in two files"

project
echo 'int chain_new(void);' > "$work/p/src/base/a.c"
expect fail check_words.py "a retired word in an identifier"
echo '/* A Chain. */' > "$work/p/src/base/a.c"
expect fail check_words.py "a retired word in a comment"
echo '/* A chain of nodes; unchained. */' > "$work/p/src/base/a.c"
expect pass check_words.py "an exception, and a longer word"
printf 'chain\tsrc\tx\tsomething without a reason\n' > "$work/p/scripts/retired_words.txt"
expect fail check_words.py "an exception without a reason"
printf 'chain\tno/such/path\tx\n' > "$work/p/scripts/retired_words.txt"
expect fail check_words.py "a path that does not exist"

project
echo '#include "plan/plan.h"' > "$work/p/src/base/a.c"
expect fail check_includes.sh "base includes plan"
mkdir -p "$work/p/src/llm"
rm "$work/p/src/base/a.c"
echo '#include "tenon/backend_impl.h"' > "$work/p/src/llm/a.c"
expect fail check_includes.sh "the engine includes backend_impl.h"

project
for i in $(seq 1501); do echo -n "word "; done > "$work/p/docs/long.md"
expect fail check_docs.sh "a page of 1501 words"
project
for i in $(seq 121); do echo "line"; done > "$work/p/README.md"
expect fail check_docs.sh "a README of 121 lines"

project
mkdir -p "$work/p/include/tenon/net"
printf '<!-- headers -->\n<!-- end -->\n' > "$work/p/docs/api.md"
expect pass api_doc.sh "a page with its marks"
: > "$work/p/docs/api.md"
expect fail api_doc.sh "an empty page"
exit $failed
