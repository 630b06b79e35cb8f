#!/bin/bash
# Every example of docs/cli.md, typed as it is printed, in a folder that has the files it names: small ones, so that it
# takes seconds. Servers are asked to stop. What cannot be had here (a model with a chat template, a gigabyte) is named.
set -u
build=$(cd "$1" && pwd)
tests=$(cd "$(dirname "$0")/.." && pwd)
page=$tests/../docs/cli.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export PATH=$build/bin:$PATH HOME=$work
unset TENON_MODEL
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export TENON_FORCE=1 # examples use each other's file names
failures=0

tiny=layers=2,width=64,heads=2,kv=2,head=32,ffn=256,vocab=2000,ctx=8192
{
    tenon synth model.gguf --shape "$tiny" --type q8_0 && tenon synth model-f16.gguf --shape "$tiny" --type f16
    tenon synth nomic.gguf --arch nomic-bert --shape "$tiny" && tenon synth 70b.gguf --shape "$tiny" --no-data
    tenon split model-f16.gguf model --max-size 320K
    mkdir models && cp model.gguf models
} > log 2>&1 || { cat log; exit 1; }
echo "What is a fox?" > questions.txt
echo "Dear fox," | tee letter.txt lines.txt > book.txt
for _ in $(seq 300); do echo "There was a fox that ate a hen."; done | tee calibration.txt more.txt > wiki.test.raw
tenon imatrix model-f16.gguf -f calibration.txt -o imatrix.gguf > log 2>&1 || { cat log; exit 1; }
for name in poet lawyer; do
    command -v python3 > /dev/null && { python3 "$tests/data/make_adapter.py" model.gguf $name.gguf 1 || exit 1; }
done
echo '{"type": "object", "properties": {"legs": {"type": "integer", "maximum": 9}}, "required": ["legs"]}' > fox-schema.json
echo "1,403,407" > ids.txt
printf 'id,lower,upper,size\na,0,3,4096\nb,1,4,8192\nc,3,6,4096\n' > trace.csv
echo '{% for m in messages %}{{ m.content }}{% endfor %}' > template.jinja
echo '{"messages": [{"role": "user", "content": "Hello"}]}' > messages.json

awk '/^```sh/ { inside = 1; next } /^```/ { inside = 0 } inside' "$page" > examples
[ "$(wc -l < examples)" -ge 50 ] || { echo "FAILED: there are too few examples in $page"; exit 1; }
while read -r line; do
    expected=0 limit=100
    case $line in
    "tenon render model.gguf"* | *"--key tokenizer.chat_template"*) expected=1 ;; # this model has no chat template
    "tenon synth bench.gguf"* | "tenon convert"*) continue ;;                     # a gigabyte; tests/commands/convert.sh
    *"embed reranker.gguf"*) continue ;;                                          # tests/commands/rerank.sh
    "tenon lora"*) [ -e poet.gguf ] || continue ;;                                # without python3
    *"man -l"*) command -v man > /dev/null || continue ;;
    "source <("*) [ -e /dev/fd/0 ] || continue ;; # needs /proc
    "tenon pull "[A-Z]*) continue ;;                                              # tests/commands/pull.sh
    "mpirun"*) command -v mpirun > /dev/null && [ -e "$build/lib/libtenon_net-mpi.so" ] || continue ;;
    "tenon devices --measure"*) continue ;;                                       # half a minute; tests/commands/speed.sh
    *"--host 0.0.0.0"*) continue ;;                                               # other machines are no part of a test
    "tenon serve"*) line="exec $line --port 0" ;;                                 # one process, any free port
    esac
    : > out
    timeout --foreground --preserve-status -s INT "$limit" bash -c "exec < /dev/null; $line" > out 2>&1 &
    if [[ $line == "exec tenon serve"* ]]; then # with --models-dir it has no model yet when it listens
        for _ in $(seq 1000); do grep -qE 'is ready' out && break || { [[ $line == *--models-dir* ]] && grep -q 'listening at' out && break; } || sleep 0.02; done
        kill -TERM $!
    fi
    wait $!
    code=$?
    [ $code = $expected ] || { echo "FAILED ($code): $line"; tail -n 5 out; failures=$((failures + 1)); }
done < examples
exit $((failures > 0))
