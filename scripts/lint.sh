#!/bin/bash
# lint.sh BUILD JOBS: format, sizes, names, words, module borders, static analysis, generated documents. Prints what is wrong and
# fails at the end, so that one run shows everything.
cd "$(dirname "$0")/.." || exit 1
build=${1:-build} jobs=${2:-2} failed=0
step() {
    local title=$1 start=$SECONDS
    shift
    if "$@"; then echo "ok    $title ($((SECONDS - start)) s)"; else echo "WRONG $title"; failed=1; fi
}

check_format() {
    if ! clang-format --version | grep -q 'version 14\.'; then
        echo "note: the format is that of clang-format 14; skipped with $(clang-format --version)"
        return 0
    fi
    local wrong
    wrong=$(scripts/sources.sh | xargs -r -P "$jobs" -n 20 clang-format --dry-run --Werror 2>&1 |
        sed -n 's/^\([^ :]*\):[0-9]*:[0-9]*: error: code should be.*/\1/p' | sort -u)
    [ -z "$wrong" ] && return 0
    printf '%s: not formatted (make format)\n' $wrong
    return 1
}

# Library code returns a status; ending the process is the caller's business.
check_no_exits() {
    ! scripts/sources.sh src | xargs grep -nE '(^|[^_.>[:alnum:]])(abort|exit|_exit|quick_exit|assert)[[:space:]]*\(' |
        grep -vE '^[^:]*:[0-9]*: *(/?\*|//)'
}

check_cppcheck() {
    mkdir -p "$build/cppcheck"
    cppcheck --quiet --std=c11 --language=c -j "$jobs" --cppcheck-build-dir="$build/cppcheck" --error-exitcode=1 \
        --enable=warning,portability --inline-suppr --suppressions-list=scripts/cppcheck.txt \
        --template='{file}:{line}: {id}: {message}' -I include -I src -D__x86_64__ -D__GNUC__ \
        --include=scripts/cppcheck_hints.h \
        $(scripts/sources.sh src tools | grep '\.c$') 2>&1
}

# clang-tidy is slow, so a file whose preprocessed text passed before is not looked at again.
tidy_one() {
    local file=$1 key hints=()
    key=$({ cat .clang-tidy scripts/tidy_hints.h; gcc -E -P -D_GNU_SOURCE -Iinclude -Isrc -Itools/tenon "$file" 2> /dev/null || cat "$file"; } | sha256sum | cut -c1-32)
    [ -e "$build/tidy/$key" ] && return 0
    [ "$file" = src/base/status.c ] || hints=(--extra-arg=-include --extra-arg="$PWD/scripts/tidy_hints.h")
    if clang-tidy -p "$build" --quiet --warnings-as-errors='*' "${hints[@]}" "$file" > "$build/tidy/$key.log" 2>&1; then
        rm "$build/tidy/$key.log"
        touch "$build/tidy/$key"
        return 0
    fi
    grep -E '^/.*: (error|warning): ' "$build/tidy/$key.log" | sed "s#^$PWD/##; s/,-warnings-as-errors//"
    rm "$build/tidy/$key.log"
    return 1
}
check_tidy() {
    mkdir -p "$build/tidy"
    export build
    export -f tidy_one
    # Only files of this configuration: kernels for other processors have no compile command.
    scripts/sources.sh src tools | grep '\.c$' | while read -r file; do
        grep -q "$PWD/$file" "$build/compile_commands.json" && echo "$file"
    done | xargs -r -P "$jobs" -I{} bash -c 'tidy_one {}'
}

check_cli_doc() {
    "$build/bin/tenon" help --markdown | diff -u docs/cli.md - > "$build/cli.diff" && return 0
    head -n 20 "$build/cli.diff"
    echo "docs/cli.md is not what the command table says: make docs"
    return 1
}

check_flags_doc() {
    "$build/bin/tenon" help --flags | cmp -s docs/flags.md - && return 0
    echo "docs/flags.md is not what the tables of options say: make docs"
    return 1
}

check_arch_doc() {
    "$build/bin/tenon" help --architectures | cmp -s docs/architectures.md - && return 0
    echo "docs/architectures.md is not what the architecture table says: make docs"
    return 1
}

check_api_doc() {
    scripts/api_doc.sh > "$build/api.md" || return 1
    cmp -s docs/api.md "$build/api.md" && return 0
    echo "docs/api.md does not list the headers as they are: make docs"
    return 1
}

step "format" check_format
step "include rules" scripts/check_includes.sh
step "no abort, exit, assert in src/" check_no_exits
step "sizes of folders, files, functions" scripts/check_sizes.py
step "local names" scripts/check_names.py
step "retired words" scripts/check_words.py
step "length of pages" scripts/check_docs.sh
step "docs/cli.md" check_cli_doc
step "docs/flags.md" check_flags_doc
step "docs/architectures.md" check_arch_doc
step "docs/api.md" check_api_doc
step "cppcheck" check_cppcheck
step "clang-tidy" check_tidy
exit $failed
