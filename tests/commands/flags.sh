#!/bin/bash
# llama.cpp's options and variables: every documented one is in the table (tenon help --flags), and run, chat, serve and bench do
# with each, as flag and as variable, what the table says. Values that people use; effects of loading and thread options.
. "$(dirname "$0")/../support/checks.sh"
command -v python3 > /dev/null || skip "needs python3"
here=$(cd "$(dirname "$0")" && pwd)
python3 "$here/../data/walk_flags.py" "$tenon" "$here/../data/llama_flags.tsv" || failed "the table of flags"

# Values as other programs take them.
run() { "$tenon" run -n 4 --temp 0 "$@" < /dev/null; }
expected=$(run 2> /dev/null)
for options in "-ngl all" "-ngl auto" "-ngl -1" "-t -1" "-dev none" "-dev CPU" "-ot exps=CPU,ffn=cpu" "-ot blk\\.[0-9]{1,2}\\.=CPU" \
    "-sm none" "-sm row" "-sm tensor" "-fa auto" "-fa" "--no-mmap" "-lm none" "-lm mmap+mlock" "--numa distribute" "--numa isolate" "--numa numactl" \
    "-t 1 -tb 2" "-t 2 -tb 1" "-C 0x1" "-Cr 0-0 --cpu-strict 1" "--poll 0" "--poll 100" "--prio -1" "-nr" "--no-pack" "--no-perf" "-rea off" "--top-k -1"; do
    # shellcheck disable=SC2086
    same "run $options" "$expected" "$(run $options 2> "$work/err")"
done
for type in q5_1 q5_0 q4_1 q4_0 q8_0 bf16 f32; do run -ctk $type > /dev/null 2>&1 || failed "-ctk $type"; done
check "a cache type that does not exist" 2 'cache-type-k q9_9' "$tenon" run -ctk q9_9
check "a processor that is not there" 1 'processor 1000' "$tenon" run -Cr 1000-1000
check "a mask that is none" 2 'hexadecimal' "$tenon" run -C xyz
check "more threads than processors" 0 'threads on .* processors' "$tenon" run -t 1000 -n 1
check "a longer context than trained" 0 'longer than the 512' "$tenon" run -c 1024 -n 1
check "a GPU that is not there" 1 'main-gpu 7' "$tenon" run -sm none -mg 7
check "an unknown division" 2 'none layer row tensor' "$tenon" run -sm column

check "a chat template without an expression" 0 'the chat template has no expression' "$tenon" chat -m "$here/../../models/tales.gguf" --chat-template "Once upon a time" -n 1 "Hi"
check "a chat template of an unknown name" 2 'takes Jinja or one of:.* chatml .*; not "nonsense"' "$tenon" chat -m "$here/../../models/tales.gguf" --chat-template nonsense "Hi"
check "a file as a chat template" 2 'chat-template-file reads a template from /etc/passwd' "$tenon" serve --port 0 --chat-template /etc/passwd
check "a model to serve that is not there" 1 'To download it from Hugging Face: -hf owner/repo$' timeout 10 "$tenon" serve --port 0 owner/repo
grep -q listening "$work/out" && failed "a model that is not there is found before the server listens"

# "Did you mean" names only near options that exist.
check "no near option" 2 '^tenon: unknown option --no-xyzw$' "$tenon" run --no-xyzw
check "a near option" 2 'did you mean --no-mmap' "$tenon" run --no-mmpa
check "an option of others in a command without a model" 2 'unknown option --jinja' "$tenon" version --jinja

# Options that take any text: what they do, as flag and as variable.
check "--log-file" 0 . "$tenon" run -n 1 -v --log-file "$work/log1"
LLAMA_ARG_LOG_FILE=$work/log2 check "LLAMA_ARG_LOG_FILE" 0 . "$tenon" run -n 1 -v
for log in log1 log2; do grep -q 'tales.gguf' "$work/$log" || failed "$log has no log"; done
hub=$work/hub/models--own--repo
mkdir -p "$hub/refs" "$hub/snapshots/0"
printf 0 > "$hub/refs/main"
cp "$here/../../models/tales.gguf" "$hub/snapshots/0/tales-Q4_K_M.gguf"
export HF_HUB_CACHE=$work/hub
check "a cached model" 0 . "$tenon" run --offline -hf own/repo -n 1
check "--hf-file" 1 'own/repo was not downloaded' "$tenon" run --offline -hf own/repo -hff other.gguf -n 1
LLAMA_ARG_HF_FILE=other.gguf check "LLAMA_ARG_HF_FILE" 1 'own/repo was not downloaded' "$tenon" run --offline -hf own/repo -n 1
LLAMA_ARG_HF_FILE=other.gguf check "a flag before a variable" 0 . "$tenon" run --offline -hf own/repo -hff tales-Q4_K_M.gguf -n 1
unset HF_HUB_CACHE
effort=(-cnv -st -p Hi -n 1 --chat-template '{{ raise_exception("effort " ~ reasoning_effort) }}')
check "--reasoning-effort" 1 'effort high' "$tenon" run "${effort[@]}" --reasoning-effort high
LLAMA_ARG_REASONING_EFFORT=low check "LLAMA_ARG_REASONING_EFFORT" 1 'effort low' "$tenon" run "${effort[@]}"
check "-devd" 1 'nonsense' "$tenon" run -n 1 -md "$here/../../models/tales-draft.gguf" -devd nonsense
LLAMA_ARG_API_PREFIX=nonsense check "LLAMA_ARG_API_PREFIX" 2 'begins with a slash' "$tenon" serve --port 0
if command -v curl > /dev/null; then
    LLAMA_ARG_ALIAS=fabler LLAMA_ARG_TAGS=old,red LLAMA_API_KEY=sesame LLAMA_ARG_API_PREFIX=/llm LLAMA_ARG_CORS_ORIGINS=https://a.example \
        LLAMA_ARG_SSE_PING_INTERVAL=1 LLAMA_ARG_ENDPOINT_METRICS=1 "$tenon" serve --port 0 --grammar 'root ::= " yes" | " no"' > "$work/served" 2>&1 &
    pid=$!
    for _ in $(seq 200); do grep -q 'is ready' "$work/served" && break || sleep 0.05; done
    url=$(grep -oE 'http://[0-9.:]+' "$work/served" | head -n 1)/llm
    ask() { curl -s -i -H "Authorization: Bearer ${key:-sesame}" -H 'Origin: https://a.example' "$@"; }
    models=$(ask "$url/v1/models")
    grep -q '"fabler"' <<< "$models" || failed "LLAMA_ARG_ALIAS, LLAMA_ARG_API_PREFIX: $models"
    grep -q '"red"' <<< "$models" || failed "LLAMA_ARG_TAGS: $models"
    grep -qi 'Access-Control-Allow-Origin: https://a.example' <<< "$models" || failed "LLAMA_ARG_CORS_ORIGINS: $models"
    grep -qE '"content":" (yes|no)"' <<< "$(ask "$url/completion" -d '{"prompt":"Is it?"}')" || failed "--grammar of the server"
    grep -qE '"content":" (fox|hen)"' <<< "$(ask "$url/completion" -d '{"prompt":"Is it?","grammar":"root ::= \" fox\" | \" hen\""}')" ||
        failed "a request's grammar replaces that of the server"
    key=wrong; grep -q '401' <<< "$(ask "$url/v1/models")" || failed "LLAMA_API_KEY"
    key=sesame; grep -q 'HTTP/1.1 200' <<< "$(ask "$url/metrics")" || failed "LLAMA_ARG_ENDPOINT_METRICS"
    kill $pid
    wait $pid
fi

# Values of the command line replace those of variables, also where an option may be repeated.
LLAMA_ARG_DEVICE=sim:1G check "-dev before LLAMA_ARG_DEVICE" 0 'cpu: 11 layers' "$tenon" run -n 1 -v -dev cpu
grep -q 'sim' "$work/out" && failed "the variable adds a device"
LLAMA_ARG_OVERRIDE_TENSOR=nonsense check "-ot before LLAMA_ARG_OVERRIDE_TENSOR" 0 . "$tenon" run -n 1 -ot ffn=CPU

# llama-bench gives every switch a value.
check "bench with values of switches" 0 'pp4' "$tenon" bench -p 4 -n 0 -r 1 -o md -ngl 99 -fa 0,1 -mmp 0 -nkvo 0 --no-host 0 --no-op-offload 0
check "bench with a refused switch" 2 'nkvo is not supported' "$tenon" bench -p 4 -n 0 -nkvo 1

# Effects.
locked() { # of the running program, in KiB
    awk '/VmLck/ { print $2 }' "/proc/$1/status"
}
hold() { # options…: starts a chat, waits until it has answered, leaves it waiting for input; pid in $pid
    mkfifo "$work/in.$((++fifo))"
    "$tenon" chat -n 1 "$@" < "$work/in.$fifo" > "$work/out" 2> "$work/err" &
    pid=$!
    exec 9> "$work/in.$fifo"
    echo "A fox" >&9
    for _ in $(seq 200); do
        [ -s "$work/out" ] && break
        sleep 0.05
    done
}
release() {
    exec 9>&-
    wait "$pid"
}
fifo=0
hold
maps=$(grep -c tales.gguf "/proc/$pid/maps")
[ "$maps" -gt 0 ] || failed "weights are mapped by default"
same "nothing is locked by default" 0 "$(locked $pid)"
release
hold --no-mmap
same "--no-mmap maps nothing" 0 "$(grep -c tales.gguf "/proc/$pid/maps")"
release
LLAMA_ARG_NO_MMAP=1 hold
same "LLAMA_ARG_NO_MMAP maps nothing" 0 "$(grep -c tales.gguf "/proc/$pid/maps")"
release
LLAMA_ARG_NO_JINJA=1 check "LLAMA_ARG_NO_ of what is always on" 0 'note: LLAMA_ARG_NO_JINJA has no effect' "$tenon" run -n 1
hold --mlock
if ! grep -q 'cannot be locked' "$work/err"; then
    [ "$(locked $pid)" -gt 9000 ] || failed "--mlock locks only $(locked $pid) KiB"
fi
release
if [ -e /proc/self/numa_maps ]; then # what the threads allocate from now on
    for placement in distribute=interleave isolate=prefer numactl=default; do
        hold --numa "${placement%=*}"
        grep -q "^[0-9a-f]* ${placement#*=}.*heap" "/proc/$pid/numa_maps" || failed "--numa ${placement%=*} does not place memory"
        release
    done
fi
if [ "$(nproc)" -ge 2 ]; then
    hold -t 2 -Cr 0-1 --cpu-strict 1
    grep -h Cpus_allowed_list "/proc/$pid"/task/*/status | grep -qE '\s1$' || failed "--cpu-strict: no thread on processor 1 alone"
    release
fi
for threads in 1 2; do
    hold -t $threads --prio -1
    awk '{ print $19 }' "/proc/$pid"/task/*/stat | grep -qvx 10 && failed "--prio -1 with $threads threads: not all have a lower priority"
    release
done
if [ "$(nproc)" -ge 2 ]; then # the thread that waits for the others computes as well, within the mask
    "$tenon" run -t 2 -C 2 -n -1 --ignore-eos --context-shift > /dev/null 2>&1 &
    pid=$!
    for _ in $(seq 400); do
        masked=$(grep -c 'Cpus_allowed:.*[^0-9,]0*2$' "/proc/$pid/status")
        [ "$masked" = 1 ] && break
        sleep 0.01
    done
    kill $pid
    wait $pid
    same "--cpu-mask holds for the first thread" 1 "$masked"
fi
check "--rope-freq-base changes the text" 0 . "$tenon" run -n 24 --temp 0 --rope-freq-base 100
cmp -s "$work/out" <("$tenon" run -n 24 --temp 0 2>&1) && failed "--rope-freq-base has no effect"
"$tenon" run -n 24 --temp 0 --rope-scale 4 > "$work/a" 2> /dev/null
"$tenon" run -n 24 --temp 0 --rope-freq-scale 0.25 > "$work/b" 2> /dev/null
cmp -s "$work/a" "$work/b" || failed "--rope-scale 4 is --rope-freq-scale 0.25"
cmp -s "$work/a" <("$tenon" run -n 24 --temp 0 2> /dev/null) && failed "--rope-scale has no effect"

# Sampling.
check "a ban by --logit-bias" 0 . "$tenon" run -n 1 --temp 0
first=$("$tenon" tokenize -m "$here/../../models/tales.gguf" "," 2> /dev/null | grep -oE '[0-9]+' | tail -1)
[ -n "$first" ] && same "--logit-bias forces a token" "Once upon a time," "$(run -n 1 -l "$first+100" 2> /dev/null)"
check "--logit-bias without a bias" 2 '15043' "$tenon" run -l 15043
check "--samplers" 0 . "$tenon" run -n 2 --samplers "penalties;top_k;typ_p;temperature"
check "--samplers with a wrong name" 2 'samplers' "$tenon" run --samplers "nonsense"
check "--sampler-seq" 0 . "$tenon" run -n 2 --sampler-seq edskypmxt
check "--sampler-seq with a wrong letter" 2 "sampler 'z'" "$tenon" run --sampler-seq kz
same "--sampler-seq k alone with --top-k 1 is greedy" "$expected" "$("$tenon" run -n 4 --sampler-seq k --top-k 1 --temp 5 < /dev/null 2> /dev/null)"
finish
