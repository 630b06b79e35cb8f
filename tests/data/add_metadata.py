"""Adds metadata to a GGUF file: add_metadata.py IN OUT KEY=TEXT… ; KEY:=NUMBER is a 32-bit number."""
import struct
import sys


def row(key, value, number):
    kind, content = (4, struct.pack("<I", int(value))) if number else (8, struct.pack("<Q", len(value)) + value)
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + content


with open(sys.argv[1], "rb") as file:
    data = file.read()
magic, version, tensors, keys = struct.unpack_from("<4sIQQ", data)
rows = b""
for text in sys.argv[3:]:
    name, value = text.encode().split(b"=", 1)
    rows += row(name.rstrip(b":"), value, name.endswith(b":"))
# The tensor data begins at a multiple of the alignment: metadata grows by a multiple of it.
pad = -(len(rows) + len(row(b"x.padding", b"", False))) % 64
rows += row(b"x.padding", b" " * pad, False)
with open(sys.argv[2], "wb") as file:
    file.write(struct.pack("<4sIQQ", magic, version, tensors, keys + len(sys.argv) - 2) + rows + data[24:])
