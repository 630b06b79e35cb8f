#!/bin/bash
# Importance matrices, types below four bits and KL divergence as a user runs them: what imatrix measures is what the
# definition says, quantizing with it is closer to the original, and the files of log-probabilities are in order.
. "$(dirname "$0")/../support/checks.sh"
[ -x "$tenon" ] || skip "the tenon program is not built"
tales=$(cd "$(dirname "$0")/../../models" && pwd)/tales.gguf
[ -e "$tales" ] || skip "no models/tales.gguf"
ok() { "$@" > "$work/out" 2>&1 || failed "$*: $(head -n 5 "$work/out")"; }
same_files() { cmp -s "$1" "$2" || failed "$1 and $2 differ: $3"; }

cat > "$work/gguf.py" << 'END'
import struct, sys

def read(path):
    """Keys and f32 tensors (name: (shape, values)) of a GGUF file."""
    data, at = open(path, "rb").read(), 0
    def take(form):
        nonlocal at
        values = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return values[0] if len(values) == 1 else values
    def text():
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n : at].decode("utf-8", "replace")
    def value(kind):
        if kind == 8: return text()
        if kind == 9:
            inner, n = take("IQ")
            return [value(inner) for _ in range(n)]
        return take({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])
    _, _, n_tensors, n_keys = take("4sIQQ")
    keys = {}
    for _ in range(n_keys):
        name = text()
        keys[name] = value(take("I"))
    rows = []
    for _ in range(n_tensors):
        name, dims = text(), take("I")
        shape = [take("Q") for _ in range(dims)]
        rows.append((name, shape, take("I"), take("Q")))
    base = (at + 31) // 32 * 32
    tensors = {}
    for name, shape, kind, offset in rows:
        n = 1
        for k in shape: n *= k
        if kind == 0: tensors[name] = (shape, struct.unpack_from("<%df" % n, data, base + offset))
    return keys, tensors
END
check_file() { # description; a Python program is on standard input
    (cd "$work" && PYTHONPATH=$work python3 - "${@:2}") > "$work/python" 2>&1 || failed "$1: $(tail -n 3 "$work/python")"
}

# ---- What is measured ----
ok "$tenon" quantize "$tales" "$work/f32.gguf" F32 --requantize
for seed in 1 2 3 4; do "$tenon" run "$tales" -p "Once upon a time" -n 300 --seed $seed 2> /dev/null; echo; done > "$work/text"
check "imatrix says what it did" 0 '4 chunks of 64 tokens, perplexity [0-9.]+, .*for sums' \
    "$tenon" imatrix "$work/f32.gguf" -f "$work/text" -o "$work/small.gguf" -c 64 --chunks 4
"$tenon" tokenize "$work/f32.gguf" --add-special < "$work/text" > "$work/ids"
"$tenon" inspect "$work/f32.gguf" --key tokenizer.ggml.bos_token_id > "$work/bos"
check_file "inputs of the first layer" << 'END'
import re, gguf
keys, sums = gguf.read("small.gguf")
_, model = gguf.read("f32.gguf")
assert keys["general.type"] == "imatrix" and keys["imatrix.chunk_count"] == 4 and keys["imatrix.chunk_size"] == 64, keys
assert keys["imatrix.datasets"][0].endswith("text"), keys
ids = [int(n) for n in re.findall(r"\d+", open("ids").read())][:256]
bos = int(open("bos").read())
if ids[0] == bos: ids[::64] = [bos] * 4 # every chunk begins as the text does
width = model["token_embd.weight"][0][0]
embedding, norm = model["token_embd.weight"][1], model["blk.0.attn_norm.weight"][1]
expected = [0.0] * width
for token in ids:
    row = embedding[token * width : (token + 1) * width]
    scale = (sum(x * x for x in row) / width + 1e-5) ** -0.5
    for i in range(width): expected[i] += (row[i] * scale * norm[i]) ** 2
for name in ("attn_q", "attn_k", "attn_v"):
    shape, got = sums["blk.0.%s.weight.in_sum2" % name]
    assert shape == [width, 1] and sums["blk.0.%s.weight.counts" % name][1] == (256.0,), name
    worst = max(abs(a - b) / max(b, 1e-3) for a, b in zip(got, expected))
    assert worst < 1e-3, (name, worst)
assert len(sums) == 2 * 7 * 11, len(sums)
END
# The same bits for any number of threads and size of batches; sums of several runs.
ok "$tenon" imatrix "$work/f32.gguf" -f "$work/text" -o "$work/again.gguf" -c 64 --chunks 4 -t 1
same_files "$work/small.gguf" "$work/again.gguf" "another number of threads"
ok "$tenon" imatrix "$work/f32.gguf" -f "$work/text" -o "$work/twice.gguf" -c 64 --chunks 4 --in-file "$work/small.gguf" --process-output
check_file "--in-file and --process-output" << 'END'
import gguf
keys, twice = gguf.read("twice.gguf")
_, once = gguf.read("small.gguf")
assert keys["imatrix.chunk_count"] == 8, keys
for name, (shape, values) in once.items():
    assert all(abs(b - 2 * a) <= 1e-6 * b for a, b in zip(values, twice[name][1])), name
assert any(name in twice for name in ("output.weight.in_sum2", "token_embd.weight.in_sum2")), "no output matrix"
END
# Experts, recurrent and latent layers, encoders.
for arch in qwen3moe qwen35moe mamba2 deepseek2 dream bert; do
    ok "$tenon" synth "$work/s.gguf" --arch $arch -s layers=4,width=256,heads=4,kv=2,head=64,ffn=256,vocab=600,ctx=512
    ok "$tenon" imatrix "$work/s.gguf" -f "$work/text" -o "$work/s-im.gguf" -c 64 --chunks 2
    grep -q 'left out' "$work/out" && failed "$arch: $(cat "$work/out")"
    cp "$work/s-im.gguf" "$work/$arch.gguf"
    ok "$tenon" quantize "$work/s.gguf" "$work/q.gguf" IQ3_XXS --imatrix "$work/s-im.gguf"
    case $arch in bert | dream) ;; *) ok "$tenon" logits "$work/q.gguf" --tokens 5,300,301 --out "$work/l.f32" ;; esac
done
check_file "inputs of experts" << 'END'
import gguf
_, sums = gguf.read("qwen3moe.gguf")
for layer in range(4):
    counts = [sums["blk.%d.ffn_%s_exps.weight.counts" % (layer, n)][1] for n in ("gate", "up", "down")]
    assert counts[0] == counts[1] == counts[2] and sum(counts[0]) == 128 * 2 and len(counts[0]) == 8, counts
    shape, values = sums["blk.%d.ffn_up_exps.weight.in_sum2" % layer]
    assert shape == [256, 8]
    for e in range(8): assert (sum(values[256 * e : 256 * (e + 1)]) > 0) == (counts[0][e] > 0), e
END
ok "$tenon" synth "$work/s.gguf" --arch llama -s layers=1,width=128,heads=4,kv=2,ffn=256,vocab=600,ctx=512
check "a matrix of another model" 1 'belongs to another model' "$tenon" imatrix "$work/s.gguf" -f "$work/text" \
    -o "$work/x.gguf" -c 64 --in-file "$work/qwen3moe.gguf"
check "too short a text" 1 'fewer than one chunk' "$tenon" imatrix "$work/f32.gguf" -f "$work/gguf.py" -o "$work/x.gguf" -c 100000
check "an existing file" 1 'exists|--force' env TENON_FORCE= "$tenon" imatrix "$work/f32.gguf" -f "$work/text" -o "$work/small.gguf" -c 64 --no-force
check "the model itself" 1 '.' "$tenon" imatrix "$work/f32.gguf" -f "$work/text" -o "$work/f32.gguf" -c 64
[ -e "$work/x.gguf" ] && failed "a failed imatrix left a file"

# ---- Types below four bits ----
ok "$tenon" imatrix "$work/f32.gguf" -f "$work/text" -o "$work/im.gguf" -c 128
ok "$tenon" perplexity "$work/f32.gguf" -f "$work/text" -c 128 --chunks 6 --kl-divergence-base "$work/base"
kl() { # model
    "$tenon" perplexity "$1" --kl-divergence-base "$work/base" --kl-divergence --json 2> "$work/err" |
        sed -n 's/.*"kl": {"mean": \([0-9.-]*\).*/\1/p'
}
below() { python3 -c "import sys; sys.exit(not $1 < $2)" || failed "$3: $1 is not below $2"; }
previous=0
for type in Q4_K_M IQ3_S IQ2_XS IQ1_M; do
    ok "$tenon" quantize "$work/f32.gguf" "$work/q-$type.gguf" $type --imatrix "$work/im.gguf" -t 3
    divergence=$(kl "$work/q-$type.gguf")
    below "$previous" "$divergence" "KL divergence of $type and of the type before it"
    previous=$divergence
done
ok "$tenon" quantize "$work/f32.gguf" "$work/q.gguf" IQ2_XS
below "$(kl "$work/q-IQ2_XS.gguf")" "$(kl "$work/q.gguf")" "KL divergence with an importance matrix"
ok "$tenon" synth "$work/s.gguf" -s layers=4,width=256,heads=4,kv=2,head=64,ffn=256,vocab=600,ctx=512
for threads in 1 3; do ok "$tenon" quantize "$work/s.gguf" "$work/q-$threads.gguf" IQ3_S -t $threads; done
same_files "$work/q-1.gguf" "$work/q-3.gguf" "another number of threads"
for type in IQ1_S IQ2_XXS IQ2_S IQ2_M IQ3_XXS IQ3_XS IQ3_M Q2_K_S TQ1_0 TQ2_0; do
    ok "$tenon" quantize "$work/s.gguf" "$work/q.gguf" $type
    ok "$tenon" logits "$work/q.gguf" --tokens 5,300,301 --out "$work/l.f32"
done

# ---- Files of log-probabilities ----
check "a model and itself" 0 'same top token +100\.000' "$tenon" perplexity "$work/f32.gguf" --kl-divergence-base "$work/base" --kl-divergence
below "$(kl "$work/f32.gguf")" 0.00001 "KL divergence of a model from itself"
check_file "the format" << 'END'
import math, struct
data = open("base", "rb").read()
n_ctx, n_vocab, n_chunks = struct.unpack_from("<8xIII", data)
assert data[:8] == b"_logits_" and (n_ctx, n_vocab, n_chunks) == (128, 4096, 6)
row = n_vocab + 4
assert len(data) == 20 + 4 * n_ctx * n_chunks + 2 * row * n_chunks * (n_ctx - 1 - n_ctx // 2)
for k in (0, 100, 377):
    at = 20 + 4 * n_ctx * n_chunks + 2 * row * k
    scale, least = struct.unpack_from("<ff", data, at)
    numbers = struct.unpack_from("<%dH" % n_vocab, data, at + 8)
    assert abs(sum(math.exp(scale * n + least) for n in numbers) - 1) < 2e-3 and max(numbers) == 65535, k
END
head -c 100000 "$work/base" > "$work/short"
check "a truncated file" 1 'truncated or damaged' "$tenon" perplexity "$work/f32.gguf" --kl-divergence-base "$work/short" --kl-divergence
check "another file" 1 'not a file of log-probabilities' "$tenon" perplexity "$work/f32.gguf" --kl-divergence-base "$work/text" --kl-divergence
check "no file" 2 'needs --kl-divergence-base' "$tenon" perplexity "$work/f32.gguf" --kl-divergence
check "another vocabulary" 1 'vocabulary of 4096 tokens' "$tenon" perplexity "$work/s.gguf" --kl-divergence-base "$work/base" --kl-divergence
[ "$(find "$work" -name '*.partial' | wc -l)" = 0 ] || failed "a temporary file is left"
finish
