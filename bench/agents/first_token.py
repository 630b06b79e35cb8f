#!/usr/bin/env python3
"""Time to the first token of a conversation's next turn through the server, against the same new tokens in a session that holds the
conversation already.

first_token.py BUILD MODEL [--depth 4096] [--new 16,64,256] [--rounds 5] [--threads 2] [--bar 1.2] [--cpu-time]

Starts `tenon serve` and `peers/ours` (a session that is driven by lines of text, bench/peers/engine.h) with the same model and
threads. Both get a conversation of --depth tokens. Then turns alternate between them: the server gets the whole conversation and the new
tokens, and the time until the first token of the streamed reply counts; the session decodes the new tokens alone. The last token of a
reply is among the new ones, since it was sampled but not computed. Prints the medians
and exits with 1 when a ratio is above the bar. --cpu-time counts CPU time of the two processes instead, for busy machines; use it with
--threads 1."""
import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import time
import types
import urllib.request

import run

REPLY = 1  # tokens: CPU time until the first one must not include work on the next


def clock(args, process):
    if not args.cpu_time:
        return time.monotonic()
    total = 0
    for path in glob.glob(f"/proc/{process.pid}/task/*/schedstat"):
        with open(path, encoding="ascii") as file:
            total += int(file.read().split()[0])
    return total * 1e-9


class Session:
    """A session without a server."""

    def __init__(self, args, cells):
        program = os.path.join(args.build, "peers", "ours")
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process.stdout.readline()
        self.args = args
        self.ask(f"load {args.model} {cells} {args.threads}")

    def ask(self, command):
        """The seconds that the command took."""
        begin = clock(self.args, self.process)
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if not answer or answer[0] != "ok":
            sys.exit(f"{command}: {' '.join(answer)}")
        return clock(self.args, self.process) - begin if self.args.cpu_time else float(answer[1])


def take_turn(args, server, url, prompt):
    """The seconds until the first token of the reply, and the reply."""
    body = {"prompt": prompt, "n_predict": REPLY, "temperature": 0, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(url + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
    begin, first, reply, last = clock(args, server), None, [], {}
    with urllib.request.urlopen(request, timeout=600) as answer:
        for line in answer:
            if not line.startswith(b"data:"):
                continue
            first = first or clock(args, server) - begin
            last = json.loads(line[5:])
            reply += last.get("tokens", [])
    return first, reply, last["timings"]


def measure(args, server, url, session, text, new):
    """Adds turns to the conversation `text`; the session follows with as many tokens."""
    served, alone = [], []
    for number in range(args.rounds):
        text += [(len(text) * 31 + i * 7919) % 30000 + 3 for i in range(new)]
        seconds, reply, timings = take_turn(args, server, url, text)
        if timings["prompt_n"] > new + 1:
            print(f"the server computed {timings['prompt_n']} prompt tokens for {new} new ones")
        served.append(seconds)
        alone.append(session.ask(f"extend {1 + new}"))
        text += reply
    ratio = statistics.median(served) / statistics.median(alone)
    print(f"{new:4d} new tokens after {len(text)}: server {statistics.median(served) * 1e3:7.1f} ms, "
          f"session {statistics.median(alone) * 1e3:7.1f} ms, ratio {ratio:.2f} (bar {args.bar})")
    return ratio


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("model")
    parser.add_argument("--depth", type=int, default=4096)
    parser.add_argument("--new", default="16,64,256")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bar", type=float, default=1.2)
    parser.add_argument("--cpu-time", action="store_true")
    args = parser.parse_args()
    sizes = [int(n) for n in args.new.split(",")]
    cells = args.depth + sum((n + REPLY) * args.rounds for n in sizes) + 512
    server, url = run.start_server(types.SimpleNamespace(**vars(args), clients=1, cells=cells, prefixes=64, ram=None, disk=None))
    try:
        run.wait_until_ready(url)
        session = Session(args, cells)
        text = [i * 7919 % 30000 + 3 for i in range(args.depth)]
        text += take_turn(args, server, url, text)[1]
        session.ask(f"fill {len(text) - 1}")
        worst = max(measure(args, server, url, session, text, n) for n in sizes)
        session.process.stdin.close()
    finally:
        server.terminate()
        server.wait()
    return worst > args.bar


if __name__ == "__main__":
    sys.exit(main())
