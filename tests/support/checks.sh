# Helpers of the shell tests, to be sourced. $1 is the build folder. Sets build, tenon (the program), golden (the folder of
# golden data, which may not exist) and work (a temporary folder); a test ends with finish.
set -u
export TENON_FORCE=1 # outputs may replace those of an earlier step; tests/commands/outputs.sh is about --force
build=$1
tenon=$build/bin/tenon
golden=${TENON_GOLDEN:-${TENON_GOLDEN_DEFAULT:-../shared/golden}}
failures=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

skip() { # reason
    echo "skipped: $1"
    exit 77
}
failed() { # description
    echo "FAILED: $1"
    failures=$((failures + 1))
}
check() { # description, expected exit code, pattern expected in stdout+stderr, command…; the output is in $work/out
    local what=$1 code=$2 pattern=$3 got
    shift 3
    "$@" > "$work/out" 2>&1
    got=$?
    # The code is unquoted because it may be a pattern.
    if [[ $got != $code ]] || ! grep -qE -- "$pattern" "$work/out"; then
        failed "$what: exit $got (expected $code), output:"
        head -n 20 "$work/out"
    fi
}
same() { # description, expected text, actual text
    [ "$2" = "$3" ] && return
    failed "$1"
    printf '  expected %s\n  got      %s\n' "$2" "$3"
}
finish() {
    [ $failures = 0 ] || echo "$failures failures"
    exit $((failures > 0))
}
