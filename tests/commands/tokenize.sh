#!/bin/bash
# tenon tokenize and detokenize: ids, text back, input from pipes, JSON, mistakes.
set -u
tenon=$1/bin/tenon failures=0
golden=${TENON_GOLDEN:-${TENON_GOLDEN_DEFAULT:-$(dirname "$0")/../../../shared/golden}}
gpt2=$golden/vocab/ggml-vocab-gpt-2.gguf llama=$golden/vocab/ggml-vocab-llama-spm.gguf
[ -r "$gpt2" ] && [ -r "$llama" ] || { echo "skipped: no golden vocabularies (set TENON_GOLDEN)"; exit 77; }
same() { # description, expected, got
    [ "$2" = "$3" ] && return
    printf 'FAILED: %s\n  expected %s\n  got      %s\n' "$1" "$2" "$3"
    failures=$((failures + 1))
}
same "ids on one line" "15496 995" "$("$tenon" tokenize "$gpt2" "Hello world")"
same "text from a pipe, every byte" "31373 198" "$(echo hello | "$tenon" tokenize "$gpt2")"
same "no text, no ids" "" "$("$tenon" tokenize "$gpt2" "")"
same "tokens around the text" "1 15043" "$("$tenon" tokenize "$llama" --add-special Hello)"
same "control tokens when asked" "1 15043 2" "$("$tenon" tokenize "$llama" --parse-special "<s>Hello</s>")"
same "count" 2 "$("$tenon" tokenize "$gpt2" --count "Hello world")"
same "JSON" '{"count":2,"tokens":[15496,995],"pieces":["Hello"," world"]}' "$("$tenon" tokenize "$gpt2" --json --pieces "Hello world")"
same "pieces" "    995  normal        ' world'" "$("$tenon" tokenize "$gpt2" --pieces " world")"
same "many texts" "31373 198|15496" "$(printf '"hello\\n"\n"Hello"\n' | "$tenon" tokenize "$gpt2" --lines | paste -sd '|')"
same "text of ids" "Hello world" "$("$tenon" detokenize "$gpt2" 15496 995)"
same "ids as JSON writes them" "Hello world" "$("$tenon" detokenize "$gpt2" "[15496, 995]")"
same "text as JSON" '{"text":"Hello world"}' "$("$tenon" detokenize "$gpt2" --json 15496 995)"
same "control tokens written out" "<s>Hello" "$("$tenon" detokenize "$llama" --special 1 15043)"
head -c 20000 "$tenon" > "$1/tokenize.in" # not text at all
"$tenon" tokenize "$gpt2" - < "$1/tokenize.in" | "$tenon" detokenize "$gpt2" | cmp - "$1/tokenize.in" ||
    { echo "FAILED: bytes do not come back"; failures=$((failures + 1)); }
rm -f "$1/tokenize.in"
fails() { # description, exit code, pattern, command…
    local what=$1 code=$2 pattern=$3 out got
    shift 3
    out=$("$@" 2>&1 < /dev/null)
    got=$?
    [ "$got" = "$code" ] && grep -q -- "$pattern" <<< "$out" && return
    echo "FAILED: $what: exit $got: $out"
    failures=$((failures + 1))
}
fails "an id past the end" 1 "not in the vocabulary" "$tenon" detokenize "$gpt2" 60000
fails "an id that is none" 1 "no token id" "$tenon" detokenize "$gpt2" hello
fails "no such file" 1 "/no/such" "$tenon" tokenize /no/such.gguf x
fails "a line that is no JSON" 1 "line 1" bash -c "echo x | '$tenon' tokenize '$gpt2' --lines"
fails "lines and a text" 2 "--lines" "$tenon" tokenize "$gpt2" --lines x
[ -r "$golden/archs/llama-dense.gguf" ] &&
    fails "a model without a vocabulary" 1 "no vocabulary" "$tenon" tokenize "$golden/archs/llama-dense.gguf" x
exit $((failures > 0))
