"""Makes a LoRA adapter or a control vector for a GGUF model, with random values: make_adapter.py MODEL OUT SEED [PATTERN].
PATTERN (default "attn_q|ffn_down") selects the weights; "directions" makes a control vector."""
import random
import re
import struct
import sys

model, out, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
pattern = sys.argv[4] if len(sys.argv) > 4 else "attn_q|ffn_down"
data = open(model, "rb")


def number(form):
    return struct.unpack("<" + form, data.read(struct.calcsize(form)))[0]


def text():
    return data.read(number("Q")).decode()


forms = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def value(kind):
    if kind == 8:
        return text()
    if kind == 9:
        inner, count = number("I"), number("Q")
        return [value(inner) for _ in range(count)]
    return number(forms[kind])


assert data.read(4) == b"GGUF"
number("I")
n_tensors, n_keys = number("Q"), number("Q")
keys = {}
for _ in range(n_keys):
    key = text()
    keys[key] = value(number("I"))
shapes = {}
for _ in range(n_tensors):
    name = text()
    shapes[name] = [number("Q") for _ in range(number("I"))]
    number("I"), number("Q")

arch = keys["general.architecture"]
random.seed(seed)
tensors = []
if pattern == "directions":
    for layer in range(1, keys[arch + ".block_count"]):
        tensors.append(("direction.%d" % layer, [keys[arch + ".embedding_length"]]))
else:
    for name, ne in shapes.items():
        if len(ne) == 2 and name.endswith(".weight") and re.search(pattern, name):
            lookup = name == "token_embd.weight"
            tensors += [(name + ".lora_a", [4, ne[1]] if lookup else [ne[0], 4]), (name + ".lora_b", [4, ne[0] if lookup else ne[1]])]


def put(s):
    return struct.pack("<Q", len(s)) + s.encode()


head = [("general.type", 8, put("adapter")), ("adapter.type", 8, put("lora")), ("general.architecture", 8, put(arch)),
        ("adapter.lora.alpha", 6, struct.pack("<f", 8))]
info, body = b"", b""
for name, ne in tensors:
    info += put(name) + struct.pack("<I", len(ne)) + b"".join(struct.pack("<Q", n) for n in ne) + struct.pack("<IQ", 0, len(body))
    count = 1
    for n in ne:
        count *= n
    body += struct.pack("<%df" % count, *(random.gauss(0, 0.05) for _ in range(count)))
    body += bytes(-len(body) % 32)
start = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(head)) + b"".join(put(k) + struct.pack("<I", t) + v for k, t, v in head) + info
with open(out, "wb") as file:
    file.write(start + bytes(-len(start) % 32) + body)
