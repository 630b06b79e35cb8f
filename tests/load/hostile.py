#!/usr/bin/env python3
"""A thousand hostile clients at once: hostile.py TENON MODEL [COUNT]

Each sends half a request, a huge header, a huge body, invalid JSON, invalid UTF-8, or nothing, and must be answered or
disconnected in time, while well-behaved clients get their responses. Then checks that a client that disconnects frees its
slot at once.
"""
import json
import re
import resource
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

TIMEOUT = 2  # the server's --timeout, in seconds

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
KINDS = {
    "half a request": HEAD + b'Content-Length: 50\r\n\r\n{"prompt":',
    "half a header": HEAD[:40],
    "huge header": b"GET /health HTTP/1.1\r\nX: " + b"a" * 200000 + b"\r\n\r\n",
    "huge body announced": HEAD + b"Content-Length: 99999999999\r\n\r\n{",
    "huge body": HEAD + b"Content-Length: 1100000\r\n\r\n" + b" " * 1100000,
    "invalid JSON": HEAD + b'Content-Length: 12\r\n\r\n{"prompt":]]',
    "invalid UTF-8": HEAD + b'Content-Length: 17\r\n\r\n{"prompt":"\xff\xfe\x80"} ',
    "nothing": b"",
}
ANSWERED = {"huge header": (b"431", b""), "huge body announced": (b"413", b"400", b""), "huge body": (b"413", b"400", b""),
            "invalid JSON": (b"400",), "invalid UTF-8": (b"400",), "half a request": (b"", b"400", b"408"),
            "half a header": (b"", b"400", b"408"), "nothing": (b"",)}


class Hostile:
    def __init__(self, selector, port, kind):
        self.kind, self.rest, self.answer, self.began, self.ended = kind, KINDS[kind], b"", time.monotonic(), None
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.connect_ex(("127.0.0.1", port))
        self.selector = selector
        selector.register(self.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, self)

    def step(self, mask):
        try:
            if mask & selectors.EVENT_WRITE and self.rest:
                self.rest = self.rest[self.socket.send(self.rest[:65536]):]
            if not self.rest:
                self.selector.modify(self.socket, selectors.EVENT_READ, self)
            if mask & selectors.EVENT_READ:
                data = self.socket.recv(4096)
                self.answer += data
                # A client is done once it has a response, though the connection may stay open.
                if data and b"\r\n\r\n" not in self.answer:
                    return
                self.end()
        except (ConnectionError, OSError):
            self.end()

    def end(self):
        self.ended = time.monotonic()
        self.selector.unregister(self.socket)
        self.socket.close()


def ask(port, body, path="/v1/completions"):
    began, text = time.monotonic(), json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as s:
        s.sendall(b"POST %s HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(text)) + text)
        data = b""
        while chunk := s.recv(65536):
            data += chunk
    assert data.startswith(b"HTTP/1.1 200"), data[:300]
    return time.monotonic() - began, json.loads(data[data.index(b"\r\n\r\n") + 4:])


def get(port, path):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as s:
        s.sendall(b"GET %s HTTP/1.1\r\nConnection: close\r\n\r\n" % path.encode())
        data = b""
        while chunk := s.recv(65536):
            data += chunk
    return json.loads(data[data.index(b"\r\n\r\n") + 4:])


def test_disturbance(port, count):
    request = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 8}
    undisturbed = [ask(port, request) for _ in range(10)]
    text = undisturbed[0][1]["choices"][0]["text"]
    selector = selectors.DefaultSelector()
    began = time.monotonic()
    clients = [Hostile(selector, port, list(KINDS)[i % len(KINDS)]) for i in range(count)]
    times = []
    while any(c.ended is None for c in clients) and time.monotonic() < began + 30:
        for key, mask in selector.select(0.05):
            key.data.step(mask)
        if not times or time.monotonic() - began > 0.1 * len(times):
            seconds, answer = ask(port, request)
            assert answer["choices"][0]["text"] == text, "a well-behaved client got another text"
            times.append(seconds)
    report = {}
    for kind in KINDS:
        of = [c for c in clients if c.kind == kind]
        late = [c for c in of if c.ended is None]
        assert not late, f"{kind}: {len(late)} of {len(of)} are still connected after 30 s"
        status = {c.answer[9:12] for c in of}
        assert status <= set(ANSWERED[kind]), f"{kind}: answered {status}"
        report[kind] = round(max(c.ended - c.began for c in of), 2)
    assert max(times) < 2, f"a well-behaved client waited {max(times):.2f} s"
    print(f"{count} hostile clients, longest time until answered or disconnected:", json.dumps(report))
    print(f"{len(times)} well-behaved requests: median {statistics.median(times) * 1e3:.0f} ms, longest {max(times) * 1e3:.0f} ms; "
          f"before: median {statistics.median(t for t, _ in undisturbed) * 1e3:.0f} ms")


def test_disconnect(port):
    """How long a slot stays busy after its client has disconnected."""
    body = json.dumps({"prompt": "Once", "n_predict": 3000, "ignore_eos": True, "stream": True}).encode()
    times = []
    for _ in range(9):
        s = socket.create_connection(("127.0.0.1", port), timeout=20)
        s.sendall(b"POST /completion HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        while b"data: " not in s.recv(65536):
            pass
        while not any(slot["is_processing"] for slot in get(port, "/slots")):
            pass
        s.close()
        began = time.monotonic()
        while any(slot["is_processing"] for slot in get(port, "/slots")):
            assert time.monotonic() < began + 5, "a client that has disconnected keeps its slot"
        times.append(time.monotonic() - began)
    assert statistics.median(times) < 0.1, f"slots are freed after {[round(t * 1e3) for t in times]} ms"
    print(f"a slot is free {statistics.median(times) * 1e3:.0f} ms after its client has disconnected (longest {max(times) * 1e3:.0f} ms)")


def main():
    tenon, model, count = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1000
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    log = tempfile.TemporaryFile(mode="w+")
    server = subprocess.Popen([tenon, "serve", model, "--port", "0", "-t", "2", "--timeout", str(TIMEOUT), "--max-body", "1M"], stderr=log)
    try:
        for _ in range(600):
            log.seek(0)
            text = log.read()
            if "is ready" in text or server.poll() is not None:
                break
            time.sleep(0.1)
        port = int(re.search(r"listening at http://[^ ]*:(\d+)", text).group(1))
        test_disturbance(port, count)
        test_disconnect(port)
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(30)
    sys.exit(code)


main()
