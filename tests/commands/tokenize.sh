#!/bin/bash
# tenon tokenize and detokenize: ids, text back, input from pipes, JSON, mistakes.
. "$(dirname "$0")/../support/checks.sh"
tales=$(cd "$(dirname "$0")/../.." && pwd)/models/tales.gguf
same "ids on one line" "398 397" "$("$tenon" tokenize "$tales" "Once upon")"
same "no text, no ids" "" "$("$tenon" tokenize "$tales" "")"
same "tokens around the text" "0 398" "$("$tenon" tokenize "$tales" --add-special Once)"
same "--parse-special" "0 398" "$("$tenon" tokenize "$tales" --parse-special "<|story|>Once")"
same "count" 4 "$("$tenon" tokenize "$tales" --count "Once upon a time")"
same "JSON" '{"count":2,"tokens":[398,397],"pieces":["Once"," upon"]}' "$("$tenon" tokenize "$tales" --json --pieces "Once upon")"
same "pieces" "    397  normal        ' upon'" "$("$tenon" tokenize "$tales" --pieces " upon")"
same "text from a pipe, every byte, and many texts" "398 397|398" "$(printf '"Once upon"\n"Once"\n' | "$tenon" tokenize "$tales" --lines | paste -sd '|')"
same "text of ids" "Once upon" "$("$tenon" detokenize "$tales" 398 397)"
same "ids as JSON writes them" "Once upon" "$("$tenon" detokenize "$tales" "[398, 397]")"
same "text as JSON" '{"text":"Once upon"}' "$("$tenon" detokenize "$tales" --json 398 397)"
same "control tokens written out" "<|story|>Once" "$("$tenon" detokenize "$tales" --special 0 398)"
head -c 20000 "$tenon" > "$work/bytes" # not valid text
"$tenon" tokenize "$tales" - < "$work/bytes" | "$tenon" detokenize "$tales" | cmp - "$work/bytes" || failed "bytes do not come back"
check "an id past the end" 1 "not in the vocabulary" "$tenon" detokenize "$tales" 60000
check "text instead of an id" 1 "not a token id" "$tenon" detokenize "$tales" hello
check "no such file" 1 "/no/such" "$tenon" tokenize /no/such.gguf x
check "a line that is not JSON" 1 "line 1" bash -c "echo x | '$tenon' tokenize '$tales' --lines"
check "lines and a text" 2 "--lines" "$tenon" tokenize "$tales" --lines x

gpt2=$golden/vocab/ggml-vocab-gpt-2.gguf llama=$golden/vocab/ggml-vocab-llama-spm.gguf
[ -r "$gpt2" ] && [ -r "$llama" ] || finish
same "ids on one line" "15496 995" "$("$tenon" tokenize "$gpt2" "Hello world")"
same "text from a pipe, every byte" "31373 198" "$(echo hello | "$tenon" tokenize "$gpt2")"
same "no text, no ids" "" "$("$tenon" tokenize "$gpt2" "")"
same "tokens around the text" "1 15043" "$("$tenon" tokenize "$llama" --add-special Hello)"
same "--parse-special" "1 15043 2" "$("$tenon" tokenize "$llama" --parse-special "<s>Hello</s>")"
same "count" 2 "$("$tenon" tokenize "$gpt2" --count "Hello world")"
same "JSON" '{"count":2,"tokens":[15496,995],"pieces":["Hello"," world"]}' "$("$tenon" tokenize "$gpt2" --json --pieces "Hello world")"
same "pieces" "    995  normal        ' world'" "$("$tenon" tokenize "$gpt2" --pieces " world")"
same "many texts" "31373 198|15496" "$(printf '"hello\\n"\n"Hello"\n' | "$tenon" tokenize "$gpt2" --lines | paste -sd '|')"
same "text of ids" "Hello world" "$("$tenon" detokenize "$gpt2" 15496 995)"
same "ids as JSON writes them" "Hello world" "$("$tenon" detokenize "$gpt2" "[15496, 995]")"
same "text as JSON" '{"text":"Hello world"}' "$("$tenon" detokenize "$gpt2" --json 15496 995)"
same "control tokens written out" "<s>Hello" "$("$tenon" detokenize "$llama" --special 1 15043)"
head -c 20000 "$tenon" > "$work/bytes" # not valid text
"$tenon" tokenize "$gpt2" - < "$work/bytes" | "$tenon" detokenize "$gpt2" | cmp - "$work/bytes" ||
    failed "bytes do not come back"
[ -r "$golden/archs/llama-dense.gguf" ] &&
    check "a model without a vocabulary" 1 "no vocabulary" "$tenon" tokenize "$golden/archs/llama-dense.gguf" x
finish
