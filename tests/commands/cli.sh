#!/bin/bash
# The program as a whole: start page, help of every command, typos, exit codes, output errors, colour, completion.
set -u
tenon=$1/bin/tenon failures=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset NO_COLOR
check() { # description, expected exit code, pattern expected in stdout+stderr, command…
    local what=$1 code=$2 pattern=$3 got
    shift 3
    "$@" > "$work/out" 2>&1
    got=$?
    if [[ $got != $code ]] || ! grep -qE -- "$pattern" "$work/out"; then
        echo "FAILED: $what: exit $got (expected $code), output:"
        head -n 20 "$work/out"
        failures=$((failures + 1))
    fi
}

check "tenon alone is a start page" 0 '^Begin here' "$tenon"
[ "$(wc -l < "$work/out")" -le 23 ] || { echo "FAILED: the start page is longer than a screen"; failures=$((failures + 1)); }
[ "$(wc -L < "$work/out")" -le 80 ] || { echo "FAILED: the start page is wider than a screen"; failures=$((failures + 1)); }
check "tenon help lists the commands" 0 '^Usage: tenon COMMAND' "$tenon" help
commands=$(awk '/^  [a-z]/ { print $1 }' "$work/out")
[ -n "$commands" ] || { echo "FAILED: no commands"; failures=$((failures + 1)); }
check "--help" 0 '^Usage: tenon COMMAND' "$tenon" --help
check "--version" 0 '^tenon [0-9]+\.[0-9]+\.[0-9]+' "$tenon" --version
for command in $commands; do
    check "tenon $command --help" 0 "^Usage: tenon $command " "$tenon" "$command" --help
    check "examples of $command" 0 "^  .*tenon $command" "$tenon" help "$command"
    check "unknown option of $command" '[1-9]*' "unknown option --no-such-option" "$tenon" "$command" --no-such-option
done
check "a command nearly right" 2 'did you mean "version"' "$tenon" versoin
check "a model instead of a command" 2 'did you mean "tenon run model.gguf"' "$tenon" model.gguf
check "an option instead of a command" 2 'tenon run -m' "$tenon" -m model.gguf
check "a command quite wrong" 2 'unknown command "xyzzy"' "$tenon" xyzzy
check "an option nearly right" 2 'did you mean --json' "$tenon" version --jsn
check "JSON is JSON" 0 '^\{.*\}$' "$tenon" version --json
check "output that cannot be written is an error" 1 'cannot write to standard output' bash -c "'$tenon' version > /dev/full"
check "a log file that cannot be written" 1 'cannot write the log to /no/such' "$tenon" version --log-file /no/such/file

# Colour on a terminal and nowhere else.
"$tenon" help | grep -q $'\033' && { echo "FAILED: colour in a pipe"; failures=$((failures + 1)); }
if script -qec true /dev/null > /dev/null 2>&1; then # not everywhere are there pseudo-terminals
    export TERM=xterm
    check "colour on a terminal" 0 $'\033\\[1m' script -qec "'$tenon' help" /dev/null
    check "no colour when asked" 0 'Usage' script -qec "'$tenon' help --no-color" /dev/null
    grep -q $'\033' "$work/out" && { echo "FAILED: --no-color"; failures=$((failures + 1)); }
    NO_COLOR=1 check "NO_COLOR" 0 'Usage' script -qec "'$tenon' help" /dev/null
    grep -q $'\033' "$work/out" && { echo "FAILED: NO_COLOR"; failures=$((failures + 1)); }
fi

# The documents are well formed and complete.
"$tenon" help --completion bash > "$work/bash" && bash -n "$work/bash" || { echo "FAILED: bash completion"; failures=$((failures + 1)); }
(
    source "$work/bash"
    COMP_WORDS=(tenon ver) COMP_CWORD=1
    _tenon
    [ "${COMPREPLY[*]}" = version ] || exit 1
    COMP_WORDS=(tenon help --completion z) COMP_CWORD=3
    _tenon
    [ "${COMPREPLY[*]}" = zsh ]
) || { echo "FAILED: bash completion does not complete"; failures=$((failures + 1)); }
"$tenon" help --man | grep -q '[^ ]\.fi$' && { echo "FAILED: the manual's examples do not end"; failures=$((failures + 1)); }
for command in $commands; do
    for document in --markdown --man '--completion=zsh' '--completion=fish'; do
        "$tenon" help $document | grep -q "$command" || { echo "FAILED: help $document lacks $command"; failures=$((failures + 1)); }
    done
done
exit $((failures > 0))
