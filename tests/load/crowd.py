#!/usr/bin/env python3
"""Many clients with schemas, tools, aborts and stalls: crowd.py TENON MODEL [--clients 256] [--seconds 600] [--attackers 4] [-- server options]

Starts a server of its own and prints one JSON object; the exit code is 1 when a condition fails. Every client has a kind and asks one
request after the other; attackers send what stopped servers before. Conditions: no error but 503 of a full queue, and no status of an
attack that is the server's fault; clients of the same kind are served alike, the slowest gets at least half as many answers as the
fastest; and anonymous memory of the server stops growing after the first third: the lower quartile of its last sixth is at most 2% above
that of the sixth after the first third (the large bodies of attacks take memory while they are read, so that other measures jump).
"""
import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 99},
                                           "kind": {"enum": ["cat", "dog"]}}, "required": ["name", "age", "kind"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}}}]
KINDS = ("plain", "stream", "schema", "tools", "abort", "stall", "plain", "stream")


def request_of(kind, number, count):
    body = {"messages": [{"role": "user", "content": f"Tell me about number {number % 37} and {count % 11}"}], "max_tokens": 24, "seed": count}
    if kind == "schema":
        body |= {"response_format": {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA}}, "max_tokens": 64}
    if kind == "tools":
        body |= {"tools": TOOLS, "tool_choice": "required", "max_tokens": 64}
    body["stream"] = kind in ("stream", "abort", "stall")
    if body["stream"]:
        body["ignore_eos"] = True
    text = json.dumps(body).encode()
    return (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
            + f"Content-Length: {len(text)}\r\n\r\n".encode() + text)


def post(path, body, n_bytes=None):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(text) if n_bytes is None else n_bytes}\r\n\r\n").encode() + text


def attacks():
    """Pairs of a name and the bytes to send; what begins with "slowly" is sent byte by byte, what begins with "unread" is not read."""
    wide = {"type": "object", "properties": {f"property{i}": {"type": "string"} for i in range(5000)}}
    some = {"type": "object", "properties": {f"p{i}": {"type": "boolean"} for i in range(60)}}
    chat = [{"role": "user", "content": "x"}]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(8)}}}}
    return [
        ("a wide schema", post("/v1/completions", {"prompt": "Once", "max_tokens": 4, "n": 64, "json_schema": wide})),
        ("n = 64 with a schema", post("/v1/completions", {"prompt": "Once", "max_tokens": 16, "n": 64, "json_schema": some})),
        ("a long text", post("/tokenize", {"content": "word " * 3000000})),
        ("many messages", post("/v1/chat/completions", {"messages": chat * 300000, "max_tokens": 1})),
        ("many stop words", post("/completion", {"prompt": "Once", "n_predict": 1, "stop": ["a"] * 1000000})),
        ("many tools", post("/v1/chat/completions", {"messages": chat, "max_tokens": 1, "tools": [tool] * 20000})),
        ("repeated repetitions", post("/completion", {"prompt": "Once", "n_predict": 16, "json_schema": {"type": "string", "pattern": "^((a{1,100}b){1,100}c){1,100}$"}})),
        ("no JSON", post("/completion", b"[" * 100000)),
        ("noise", bytes(range(256)) * 40 + b"\r\n\r\n"),
        ("two lengths", post("/completion", {"prompt": "Once"}).replace(b"Connection: close\r\n", b"Connection: close\r\nContent-Length: 5\r\n")),
        ("slowly", post("/completion", {"prompt": "Once"})[:12]),
        ("a body that does not come", post("/completion", b"{", 1000000)),
        ("unread", post("/completion", {"prompt": "Once", "n_predict": 400, "ignore_eos": True, "stream": True, "n_probs": 20})),
    ]


class Crowd:
    def __init__(self, port, clients, end):
        self.port, self.end, self.errors, self.full = port, end, [], 0
        self.attacks, self.attacked = attacks(), {}
        self.kinds = [KINDS[i % len(KINDS)] for i in range(clients)]
        self.answers = [0] * clients
        self.waits = [[] for _ in range(clients)]

    def wrong(self, number, what):
        if len(self.errors) < 50:
            self.errors.append(f"client {number} ({self.kinds[number]}): {what}")

    async def ask(self, number, count):
        kind, begin = self.kinds[number], time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request_of(kind, number, count))
            await writer.drain()
            if kind == "abort":
                await asyncio.wait_for(reader.read(200 + 97 * (count % 30)), 120)
                return
            data = b""
            if kind == "stall":
                data = await asyncio.wait_for(reader.read(100), 120)
                await asyncio.sleep(1 + count % 3)
            data += await asyncio.wait_for(reader.read(), 120)
            if data.startswith(b"HTTP/1.1 503"):
                self.full += 1
                await asyncio.sleep(0.5)
                return
            if not data.startswith(b"HTTP/1.1 200") or b'"error"' in data:
                return self.wrong(number, data[-300:].decode(errors="replace"))
            text = data.split(b"\r\n\r\n", 1)[1]
            if kind in ("stream", "stall") and b"data: [DONE]" not in text:
                return self.wrong(number, f"a stream without an end: {data[-200:]!r}")
            if kind in ("schema", "tools"):
                choice = json.loads(text)["choices"][0]
                if kind == "schema" and choice["finish_reason"] == "stop" and set(json.loads(choice["message"]["content"])) != {"name", "age", "kind"}:
                    return self.wrong(number, f"does not follow the schema: {choice}")
                if kind == "tools" and choice["finish_reason"] == "tool_calls":
                    json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
            self.answers[number] += 1
            self.waits[number].append(time.monotonic() - begin)
        finally:
            writer.close()

    async def attack(self, name, data):
        """One attack; its status, or 0 if the server ends the connection without one."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            if name == "slowly":
                for byte in data:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.5)
                return 0
            writer.write(data)
            if name == "unread":
                await asyncio.sleep(8)
                return 0
            if name == "a body that does not come":
                await asyncio.sleep(2)
                return 0
            answer = await asyncio.wait_for(reader.read(), 120)
            return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0
        except ConnectionError:  # refused before everything was sent
            return 0
        finally:
            writer.close()

    async def attacker(self, number):
        count = number * 3
        while time.monotonic() < self.end:
            name, data = self.attacks[count % len(self.attacks)]
            count += 1
            try:
                status = await self.attack(name, data)
                self.attacked[f"{name}: {status}"] = self.attacked.get(f"{name}: {status}", 0) + 1
                if status >= 500 and status != 503:
                    self.errors.append(f"attack \"{name}\" has status {status}")
            except Exception as error:  # pylint: disable=broad-except
                self.errors.append(f"attack \"{name}\": {type(error).__name__}: {error}")
            await asyncio.sleep(0.5)

    async def client(self, number):
        count = 0
        while time.monotonic() < self.end:
            count += 1
            try:
                await self.ask(number, count)
            except Exception as error:  # pylint: disable=broad-except
                self.wrong(number, f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.5)


def memory(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(re.search(r"RssAnon:\s+(\d+)", file.read())[1]) / 1024


async def watch(crowd, pid, samples, seconds):
    begin = time.monotonic()
    while time.monotonic() < crowd.end:
        await asyncio.sleep(seconds / 240)
        samples.append((time.monotonic() - begin, memory(pid)))


async def run(crowd, pid, samples, seconds, attackers):
    await asyncio.gather(watch(crowd, pid, samples, seconds), *(crowd.client(i) for i in range(len(crowd.kinds))),
                         *(crowd.attacker(i) for i in range(attackers)))


def lower_quartile(values):
    return sorted(values)[len(values) // 4]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tenon")
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--attackers", type=int, default=4)
    own, further = (sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:]) if "--" in sys.argv else (sys.argv[1:], [])
    args = parser.parse_args(own)
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen([args.tenon, "serve", args.model, "--port", "0", "-np", "16", "-c", "8192", "-kvu", "--queue", "512", *further], stderr=log)
        port = None
        for _ in range(200):
            time.sleep(0.1)
            text = os.pread(log.fileno(), 1 << 16, 0).decode(errors="replace")
            found = re.search(r"listening at http://.*:(\d+)", text)
            if found and "is ready" in text:
                port = int(found[1])
                break
        if not port:
            sys.exit(f"the server did not start: {text}")
        crowd, samples = Crowd(port, args.clients, time.monotonic() + args.seconds), []
        asyncio.run(run(crowd, server.pid, samples, args.seconds, args.attackers))
        server.send_signal(signal.SIGTERM)
        code = server.wait(30)
    fair, tenths, waits = {}, {}, {}
    for kind in sorted(set(crowd.kinds) - {"abort"}):
        counts = sorted(n for n, k in zip(crowd.answers, crowd.kinds) if k == kind)
        tenth = max(1, len(counts) // 10)
        fair[kind] = counts[-1] / max(1, counts[0])
        tenths[kind] = sum(counts[-tenth:]) / max(1, sum(counts[:tenth]))
        all_waits = sorted(w for ws, k in zip(crowd.waits, crowd.kinds) if k == kind for w in ws)
        waits[kind] = [round(all_waits[int(len(all_waits) * q)], 2) for q in (0.5, 0.99)] if all_waits else None
    third = [m for t, m in samples if args.seconds / 3 < t < args.seconds / 2]
    last = [m for t, m in samples if t > args.seconds * 5 / 6]
    growth = lower_quartile(last) / lower_quartile(third) - 1 if third and last else 0
    print(json.dumps({"clients": args.clients, "seconds": args.seconds, "answers": sum(crowd.answers), "full": crowd.full, "errors": len(crowd.errors),
                      "fastest to slowest client": {k: round(v, 2) for k, v in fair.items()},
                      "fastest to slowest tenth": {k: round(v, 2) for k, v in tenths.items()}, "median and 99% of seconds": waits,
                      "attacks": dict(sorted(crowd.attacked.items())), "anonymous MiB": [round(m) for _, m in samples[::6]], "most MiB": round(max((m for _, m in samples), default=0)),
                      "growth": round(growth, 4), "exit code": code}))
    print("\n".join(crowd.errors[:10]), file=sys.stderr)
    sys.exit(bool(crowd.errors or max(fair.values()) > 2 or growth > 0.02 or code not in (0, 130, 143)))


main()
