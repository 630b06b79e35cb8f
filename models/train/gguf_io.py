"""Just enough GGUF for training: read an f16/f32/q8_0 Llama file, write one."""
import struct

import numpy as np

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


class Reader:
    def __init__(self, path):
        self.data = np.memmap(path, dtype=np.uint8, mode="r")
        self.at = 0
        magic, version, n_tensors, n_keys = self.unpack("<4sIQQ")
        assert magic == b"GGUF" and version >= 2, "not a GGUF file"
        self.keys = {}
        for _ in range(n_keys):
            name = self.text()
            (kind,) = self.unpack("<I")
            self.keys[name] = self.value(kind)
        infos = []
        for _ in range(n_tensors):
            name = self.text()
            (n_dims,) = self.unpack("<I")
            shape = self.unpack("<%dQ" % n_dims)
            kind, offset = self.unpack("<IQ")
            infos.append((name, shape, kind, offset))
        align = self.keys.get("general.alignment", 32)
        base = (self.at + align - 1) // align * align
        self.tensors = {}
        for name, shape, kind, offset in infos:
            assert kind in (0, 1, 8), "only f32, f16 and q8_0 tensors are read: " + name
            if kind == 8:  # blocks of 32: a scale, then bytes
                blocks = self.data[base + offset : base + offset + int(np.prod(shape)) // 32 * 34].reshape(-1, 34)
                scales = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
                values = np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32) * scales
                self.tensors[name] = values.reshape(tuple(reversed(shape)))
                continue
            dtype = np.float32 if kind == 0 else np.float16
            count = int(np.prod(shape))
            raw = self.data[base + offset : base + offset + count * np.dtype(dtype).itemsize]
            self.tensors[name] = raw.view(dtype).reshape(tuple(reversed(shape))).astype(np.float32)

    def unpack(self, form):
        size = struct.calcsize(form)
        values = struct.unpack(form, self.data[self.at : self.at + size].tobytes())
        self.at += size
        return values

    def raw(self):
        (size,) = self.unpack("<Q")
        out = self.data[self.at : self.at + size].tobytes()
        self.at += size
        return out

    def text(self):
        return self.raw().decode("utf-8", "surrogateescape")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, count = self.unpack("<IQ")
            return [self.value(inner) for _ in range(count)]
        return self.unpack(SCALARS[kind])[0]


def q8_0(array):
    blocks = array.astype(np.float32).reshape(-1, 32)
    scales = (np.abs(blocks).max(-1, keepdims=True) / 127).astype(np.float16)
    divisor = np.where(scales == 0, 1, scales).astype(np.float32)
    values = np.clip(np.rint(blocks / divisor), -127, 127).astype(np.int8)
    return np.concatenate([scales.view(np.uint8), values.view(np.uint8)], 1).tobytes()


def write(path, keys, tensors, align=32, quantize=False):
    """keys: (name, kind, value) with kind a GGUF type id or ("arr", id); tensors: name -> float32 array, written f16
    (q8_0 with `quantize`) when two-dimensional and f32 otherwise; whole numbers i64."""
    out = bytearray()

    def put(form, *values):
        out.extend(struct.pack(form, *values))

    def put_text(text):
        raw = text.encode("utf-8", "surrogateescape")
        put("<Q", len(raw))
        out.extend(raw)

    def put_value(kind, value):
        if kind == 8:
            put_text(value)
        else:
            put(SCALARS[kind], value)

    put("<4sIQQ", b"GGUF", 3, len(tensors), len(keys))
    for name, kind, value in keys:
        put_text(name)
        if isinstance(kind, tuple):
            put("<IIQ", 9, kind[1], len(value))
            for item in value:
                put_value(kind[1], item)
        else:
            put("<I", kind)
            put_value(kind, value)
    blobs, offset = [], 0
    for name, array in tensors.items():
        half = array.ndim > 1
        quantized = half and quantize and array.shape[-1] % 32 == 0
        whole = array.dtype == np.int64
        blob = q8_0(array) if quantized else array.tobytes() if whole else array.astype(np.float16 if half else np.float32).tobytes()
        put_text(name)
        put("<I", array.ndim)
        put("<%dQ" % array.ndim, *reversed(array.shape))
        put("<IQ", 27 if whole else 8 if quantized else 1 if half else 0, offset)
        blobs.append(blob)
        offset += (len(blob) + align - 1) // align * align
    with open(path, "wb") as file:
        file.write(out)
        file.write(b"\0" * (-len(out) % align))
        for blob in blobs:
            file.write(blob)
            file.write(b"\0" * (-len(blob) % align))
