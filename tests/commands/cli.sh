#!/bin/bash
# The program as a whole: start screen, help of every command, typos, exit codes, output errors, colour, completion.
. "$(dirname "$0")/../support/checks.sh"
unset NO_COLOR

check "tenon alone prints the start screen" 0 '^First steps' "$tenon"
[ "$(wc -l < "$work/out")" -le 23 ] || failed "the start screen is longer than 23 lines"
[ "$(wc -L < "$work/out")" -le 80 ] || failed "the start screen is wider than 80 columns"
check "tenon help lists the commands" 0 '^Usage: tenon COMMAND' "$tenon" help
commands=$(awk '/^  [a-z]/ { print $1 }' "$work/out")
[ -n "$commands" ] || failed "no commands"
check "--help" 0 '^Usage: tenon COMMAND' "$tenon" --help
check "--version" 0 '^tenon [0-9]+\.[0-9]+\.[0-9]+' "$tenon" --version
for command in $commands; do
    check "tenon $command --help" 0 "^Usage: tenon $command " "$tenon" "$command" --help
    check "examples of $command" 0 "^  .*tenon $command" "$tenon" help "$command"
    check "unknown option of $command" '[1-9]*' "unknown option --no-such-option" "$tenon" "$command" --no-such-option
done
check "a mistyped command" 2 'did you mean "version"' "$tenon" versoin
check "a model instead of a command" 2 'did you mean "tenon run model.gguf"' "$tenon" model.gguf
check "an option instead of a command" 2 'tenon run -m' "$tenon" -m model.gguf
check "a program of llama.cpp" 2 'unknown command "llama-server"; use tenon serve$' "$tenon" llama-server
check "a program of llama.cpp with a command of the same name" 2 '; use tenon bench$' "$tenon" llama-bench
check "a command of Ollama" 2 'unknown command "list"; use tenon pull --list$' "$tenon" list
check "a model by its repository" 1 'To download it from Hugging Face: -hf owner/repo:Q8_0$' "$tenon" run hf.co/owner/repo:Q8_0
check "a model by another program's name" 1 'tenon pull OWNER/REPO downloads one' "$tenon" run llama3.2
check "an alias with '_'" 0 . "$tenon" run --ctx_size 64 --n_gpu_layers 0 -n 1
check "an unknown command" 2 'unknown command "xyzzy"' "$tenon" xyzzy
check "a mistyped option" 2 'did you mean --json' "$tenon" version --jsn
check "JSON is JSON" 0 '^\{.*\}$' "$tenon" version --json
check "output that cannot be written is an error" 1 'cannot write to standard output' bash -c "'$tenon' version > /dev/full"
check "a log file that cannot be written" 1 'cannot write the log to /no/such' "$tenon" version --log-file /no/such/file

# Colour on a terminal only.
"$tenon" help | grep -q $'\033' && failed "colour in a pipe"
if script -qec true /dev/null > /dev/null 2>&1; then # pseudo-terminals are not available everywhere
    export TERM=xterm
    check "colour on a terminal" 0 $'\033\\[1m' script -qec "'$tenon' help" /dev/null
    check "--no-color" 0 'Usage' script -qec "'$tenon' help --no-color" /dev/null
    grep -q $'\033' "$work/out" && failed "--no-color"
    NO_COLOR=1 check "NO_COLOR" 0 'Usage' script -qec "'$tenon' help" /dev/null
    grep -q $'\033' "$work/out" && failed "NO_COLOR"
fi

# The documents are well formed and complete.
"$tenon" help --completion bash > "$work/bash" && bash -n "$work/bash" || failed "bash completion"
(
    source "$work/bash"
    COMP_WORDS=(tenon ver) COMP_CWORD=1
    _tenon
    [ "${COMPREPLY[*]}" = version ] || exit 1
    COMP_WORDS=(tenon help --completion z) COMP_CWORD=3
    _tenon
    [ "${COMPREPLY[*]}" = zsh ]
) || failed "bash completion does not complete"
"$tenon" help --man | grep -q '[^ ]\.fi$' && failed "the manual's examples do not end"
for command in $commands; do
    for document in --markdown --man '--completion=zsh' '--completion=fish'; do
        "$tenon" help $document | grep -q "$command" || failed "help $document lacks $command"
    done
done
finish
