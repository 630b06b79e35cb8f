#!/bin/bash
# The commands on model files as a user runs them: inspect, synth, quantize, split, merge.
. "$(dirname "$0")/../support/checks.sh"
[ -x "$tenon" ] || skip "the tenon program is not built"
ok() { "$@" > "$work/out" 2>&1 || failed "$*: $(head -n 5 "$work/out")"; }
refused() { # pattern, command…
    local pattern=$1
    shift
    if "$@" > "$work/out" 2>&1; then failed "$* succeeded"; fi
    grep -qE -- "$pattern" "$work/out" || failed "$*: no \"$pattern\" in: $(head -n 5 "$work/out")"
}
says() { # pattern, command…
    local pattern=$1
    shift
    ok "$@"
    grep -qE -- "$pattern" "$work/out" || failed "$*: no \"$pattern\" in: $(head -n 20 "$work/out")"
}
same_files() { cmp -s "$1" "$2" || failed "$1 and $2 differ: $3"; }
leftovers() { [ "$(find "$work" -name '*.partial' | wc -l)" = 0 ] || failed "$1 left a temporary file"; }

# ---- synth ----
ok "$tenon" synth "$work/a.gguf" --type f16 --seed 5 --threads 1
ok "$tenon" synth "$work/b.gguf" --type f16 --seed 5 --threads 5
same_files "$work/a.gguf" "$work/b.gguf" "the same seed on another number of threads"
ok "$tenon" synth "$work/set.gguf" --arch mamba2 --shape layers=2,width=128 --set ssm.state_size=48 --set ssm.group_count=2
says 'mamba2.ssm.state_size +u32 +48' "$tenon" inspect "$work/set.gguf"
ok "$tenon" synth "$work/set.gguf" --arch qwen35 --set rope.dimension_sections=2,1,1,0
says 'rope.dimension_sections +.*2, 1, 1, 0' "$tenon" inspect "$work/set.gguf"
refused 'whole number' "$tenon" synth "$work/bad.gguf" --set ssm.state_size=x
ok "$tenon" synth "$work/c.gguf" --type f16 --seed 6
cmp -s "$work/a.gguf" "$work/c.gguf" && failed "another seed gave the same file"
architectures=$("$tenon" help --architectures | sed -n 's/^| \([a-z0-9_-]*\) | \([a-z]*\) *\([a-z]*\).*/\1=\2-\3/p')
[ "$(wc -w <<< "$architectures")" -ge 29 ] || failed "help --architectures lists too few"
for row in $architectures; do
    ok "$tenon" synth "$work/arch.gguf" --arch "${row%%=*}" --type q8_0
    case ${row#*=} in
        embeddings*) ok "$tenon" embed "$work/arch.gguf" -p hello ;;
        text-diffusion) refused 'not causal' "$tenon" logits "$work/arch.gguf" --tokens 5,300,301 --out "$work/arch.f32" ;;
        *) ok "$tenon" logits "$work/arch.gguf" --tokens 5,300,301 --out "$work/arch.f32" ;;
    esac
done
ok "$tenon" synth "$work/custom.gguf" --shape layers=1,width=64,heads=2,kv=1,ffn=96,vocab=600,ctx=100,experts=4,used=2
says 'experts used +2' "$tenon" inspect "$work/custom.gguf"
refused 'is expected' "$tenon" synth "$work/x.gguf" --shape layers=1,depth=3
refused 'cannot share' "$tenon" synth "$work/x.gguf" --shape heads=4,kv=3
refused 'unknown architecture' "$tenon" synth "$work/x.gguf" --arch nothing
refused 'at least 512' "$tenon" synth "$work/x.gguf" --shape vocab=100
refused 'No such file' "$tenon" synth "$work/no/folder.gguf"

# A 70B model without data is made and inspected within two seconds.
start=$(date +%s%N)
ok "$tenon" synth "$work/70b.gguf" --shape 70b --type Q4_K_M --no-data
says '70.55 B' "$tenon" inspect "$work/70b.gguf"
took=$((($(date +%s%N) - start) / 1000000))
[ "$took" -lt 2000 ] || failed "synth and inspect of a 70B plan took $took ms"
refused 'only for planning' "$tenon" quantize "$work/70b.gguf" "$work/x.gguf" Q8_0
if (ulimit -v 100000 && "$tenon" version > /dev/null 2>&1); then # sanitizers need more
    (ulimit -v 100000 && "$tenon" inspect "$work/70b.gguf" > /dev/null 2>&1) || failed "inspect of a 70B plan needs over 100 MB"
fi

# ---- inspect ----
says '^architecture +llama' "$tenon" inspect "$work/a.gguf"
says 'blk.1.ffn_down.weight +f16 +\[512, 256\]' "$tenon" inspect "$work/a.gguf" --tensors
says '^llama$' "$tenon" inspect "$work/a.gguf" --key general.architecture
[ "$("$tenon" inspect "$work/a.gguf" --key tokenizer.ggml.tokens | wc -l)" = 1024 ] || failed "--key of an array"
refused 'no metadata key' "$tenon" inspect "$work/a.gguf" --key no.such
refused 'no tensor' "$tenon" inspect "$work/a.gguf" --tensor no.such
refused 'needs --tensor' "$tenon" inspect "$work/a.gguf" --out "$work/x"
refused 'No such file' "$tenon" inspect "$work/nothing.gguf"
head -c 1000 "$work/a.gguf" > "$work/cut.gguf"
refused 'byte [0-9]+: .*(the file ends inside|more than the rest of the file)' "$tenon" inspect "$work/cut.gguf"
head -c 500000 "$work/a.gguf" > "$work/cut.gguf"
refused 'cut short or damaged' "$tenon" inspect "$work/cut.gguf"

# ---- quantize ----
for type in Q4_K_M Q4_K_S Q5_K_M Q5_K_S Q3_K_S Q3_K_M Q3_K_L Q2_K Q6_K Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 IQ4_NL IQ4_XS F16 BF16 F32 MXFP4; do
    ok "$tenon" quantize "$work/a.gguf" "$work/q.gguf" $type
    ok "$tenon" inspect "$work/q.gguf"
done
ok "$tenon" quantize "$work/a.gguf" "$work/q1.gguf" Q4_K_M --threads 1
ok "$tenon" quantize "$work/a.gguf" "$work/q2.gguf" Q4_K_M --threads 6
same_files "$work/q1.gguf" "$work/q2.gguf" "the same model on another number of threads"
"$tenon" inspect "$work/q1.gguf" --tensors > "$work/out"
grep -q 'output.weight *q6_K' "$work/out" || failed "Q4_K_M: the output is not q6_K"
grep -q 'blk.0.attn_q.weight *q4_K' "$work/out" || failed "Q4_K_M: attn_q is not q4_K"
grep -q 'blk.1.attn_v.weight *q6_K' "$work/out" || failed "Q4_K_M: attn_v of the last layer is not q6_K"
grep -q 'attn_norm.weight *f32' "$work/out" || failed "Q4_K_M: norms are not f32"
ok "$tenon" quantize "$work/a.gguf" "$work/q.gguf" Q4_K_M --keep-output --tensor-type 'ffn_(up|down)=q8_0' --tensor-type 'blk\.0\.ffn_up=q5_1'
"$tenon" inspect "$work/q.gguf" --tensors > "$work/out"
grep -q 'output.weight *f16' "$work/out" || failed "--keep-output"
grep -q 'blk.1.ffn_up.weight *q8_0' "$work/out" || failed "--tensor-type"
grep -q 'blk.0.ffn_up.weight *q5_1' "$work/out" || failed "the last --tensor-type does not win"
ok "$tenon" quantize "$work/a.gguf" "$work/q3.gguf" 15 2 # as numbers, and threads
cmp -s "$work/q1.gguf" "$work/q3.gguf" || fail "type 15 is Q4_K_M"
refused 'unexpected argument' "$tenon" quantize "$work/a.gguf" "$work/x.gguf" Q4_K_M nonsense
ok "$tenon" quantize "$work/a.gguf" "$work/q4.gguf" Q8_0 --pure --output-tensor-type q5_1 --token-embedding-type q5_0
"$tenon" inspect "$work/q4.gguf" --tensors > "$work/types"
for line in 'token_embd.weight .*q5_0' 'output.weight .*q5_1' 'ffn_down.weight .*q8_0'; do
    grep -q "$line" "$work/types" || fail "quantize: no $line"
done
refused 'already' "$tenon" quantize "$work/q1.gguf" "$work/x.gguf" Q8_0
ok "$tenon" quantize "$work/q1.gguf" "$work/x.gguf" Q8_0 --requantize
refused 'unknown type' "$tenon" quantize "$work/a.gguf" "$work/x.gguf" Q4_K_XXL
refused 'REGEX=TYPE' "$tenon" quantize "$work/a.gguf" "$work/x.gguf" Q8_0 --tensor-type nonsense
refused 'No such file' "$tenon" quantize "$work/a.gguf" "$work/x.gguf" Q8_0 --importance "$work/nothing"
refused 'ends too early|not an importance file' "$tenon" quantize "$work/a.gguf" "$work/x.gguf" Q8_0 --importance "$work/out"

# Quantizing works in chunks: a file of 239 MiB, whose largest tensor has 47 MiB, needs less than 140 MB.
ok "$tenon" synth "$work/large.gguf" --shape 100m --type f16
if (ulimit -v 100000 && "$tenon" version > /dev/null 2>&1); then # sanitizers need more
    (ulimit -v 140000 && "$tenon" quantize "$work/large.gguf" "$work/x.gguf" Q8_0 --threads 2 > /dev/null 2>&1) ||
        failed "quantize needs over 140 MB for a file of 239 MiB"
fi

# An interrupted command leaves no file.
rm -f "$work/x.gguf"
"$tenon" quantize "$work/large.gguf" "$work/x.gguf" Q4_K_M --threads 1 > /dev/null 2>&1 &
pid=$!
sleep 0.2
kill -INT $pid 2> /dev/null && { wait $pid; code=$?; } || { wait $pid; code=done; }
if [ "$code" != done ] && [ "$code" != 0 ]; then
    [ "$code" = 130 ] || failed "an interrupted quantize ended with $code"
    [ ! -e "$work/x.gguf" ] || failed "an interrupted quantize left a file"
    leftovers "an interrupted quantize"
fi

# A full disk is an error before the work begins, and leaves no file.
mkdir "$work/disk"
if unshare -rm true 2> /dev/null; then
    # shellcheck disable=SC2016
    refused 'not enough disk space|No space left' unshare -rm bash -c 'mount -t tmpfs -o size=4m none "$2" || exit 0
        "$1" quantize "$3" "$2/x.gguf" Q8_0; code=$?; ls -A "$2" | sed "s/^/left: /"; exit $code' - "$tenon" "$work/disk" "$work/large.gguf"
    grep -q '^left: ' "$work/out" && failed "a full disk: $(cat "$work/out")"
else
    echo "note: no user namespaces here; the full disk was not tested"
fi

# A file that is truncated while its weights are mapped.
http() { # port, request; the answer on standard output
    timeout 20 bash -c 'exec 3<> "/dev/tcp/127.0.0.1/$1" && printf "%s" "$2" >&3 && cat <&3' - "$1" "$2" 2> /dev/null
}
serve_and_ask() { # file, size to truncate it to; the messages are in $work/out
    local port='' pid body='{"prompt": "a", "max_tokens": 2}' end=$'\r\nConnection: close\r\n'
    "$tenon" serve "$1" --port 0 -t 1 > /dev/null 2> "$work/out" &
    pid=$!
    for _ in $(seq 200); do
        port=$(sed -n 's/.*listening at http:.*:\([0-9]*\)$/\1/p' "$work/out")
        [ -n "$port" ] && http "$port" $'GET /health HTTP/1.1\r\nHost: localhost'"$end"$'\r\n' | grep -q ' 200 ' && break
        sleep 0.05
    done
    truncate -s "$2" "$1"
    http "$port" $'POST /v1/completions HTTP/1.1\r\nHost: localhost'"$end"$'Content-Type: application/json\r\nContent-Length: '"${#body}"$'\r\n\r\n'"$body" > "$work/answer"
    kill "$pid" 2> /dev/null
    wait "$pid"
}
cp "$work/large.gguf" "$work/shrinks.gguf"
serve_and_ask "$work/shrinks.gguf" 200000
grep -q 'was truncated while it was in use' "$work/out" || failed "a truncated file: $(cat "$work/out" "$work/answer")"

# ---- split and merge ----
ok "$tenon" split "$work/q1.gguf" "$work/parts.gguf" --max-size 200K
says '[0-9]+ parts' "$tenon" inspect "$work"/parts-00002-of-*.gguf
ok "$tenon" merge "$work"/parts-00001-of-*.gguf "$work/merged.gguf"
same_files "$work/q1.gguf" "$work/merged.gguf" "split and merged"
rm "$work"/parts-00002-of-*.gguf
refused '00002-of' "$tenon" merge "$work"/parts-00001-of-*.gguf "$work/x2.gguf"
leftovers "all of this"

# ---- Golden files ----
if [ -d "$golden/quants" ]; then
    # Dequantized values are those of the reference, bit for bit (the bar is 1e-6 of a block's largest magnitude).
    for expected in "$golden"/quants/*.deq.f32; do
        name=$(basename "$expected" .deq.f32)
        ok "$tenon" inspect "$golden/quants/all.gguf" --tensor "$name" --out "$work/deq.f32"
        same_files "$work/deq.f32" "$expected" "$name"
    done
    for file in "$golden"/{archs,vocab,models}/*.gguf; do ok "$tenon" inspect "$file" --tensors; done
else
    echo "note: no golden data (set TENON_GOLDEN)"
fi

finish
