#!/usr/bin/env python3
"""Serves agent-like conversations and compares the prompt tokens that were computed with the fewest possible.

run.py BUILD [--model FILE] [--clients N] [--cells N] [--device-share X --ram-share Y] [--disk FOLDER,SIZE] [--checkpoints N]
       [--seed N] [--count N] [--bar RATIO]

Starts `tenon serve` with a small model made for this, whose context is long enough for all prompts, sends the requests of
conversations.py with several clients, and prints the ratio. With shares, the KV cache and host memory have room for those parts of
all distinct tokens; with recurrent layers also of the states at which the fewest tokens are computed. Exits with 1 when the ratio is
above the bar."""
import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request

import conversations


def start_server(args):
    command = [os.path.join(args.build, "bin", "tenon"), "serve", args.model, "--port", "0", "-t", str(args.threads), "-np",
               str(args.clients), "-c", str(args.cells), "--kv-unified", "--cache-prefixes", str(args.prefixes), "--metrics", "--queue", "1024"]
    if getattr(args, "checkpoints", None):
        command += ["--checkpoints", str(args.checkpoints)]
    if args.ram:
        command += ["--cache-ram", f"{args.ram}B"]
    if args.disk:
        command += ["--cache-disk", args.disk]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        listening = re.search(r"listening at (http://\S+)", line)
        if listening:
            threading.Thread(target=lambda: [None for _ in server.stderr], daemon=True).start()
            return server, listening.group(1)
    sys.exit("the server did not start: " + " ".join(command))


def wait_until_ready(url):
    for _ in range(600):
        try:
            urllib.request.urlopen(url + "/health", timeout=5).read()
            return
        except OSError:
            time.sleep(0.1)
    sys.exit("the server is not ready")


def complete(url, prompt, n):
    body = json.dumps({"prompt": prompt, "n_predict": n, "temperature": 0, "ignore_eos": True}).encode()
    request = urllib.request.Request(url + "/completion", data=body, headers={"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=600))


def token_bytes(args):
    """KV cache bytes of a token in all layers, from two plans that are too short for a window to matter."""
    sizes = []
    for cells in (128, 256):
        plan = json.loads(subprocess.run([os.path.join(args.build, "bin", "tenon"), "plan", args.model, "-c", str(cells), "--json"],
                                         capture_output=True, check=True, text=True).stdout)
        sizes.append(sum(device["cache"] for device in plan["devices"]))
    return (sizes[1] - sizes[0]) // 128


def state_bytes(args):
    """Of one checkpoint of a model with recurrent layers; 0 for others."""
    plan = json.loads(subprocess.run([os.path.join(args.build, "bin", "tenon"), "plan", args.model, "-c", "4096", "--serve", "--json"],
                                     capture_output=True, check=True, text=True).stdout)
    return plan["checkpoints"]["states"]


def metric(metrics, name):
    found = re.search(rf"^tenon:{name} (\S+)", metrics, re.M)
    return int(float(found.group(1))) if found else 0


class Drive:
    """Clients take requests in order, as soon as the request that they continue is answered."""

    def __init__(self, url, requests):
        self.url, self.requests, self.next = url, requests, 0
        self.exchanges = [None] * len(requests)  # prompt, reply
        self.order = []                          # of the requests, by their beginning
        self.computed = self.prompt_ms = 0
        self.changed = threading.Condition()

    def client(self):
        while True:
            with self.changed:
                if self.next == len(self.requests):
                    return
                number, self.next = self.next, self.next + 1
                request = self.requests[number]
                while request["after"] >= 0 and not self.exchanges[request["after"]]:
                    self.changed.wait()
                before = self.exchanges[request["after"]] if request["after"] >= 0 else ([], [])
                self.order.append(number)
            prompt = before[0] + (before[1] if request["with_reply"] else []) + request["more"]
            answer = complete(self.url, prompt, request["n_reply"])
            with self.changed:
                self.exchanges[number] = (prompt, answer["tokens"])
                self.computed += answer["timings"]["prompt_n"]
                self.prompt_ms += answer["timings"]["prompt_ms"]
                self.changed.notify_all()

    def run(self, n_clients):
        threads = [threading.Thread(target=self.client) for _ in range(n_clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--model", help="a GGUF file trained for at least 4096 tokens")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--cells", type=int, default=262144, help="of the KV cache: the default holds all texts")
    parser.add_argument("--prefixes", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--bar", type=float, default=1.05)
    parser.add_argument("--device-share", type=float, help="cells for this part of all distinct tokens, instead of --cells")
    parser.add_argument("--ram-share", type=float, default=0, help="host memory for this part of all distinct tokens")
    parser.add_argument("--ram", type=int, default=0, help="bytes of host memory, instead of --ram-share")
    parser.add_argument("--checkpoints", type=int, help="of models with windows or recurrent layers; four per client without it")
    parser.add_argument("--disk", help="FOLDER,SIZE of prefixes on disk")
    args = parser.parse_args()
    if not args.model:
        args.model = os.path.join(args.build, "agents.gguf")
        subprocess.run([os.path.join(args.build, "bin", "tenon"), "synth", "--force", args.model, "--type", "f16", "--shape",
                        "layers=4,width=128,heads=4,kv=2,head=32,ffn=256,vocab=600,ctx=4096"], check=True, stdout=subprocess.DEVNULL)
    requests = conversations.make_set(args.seed, args.count)
    expected = conversations.expected_distinct(requests)
    state = state_bytes(args) if args.device_share or args.ram_share else 0
    points = conversations.expected_checkpoints(requests) if state else 0
    if args.device_share:
        args.cells = int(expected * args.device_share)
        args.checkpoints = args.checkpoints or int(points * args.device_share)
    if args.ram_share:
        args.ram = int(args.ram_share * (expected * token_bytes(args) + points * state))
    server, url = start_server(args)
    try:
        wait_until_ready(url)
        drive, begin = Drive(url, requests), time.time()
        drive.run(args.clients)
        seconds = time.time() - begin
        metrics = urllib.request.urlopen(url + "/metrics", timeout=10).read().decode()
    finally:
        server.terminate()
        server.wait()
    least, distinct = conversations.least_computed([drive.exchanges[i] for i in drive.order])
    sent = sum(len(prompt) for prompt, _ in drive.exchanges)
    ratio = drive.computed / least
    print(f"{args.count} conversations, {len(requests)} requests, {args.clients} clients, {args.cells} cells, "
          f"{args.checkpoints or 'default'} checkpoints, {seconds:.0f} s")
    print(f"prompt tokens: {sent} sent, {least} to compute at least, {drive.computed} computed; {distinct} distinct in memory, "
          f"{metric(metrics, 'prefixes_evicted_total')} prefixes made room")
    if args.ram or args.disk:
        print(f"host memory: {args.ram} bytes, {metric(metrics, 'cache_ram_tokens_taken_total')} tokens taken, "
              f"{metric(metrics, 'cache_ram_blocks_stored_total')} blocks stored, {metric(metrics, 'cache_blocks_dropped_total')} dropped; "
              f"disk: {metric(metrics, 'cache_disk_bytes')} bytes, {metric(metrics, 'cache_disk_tokens_taken_total')} tokens taken")
    print(f"computed / least possible: {ratio:.3f} (bar {args.bar})")
    return ratio > args.bar


if __name__ == "__main__":
    sys.exit(main())
