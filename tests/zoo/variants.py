#!/usr/bin/env python3
"""variants.py BUILD [--seed N] [--only NAME,...] [--tied] [W=N] [H=N] [K=N] [F=N] [V=N] [L=N] [E=N]

Models of the golden zoo with other weights and shapes, compared with llama.cpp (bench/peers/install.sh): as a batch, cut at every
position, as two sequences, with the planned bytes. W: width, H: heads, K: key/value heads, F: feed-forward width, V: vocabulary,
L: layers, E: experts used; --tied leaves the output matrix out. Without numbers a list of odd shapes is tried. Prints the models
beyond NMSE 1e-6; those that llama.cpp does not load are counted. Exits with 77 without the golden data or the peer.
"""
import argparse
import os
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(os.environ.get("TENON_GOLDEN", os.path.join(HERE, "../../../shared/golden")), "zoo")
PEERS = os.environ.get("PEERS_DIR", os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "tenon-peers"))
OBJECTS = os.path.join(PEERS, "node_modules/@node-llama-cpp/linux-x64/bins/linux-x64")
SHAPES = ["", "W=120 H=5 K=1 F=200 V=131", "W=96 H=4 K=2 F=100 V=97 E=1 L=1", "W=72 H=3 K=3 F=56 V=211 L=5 E=3",
          "W=56 H=7 K=7 F=72 V=149 L=2", "W=160 H=2 K=1 F=96 V=127 E=1", "--tied W=120 H=5 K=5 F=40 V=101",
          "--tied W=256 H=4 K=2 V=313"]
# The peer's version differs from the golden logits as well, follows another reference, or computes single tokens only causally.
EXCEPT = {"olmo2-dense", "olmoe-moe", "minimax-m2-moe", "qwen35-dense", "qwen35moe-moe", "qwen3next-moe", "step35-moe", "phimoe-moe",
          "gemma3n-dense", "gemma4-dense", "t5-dense", "dream-dense", "llada-dense", "llada-moe-moe", "rnd1-moe"}
SIZES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def read_keys(path):
    """The metadata of a GGUF file: {key: value}."""
    data, at = open(path, "rb").read(), 24
    def take(layout):
        nonlocal at
        values = struct.unpack_from("<" + layout, data, at)
        at += struct.calcsize("<" + layout)
        return values[0]
    def value(kind):
        nonlocal at
        if kind == 8:
            size = take("Q")
            at += size
            return data[at - size:at].decode("utf-8", "replace")
        if kind == 9:
            of, count = take("I"), take("Q")
            return [value(of) for _ in range(count)]
        return take(SIZES[kind])
    keys = {}
    for _ in range(struct.unpack_from("<Q", data, 16)[0]):
        name = value(8)
        keys[name] = value(take("I"))
    return keys


def changed(keys, new):
    """The keys of a model that follow from new numbers, without the architecture's name."""
    arch = keys["general.architecture"]
    old = {name[len(arch) + 1:]: v for name, v in keys.items() if name.startswith(arch + ".")}
    layers, old_width, heads = old["block_count"], old["embedding_length"], old["attention.head_count"]
    old_heads = max(heads) if isinstance(heads, list) else heads
    latent, length = "attention.kv_lora_rank" in old, new.get("L", layers)
    width, count = new.get("W", old_width), new.get("H", old_heads)
    old_head = old.get("attention.key_length", old_width // old_heads)
    head = old.get("attention.key_length", width // count)
    def each(v, number):
        return [number if v[i % len(v)] else 0 for i in range(length)] if isinstance(v, list) else (number if v else 0)
    out = {"embedding_length": width, "attention.head_count": each(heads, count)}
    if not latent: out["attention.head_count_kv"] = each(old["attention.head_count_kv"], new.get("K", count))
    if "F" in new: out["feed_forward_length"] = each(old["feed_forward_length"], new["F"])
    if "V" in new: out["vocab_size"] = new["V"]
    if "E" in new and "expert_used_count" in old: out["expert_used_count"] = new["E"]
    if length != layers:
        out["block_count"] = length
        for name, v in old.items():
            if isinstance(v, list) and len(v) == layers and name not in out: out[name] = [v[i % layers] for i in range(length)]
    if "rope.dimension_count" in old and not latent:
        rotated = old["rope.dimension_count"]
        out["rope.dimension_count"] = head if rotated == old_head else head // 4 * 2 if rotated == old_head // 2 else rotated
    if "rope.dimension_sections" in old and "attention.key_length" not in old:
        pairs = head // 2
        out["rope.dimension_sections"] = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3, 0]
    if arch in ("mamba", "jamba", "plamo2", "mamba2", "falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe"):
        out["ssm.inner_size"] = 2 * width
    return out


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def compare(work, build, name, seed, new, tied):
    """"within", "beyond" with the report, or "skipped"."""
    model, weights, logits = (os.path.join(work, part) for part in ("model.gguf", "weights.gguf", "logits"))
    base = os.path.join(work, name)
    if not os.path.exists(base): run(os.path.join(work, "fill"), os.path.join(GOLDEN, name + ".head"), base, "7")
    numbers = ["%s=%s" % (key, ",".join(map(str, v)) if isinstance(v, list) else v) for key, v in changed(read_keys(base), new).items()]
    made = run(os.path.join(build, "tests/zoo_variant"), base, model, *numbers, *(["-output.weight"] if tied else []))
    if made.returncode: return "skipped", made.stderr
    run(os.path.join(work, "fill"), model, weights, str(seed))
    peer = run(os.path.join(build, "tests/peer_logits"), OBJECTS, weights, logits, str(seed), env=dict(os.environ, LD_LIBRARY_PATH=OBJECTS))
    if peer.returncode: return "skipped", peer.stderr
    ties = {"TENON_ZOO_TIES": "heap"} if name.startswith(("deepseek32", "glm-dsa", "dots3note")) else {}
    ours = run(os.path.join(build, "tests/zoo"), weights, logits, "batch", "cuts", "pairs", "fit", env=dict(os.environ, **ties))
    return ("within" if ours.returncode == 0 else "beyond"), (ours.stdout + ours.stderr).strip().replace("\n", "; ")


def try_shape(work, arguments, shape):
    new, tied = {}, arguments.tied or "--tied" in shape.split()
    for item in shape.split():
        if "=" in item: new[item.split("=")[0]] = int(item.split("=")[1])
    counts = {"within": 0, "beyond": 0, "skipped": 0}
    names = sorted(file[:-5] for file in os.listdir(GOLDEN) if file.endswith(".head"))
    for name in names:
        if (arguments.only and name not in arguments.only.split(",")) or (not arguments.only and name in EXCEPT): continue
        result, text = compare(work, arguments.build, name, arguments.seed, new, tied)
        counts[result] += 1
        if result == "beyond" or arguments.only: print("%s: %s %s" % (name, result, text))
    print("%-36s %3d within, %d beyond, %d not loaded" % (shape or "shapes of the zoo", counts["within"], counts["beyond"], counts["skipped"]), flush=True)
    return counts["beyond"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("numbers", nargs="*")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--only", default="")
    parser.add_argument("--tied", action="store_true")
    arguments = parser.parse_intermixed_args()
    if not os.path.isdir(GOLDEN) or not os.path.isdir(OBJECTS):
        print("skipped: no golden data at %s, or no peer at %s" % (GOLDEN, OBJECTS))
        return 77
    with tempfile.TemporaryDirectory() as work:
        if run("cc", "-O2", os.path.join(GOLDEN, "fill.c"), "-o", os.path.join(work, "fill"), "-lm").returncode: return 2
        shapes = [" ".join(arguments.numbers)] if arguments.numbers else SHAPES
        return 1 if sum(try_shape(work, arguments, shape) for shape in shapes) else 0


if __name__ == "__main__":
    sys.exit(main())
