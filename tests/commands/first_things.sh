#!/bin/bash
# docs/from-llama.md: every command of its table, typed as it is printed, with small models; and the options of llama.cpp's commands
# beside them, which run, chat, serve and bench accept.
. "$(dirname "$0")/../support/checks.sh"
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$build" && pwd)
tenon=$build/bin/tenon
cd "$work" || exit 1
export PATH=$build/bin:$PATH HOME=$work HF_HUB_CACHE=$work/cache XDG_STATE_HOME=$work/state
unset TENON_MODEL LLAMA_ARG_MODEL HF_TOKEN http_proxy https_proxy all_proxy
tiny=layers=2,width=64,heads=2,kv=2,head=32,ffn=256,vocab=2000,ctx=4096
{
    tenon synth model.gguf --shape $tiny --type q8_0 && tenon synth model-f16.gguf --shape $tiny --type f16 &&
        tenon synth nomic.gguf --arch nomic-bert --shape $tiny
} > log 2>&1 || failed "models: $(cat log)"
echo "Dear fox," > letter.txt
for _ in $(seq 100); do echo "There was a fox that ate a hen."; done > wiki.txt
echo 'root ::= "yes" | "no"' > yes-no.gbnf
echo '{"type": "object", "properties": {"legs": {"type": "integer", "maximum": 9}}, "required": ["legs"]}' > fox.json
echo '{"messages": [{"role": "user", "content": "Hello"}]}' > talk.json
folder=$(find "$golden/hf" -mindepth 1 -maxdepth 1 -name 'llama*' 2> /dev/null | head -n 1)
[ -n "$folder" ] && ln -s "$(realpath "$folder")" folder
mkdir -p hub/owner/model-GGUF && cp model.gguf hub/owner/model-GGUF/model-Q4_K_M.gguf
if command -v python3 > /dev/null; then
    python3 "$here/../data/local_hub.py" hub port &
    server=$!
    trap 'kill $server 2> /dev/null; rm -rf "$work"' EXIT
    for _ in $(seq 100); do [ -s port ] && break || sleep 0.05; done
    export HF_ENDPOINT=http://127.0.0.1:$(cut -d' ' -f1 port)
fi

# Columns of the table: number, what, theirs, ours; \| is a bar.
sed -n 's/\\|/\x01/g; /^| [0-9]/p' "$here/../../docs/from-llama.md" > rows
same "rows of the table" 20 "$(wc -l < rows)"
while IFS='|' read -r _ number what theirs ours _; do
    line=$(sed -E 's/^ *`//; s/` *$//' <<< "${ours//$'\x01'/|}") limit=60 pattern=.
    case $line in
    "tenon pull"*) [ -n "${HF_ENDPOINT:-}" ] || continue; "$tenon" pull a/b 2>&1 | grep -q 'not supported by this build' && continue ;;
    "tenon convert"*) [ -e folder ] || continue ;;
    "tenon serve"*) limit=2 line="exec ${line/8080/0}" pattern='listening at' ;; # any free port
    *"--grammar-file"*) pattern='yes|no' ;;
    *"-jf"*) pattern='"legs": *-?[0-9]' ;;
    *"/load"*) pattern='1 messages loaded' ;;
    "tenon bench"*) pattern='pp32' ;;
    "tenon chat"*" -c 512"*) pattern= ;; # nobody says anything
    esac
    timeout --foreground --preserve-status -s INT $limit bash -c "exec < /dev/null; $line" > out 2>&1
    code=$?
    { [ $code = 0 ] && { [ -z "$pattern" ] || grep -qE -- "$pattern" out; }; } || { failed "$number$what: $line (exit $code)"; head -n 5 out; }
    # The other column: the same options after the command of ours.
    line=$(sed -E 's/^ *`//; s/`.*$//' <<< "${theirs//$'\x01'/|}")
    case $line in
    llama-cli*) line="tenon chat${line#llama-cli}" ;;
    llama-completion*) line="tenon run${line#llama-completion}" ;;
    llama-server*) line="tenon serve${line#llama-server}" ;;
    llama-bench*) line="tenon bench${line#llama-bench}" ;;
    *) continue ;;
    esac
    bash -c "$line --help" > out 2>&1 || { failed "$number$what: $line"; head -n 5 out; }
done < rows
finish
