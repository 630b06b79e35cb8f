#!/usr/bin/env python3
"""Many HTTP clients of a running server, all streaming: throughput and the time between tokens.

    bench/agents/serve_clients.py http://127.0.0.1:8080 [--clients 64] [--prompt 256] [--tokens 256] [--rounds 2] [--long 16384]
    bench/agents/serve_clients.py http://127.0.0.1:8080 --first 10

Every client sends a prompt of --prompt tokens and reads --tokens streamed ones, --rounds times. The first round is not counted. With --long
another client sends a prompt of so many tokens in the middle of the last round. With --first, so many prompts of equal length are sent one
after the other, and the times to their first token are printed: the first belongs to a fresh server.

Prompts are lists of token ids, so that they have exactly the lengths asked for; their tokens differ between all requests.
"""
import argparse
import json
import random
import select
import socket
import sys
import time
import urllib.parse


class Request:
    """One streamed completion on a connection of its own."""

    def __init__(self, where, prompt, tokens):
        body = json.dumps({"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True,
                           "cache_prompt": False, "temperature": 0}).encode()
        self.began = time.monotonic()
        self.socket = socket.create_connection(where)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: {where[0]}\r\nContent-Type: application/json\r\n"
                             f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body)
        self.times, self.rest, self.done, self.head = [], b"", False, b""

    def read(self):
        """Records the arrival of every event; the text itself is not looked at."""
        data = self.socket.recv(1 << 16)
        now = time.monotonic()
        data = self.rest + data if data else b""
        if not data:
            self.done = True
            return
        self.head = self.head or data[:400]
        events = data.count(b"data: {")
        self.times += [now] * events
        self.done = b"data: [DONE]" in data
        self.rest = data[-12:] if not data.endswith(b"\n") else b""
        if self.rest.count(b"data: {"):
            self.rest = b""


def run(requests):
    poll = select.epoll()
    open_ones = {}
    for r in requests:
        open_ones[r.socket.fileno()] = r
        poll.register(r.socket.fileno(), select.EPOLLIN)
    yield open_ones, poll
    while open_ones:
        for fd, _ in poll.poll(1):
            r = open_ones[fd]
            r.read()
            if r.done:
                if not r.times:
                    sys.exit(f"no tokens: {r.head.decode(errors='replace')}")
                poll.unregister(fd)
                del open_ones[fd]
                r.socket.close()
        yield open_ones, poll


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("url")
    parse.add_argument("--clients", type=int, default=64)
    parse.add_argument("--prompt", type=int, default=256)
    parse.add_argument("--tokens", type=int, default=256)
    parse.add_argument("--rounds", type=int, default=2)
    parse.add_argument("--long", type=int, default=0, help="tokens of a prompt that arrives in the middle")
    parse.add_argument("--first", type=int, default=0, help="measure the time to the first token of so many requests")
    parse.add_argument("--vocab", type=int, default=1000, help="prompts have token ids below this")
    args = parse.parse_args()
    url = urllib.parse.urlparse(args.url)
    where, numbers = (url.hostname, url.port or 80), random.Random()

    def request(prompt, tokens):
        return Request(where, [numbers.randrange(300, args.vocab) for _ in range(prompt)], tokens)

    for _ in range(600):  # a server that loads its model answers with status 503
        with socket.create_connection(where) as probe:
            probe.sendall(f"GET /health HTTP/1.1\r\nHost: {where[0]}\r\nConnection: close\r\n\r\n".encode())
            if b" 200 " in probe.recv(64):
                break
        time.sleep(0.1)
    if args.first:
        waits = []
        for _ in range(args.first):
            r = request(args.prompt, 4)
            for _ in run([r]):
                pass
            waits.append(1e3 * (r.times[0] - r.began))
        print("time to first token, ms: " + " ".join(f"{w:.1f}" for w in waits) +
              f"; first / last {waits[0] / waits[-1]:.2f}")
        return 0
    for number in range(args.rounds):
        began, late = time.monotonic(), None
        requests = [request(args.prompt, args.tokens) for _ in range(args.clients)]
        for open_ones, poll in run(requests):
            if args.long and late is None and number == args.rounds - 1 and \
                    sum(len(r.times) for r in requests) > args.clients * args.tokens // 2:
                late = request(args.long, 4)
                open_ones[late.socket.fileno()] = late
                poll.register(late.socket.fileno(), select.EPOLLIN)
        seconds = max(r.times[-1] for r in requests) - began
        tokens = args.clients * args.tokens  # an event can hold several: bytes that are no whole character wait
        gaps = [1e3 * (b - a) for r in requests for a, b in zip(r.times, r.times[1:])]
        first = [1e3 * (r.times[0] - r.began) for r in requests]
        print(f"round {number}: {args.clients} clients {args.prompt}/{args.tokens}: {tokens / seconds:.0f} tokens/s with prompts, "
              f"{tokens} in {seconds:.2f} s; between tokens median {percentile(gaps, 0.5):.1f} ms, "
              f"p99 {percentile(gaps, 0.99):.1f}, longest {max(gaps):.1f}; first token median {percentile(first, 0.5):.0f} ms"
              + (f"; {args.long} tokens arrived, first token after {1e3 * (late.times[0] - late.began):.0f} ms" if late else ""))
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
