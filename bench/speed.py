#!/usr/bin/env python3
"""speed.py [BUILD]: predicted against measured speed, models made by `tenon synth`.

  --device NAME    device of all layers (default: tenon's own choice), e.g. cuda0 or cpu
  --threads N      CPU threads (default 0: one per core)
  --models LIST    names of the table below, separated by commas (default: all)
  --dir FOLDER     where models are made and deleted again (default: a temporary folder)
  --keep           do not delete them; models that exist are used as they are
  --make           only make the models that --keep uses, and say how large they are
  --depth N        cells in the cache for the third row of a model (default 4096; 0: leave it out)
  --predict N      tokens generated per run (default 32)
  --repeat N       runs of each test, of which the median counts (default 3)
  --seconds N      start no further model after this time (default: no limit)
  --again          measure the peaks again before every model, for machines that are not quiet

The peaks are measured once at the start, in the same process environment, and kept in a cache of their own. Prints a line per
test as soon as it is known, then the median and the largest error: of the models that the formula was fitted with, and of the
others."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

MOE = '--arch qwen3moe --shape layers={layers},width={width},heads=32,kv=4,head=128,experts={experts},used={used},expert-ffn={ffn},vocab=32000'
# name: options of tenon synth, whether the formula was fitted with it
MODELS = {
    '1b-q4_K_M': ('--shape 1b --type Q4_K_M', True),
    '1b-q8_0': ('--shape 1b --type q8_0', True),
    '1b-f16': ('--shape 1b --type f16', True),
    '8b-q4_K_M': ('--shape 8b --type Q4_K_M', True),
    'moe-32': (MOE.format(layers=16, width=2048, experts=32, used=4, ffn=768) + ' --type Q4_K_M', True),
    '3b-q4_K_M': ('--shape 3b --type Q4_K_M', False),
    'moe-48': (MOE.format(layers=10, width=2560, experts=48, used=6, ffn=768) + ' --type Q4_K_M', False),
    'moe-64': (MOE.format(layers=12, width=1536, experts=64, used=8, ffn=512) + ' --type q8_0', True),
    '8b-q8_0': ('--shape 8b --type q8_0', True),
    '8b-f16': ('--shape 8b --type f16', True),
}

parser = argparse.ArgumentParser(usage=__doc__)
parser.add_argument('build', nargs='?', default='build')
parser.add_argument('--device')
parser.add_argument('--threads', type=int, default=0)
parser.add_argument('--models', default=','.join(MODELS))
parser.add_argument('--dir')
parser.add_argument('--keep', action='store_true')
parser.add_argument('--make', action='store_true')
parser.add_argument('--depth', type=int, default=4096)
parser.add_argument('--predict', type=int, default=32)
parser.add_argument('--repeat', type=int, default=3)
parser.add_argument('--seconds', type=float, default=0)
parser.add_argument('--again', action='store_true')
args = parser.parse_args()

unknown = [name for name in args.models.split(',') if name not in MODELS]
if unknown:
    parser.error(f'unknown model {unknown[0]}; there are {", ".join(MODELS)}')
if (args.make or args.keep) and not args.dir:
    parser.error('--make and --keep need --dir')

program = os.path.join(args.build, 'bin', 'tenon')
began = time.monotonic()
errors = {True: [], False: []}


def run(arguments, environment):
    """Standard output of the program; ends with its message where it fails."""
    done = subprocess.run([program, *arguments], capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f'tenon {" ".join(arguments)}: {done.stderr.strip()}')
    return done.stdout


def measure_peaks(environment):
    start = time.monotonic()
    wanted = ['--device', args.device] if args.device else []
    text = run(['devices', '--measure', '-t', str(args.threads), *wanted], environment)
    if args.device and args.device != 'cpu':  # embeddings and outputs may still be the host's
        run(['devices', '--measure', '-t', str(args.threads), '--device', 'cpu'], environment)
    return text, time.monotonic() - start


def row(name, fitted, result, depth):
    measured, predicted = result['median'], result.get('predicted')
    test = f'prompt {result["tokens"]}' if result['test'] == 'prompt' else f'decode at depth {depth}'
    if not predicted:
        print(f'| {name} | {test} | {measured:.2f} | - | - | |', flush=True)
        return
    error = predicted / measured - 1
    errors[fitted].append(abs(error))
    parts = result.get('parts', {})
    shares = ', '.join(f'{part} {1e3 * seconds:.2f}' for part, seconds in parts.items() if seconds * 50 > sum(parts.values()))
    note = '' if 'share_of_bandwidth' not in result else f'{100 * result["share_of_bandwidth"]:.0f}% of the bandwidth; '
    print(f'| {name} | {test} | {measured:.2f} ({result["lowest"]:.2f} to {result["highest"]:.2f}) | {predicted:.2f} '
          f'| {100 * error:+.1f}% | {note}{result["limit"]}; ms: {shares} |', flush=True)


def bench(path, environment, prompt, depth):
    options = ['-p', str(prompt), '-n', str(args.predict), '-d', str(depth), '-r', str(args.repeat), '-t', str(args.threads), '--json']
    if args.device:
        options += ['--device', args.device]
    return json.loads(run(['bench', path, *options], environment))['results']


def make_model(name, folder, environment):
    path = os.path.join(folder, name + '.gguf')
    if not ((args.keep or args.make) and os.path.exists(path)):
        run(['synth', path, *MODELS[name][0].split()], environment)
    return path


def make_all(folder, environment):
    """Models larger than the memory would be read from disk for every token."""
    memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    for name in args.models.split(','):
        size = os.path.getsize(make_model(name, folder, environment))
        print(f'{name}: {size / 2**30:.2f} GiB{"" if size < 0.8 * memory else ", too large for this memory"}', flush=True)


def measure_model(name, folder, environment):
    fitted = MODELS[name][1]
    path = make_model(name, folder, environment)
    if args.again:
        measure_peaks(environment)
    for result in bench(path, environment, 512, 0):
        row(name, fitted, result, 0)
    if args.depth:
        for result in bench(path, environment, 0, args.depth):
            row(name, fitted, result, args.depth)
    if not args.keep:
        os.remove(path)


with tempfile.TemporaryDirectory() as scratch:
    environment = dict(os.environ, XDG_CACHE_HOME=scratch)
    folder = args.dir or scratch
    os.makedirs(folder, exist_ok=True)
    if args.make:
        make_all(folder, environment)
        sys.exit(0)
    text, seconds = measure_peaks(environment)
    print(text)
    print(f'peaks measured in {seconds:.1f} s; load average {os.getloadavg()[0]:.1f}\n')
    print('| model | test | measured, t/s | predicted | error | what limits it |\n|---|---|--:|--:|--:|---|', flush=True)
    for name in args.models.split(','):
        if args.seconds and time.monotonic() - began > args.seconds:
            print(f'| {name} | not measured: no time left | | | | |', flush=True)
            continue
        measure_model(name, folder, environment)

print()
for fitted, list_of in errors.items():
    if list_of:
        print(f'{"fitted" if fitted else "not fitted"}: {len(list_of)} figures, median error {100 * statistics.median(list_of):.1f}%, '
              f'largest {100 * max(list_of):.1f}%')
everything = errors[True] + errors[False]
if everything:
    print(f'all: median error {100 * statistics.median(everything):.1f}%, largest {100 * max(everything):.1f}%')
