#!/usr/bin/env python3
"""Load on tenon serve: one client, then many at once. Prints one JSON object; the exit code is 1 when a condition fails.

    tests/load/serve.py build/bin/tenon [MODEL] [--clients 64] [--seconds 300] [--tokens 128] [-- further server options]

Starts a server of its own. Every client requests one streamed response after the other and records the time between chunks.
Conditions: no errors; no pause over --stall seconds within a response; throughput at least --factor times that of one client;
and anonymous memory of the server (RssAnon, without the mapped model file) that stops growing after the first third.
"""
import argparse
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

WORDS = "cat dog bird ship king tree river moon child house stone bread night garden wolf queen sea road bell fire".split()


class Client:
    """One connection at a time. Every second request reuses the connection, so that both cases are tested."""

    def __init__(self, load, number):
        self.load, self.number, self.count, self.socket = load, number, 0, None
        self.begin()

    def begin(self):
        self.count += 1
        words = [WORDS[(self.number * 7 + self.count * 3 + i) % len(WORDS)] for i in range(4 + self.number % 9)]
        body = json.dumps({"messages": [{"role": "user", "content": "Tell me about a " + ", a ".join(words)}],
                           "max_tokens": self.load.tokens, "ignore_eos": True, "stream": True, "seed": self.count})
        self.request = ("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                        f"Content-Length: {len(body)}\r\n\r\n{body}").encode()
        if self.socket and self.count % 2:
            self.close()
        if not self.socket:
            self.socket = socket.create_connection(("127.0.0.1", self.load.port))
            self.socket.setblocking(False)
            self.fd, self.recv = self.socket.fileno(), self.socket.recv
            self.load.waiting[self.fd] = self
            self.load.epoll.register(self.fd, select.EPOLLIN)
        self.socket.sendall(self.request)
        self.started, self.last, self.pieces, self.rest = time.monotonic(), None, 0, b""

    def close(self):
        self.load.epoll.unregister(self.fd)
        del self.load.waiting[self.fd]
        self.socket.close()
        self.socket = None

    def fail(self, why):
        self.load.errors.append(f"client {self.number}: {why}")
        self.close()
        if len(self.load.errors) < 100:
            self.begin()

    def read(self, now):
        data = self.recv(8192)
        if not data:
            return self.fail(f"closed after {self.pieces} pieces")
        if self.pieces == 0 and self.rest == b"" and not data.startswith(b"HTTP/1.1 200"):
            return self.fail(data[:200].decode(errors="replace"))
        if self.rest:
            data = self.rest + data
        if b'{"error"' in data:
            return self.fail(data[-300:].decode(errors="replace"))
        new = data.count(b"data: {")
        if new:
            if self.last is None:
                self.load.first.append(now - self.started)
            else:
                self.load.gaps.append(now - self.last)
            self.last = now
            self.pieces += new
        if data.endswith(b"}\n\n\r\n"):  # the usual case: whole events, nothing left over
            self.rest = b""
            return
        done = b"data: [DONE]\n\n" in data and data.endswith(b"\r\n0\r\n\r\n")
        counted = data.rfind(b"data: {") + 1  # events that were counted must not be counted again
        self.rest = b"" if done else data[max(counted, len(data) - 40):]
        if done:
            self.load.done += 1
            if self.load.running:
                self.begin()
            else:
                self.close()


class Load:
    def __init__(self, port, pid, tokens):
        self.port, self.pid, self.tokens = port, pid, tokens
        self.epoll, self.waiting = select.epoll(), {}

    def listen(self):
        """Lets every client read its data. Clients and server share the processors, so that little is done per chunk."""
        for fd, _ in self.epoll.poll(1):
            client = self.waiting.get(fd)
            if client:
                client.read(time.monotonic())

    def memory(self):
        text = open(f"/proc/{self.pid}/status").read()
        return {key: int(re.search(key + r":\s+(\d+)", text).group(1)) for key in ("VmRSS", "RssAnon", "RssFile")}

    def cpu(self):
        """CPU seconds that the server has used: meaningful even when other programs use the machine."""
        fields = open(f"/proc/{self.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def run(self, n, seconds):
        self.errors, self.gaps, self.first, self.done, self.running = [], [], [], 0, True
        samples, start, cpu = [(0.0, self.memory())], time.monotonic(), self.cpu()
        clients = [Client(self, i) for i in range(n)]
        while time.monotonic() < start + seconds:
            self.listen()
            now = time.monotonic() - start
            if now - samples[-1][0] > min(5.0, seconds / 12):
                samples.append((round(now, 1), self.memory()))
            # Stop early when the server is broken.
            if len(self.errors) >= 100:
                break
        took, cpu = time.monotonic() - start, self.cpu() - cpu
        made = self.done * self.tokens + sum(min(c.pieces, self.tokens) for c in clients if c.socket)
        answers = self.done
        quiet = [time.monotonic() - c.last for c in clients if c.socket and c.last]
        self.running = False
        deadline = time.monotonic() + 60
        while any(c.socket for c in clients) and time.monotonic() < deadline:
            self.listen()
        if any(c.socket for c in clients):
            self.errors.append("responses that did not end within a minute")
        gaps = sorted(self.gaps + quiet)
        return {"clients": n, "seconds": round(took, 1), "answers": answers, "tokens_per_second": round(made / took, 1),
                "tokens_per_cpu_second": round(made / max(cpu, 0.01), 1),
                "errors": len(self.errors), "what": self.errors[:3],
                "longest_gap_s": round(gaps[-1], 3) if gaps else None,
                "gap_p99_s": round(gaps[int(len(gaps) * 0.99)], 3) if gaps else None,
                "first_token_s": round(max(self.first), 3) if self.first else None, "samples": samples}


def main():
    own, further = sys.argv[1:], []
    if "--" in own:
        own, further = own[:own.index("--")], own[own.index("--") + 1:]
    parser = argparse.ArgumentParser()
    parser.add_argument("tenon")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--stall", type=float, default=2)
    parser.add_argument("--factor", type=float, default=4)
    parser.add_argument("--growth", type=float, default=0.02, help="of RssAnon after the first third, as a share")
    args = parser.parse_args(own)
    log = tempfile.TemporaryFile(mode="w+")
    command = [args.tenon, "serve"] + ([args.model] if args.model else []) + ["--port", "0", "-np", str(args.clients),
                                                                            "-c", str(args.clients * (args.tokens + 128))] + further
    server = subprocess.Popen(command, stderr=log)
    try:
        for _ in range(600):
            log.seek(0)
            text = log.read()
            if "is ready" in text or server.poll() is not None:
                break
            time.sleep(0.1)
        found = re.search(r"listening at http://[^ ]*:(\d+)", text)
        if not found or "is ready" not in text:
            sys.exit("the server does not start: " + text)
        load = Load(int(found.group(1)), server.pid, args.tokens)
        one = load.run(1, max(5, min(20, args.seconds / 10)))
        many = load.run(args.clients, args.seconds)
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(30)
    samples = many.pop("samples")
    one.pop("samples")
    settled = next(m for t, m in samples if t >= samples[-1][0] / 3)
    growth = max(m["RssAnon"] for t, m in samples if t >= samples[-1][0] / 3) / settled["RssAnon"] - 1
    factor = many["tokens_per_second"] / max(0.1, one["tokens_per_second"])
    problems = [text for bad, text in (
        (one["errors"] + many["errors"], "errors"),
        (many["longest_gap_s"] is None or many["longest_gap_s"] > args.stall, "a stall"),
        (factor < args.factor, "too little throughput"),
        (growth > args.growth, "memory grows"),
        (code, f"the server ended with {code}")) if bad]
    print(json.dumps({"one": one, "many": many, "factor": round(factor, 2),
                      "cpu_factor": round(many["tokens_per_cpu_second"] / one["tokens_per_cpu_second"], 2), "growth": round(growth, 4),
                      "memory_kb": [[t, m["VmRSS"], m["RssAnon"], m["RssFile"]] for t, m in samples],
                      "problems": problems}, indent=1))
    sys.exit(bool(problems))


main()
