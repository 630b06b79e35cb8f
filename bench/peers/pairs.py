#!/usr/bin/env python3
"""pairs.py OLD NEW MODEL...: two builds of the tenon program, measured in turn, so that a slow minute of the machine hits both.

  --pairs N      pairs per model (default 15); the order changes from pair to pair
  --prompt N     tokens of the prompt (default 512)
  --predict N    tokens generated one by one (default 64)
  --repeat N     runs of each test in a process, of which the median counts (default 1)
  --least R      fail where a median ratio NEW / OLD is below R (default 0.95)
  --arguments S  further options for `tenon bench`, e.g. "-ngl 99"

Prints the median of the ratios of the pairs, and the quartiles, for prefill and decode."""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys

parser = argparse.ArgumentParser(usage=__doc__)
parser.add_argument('old')
parser.add_argument('new')
parser.add_argument('models', nargs='+')
parser.add_argument('--pairs', type=int, default=15)
parser.add_argument('--prompt', type=int, default=512)
parser.add_argument('--predict', type=int, default=64)
parser.add_argument('--repeat', type=int, default=1)
parser.add_argument('--least', type=float, default=0.95)
parser.add_argument('--arguments', default='')
args = parser.parse_args()


def measure(program, model):
    """Tokens per second by test."""
    command = [program, 'bench', model, '-p', str(args.prompt), '-n', str(args.predict), '-r', str(args.repeat), '--json',
               *shlex.split(args.arguments)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f'{shlex.join(command)}: {run.stderr.strip()}')
    return {result['test']: result['median'] for result in json.loads(run.stdout)['results']}


low = False
for model in args.models:
    ratios, rates = {}, {}
    for pair in range(args.pairs + 1):
        first, second = (args.old, args.new) if pair % 2 else (args.new, args.old)
        results = {first: measure(first, model), second: measure(second, model)}
        if pair == 0:
            continue  # the first pair brings the file into memory
        for test in results[args.new]:
            ratios.setdefault(test, []).append(results[args.new][test] / results[args.old][test])
            rates.setdefault(test, []).append(results[args.new][test])
    for test, values in ratios.items():
        quartiles = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
        median = statistics.median(values)
        low = low or median < args.least
        print(f'{os.path.basename(model):24} {test:11} {median:.3f} (quartiles {quartiles[0]:.3f} to {quartiles[2]:.3f}), '
              f'{len(values)} pairs, {statistics.median(rates[test]):.1f} t/s{" BELOW " + str(args.least) if median < args.least else ""}',
              flush=True)
sys.exit(1 if low else 0)
