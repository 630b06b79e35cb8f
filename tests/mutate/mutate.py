#!/usr/bin/env python3
"""mutate.py [options] FILE|FOLDER…: do the tests notice random changes of the source?

One change at a time is made in a copy of a file: a comparison, arithmetic, logic, a constant, a removed statement, swapped arguments or a
skipped error path. The copy is compiled with the build's own command and linked with the build's other objects into one shared library,
against which all unit tests and fuzz replays were linked once: a change costs one compilation and one link. Only tests that run the changed
line are run, those first that noticed earlier changes of the file, then those named like it, the quick ones first. A change that no test
notices is a missing test, dead code, or makes no difference: look at each. Sources and the build folder stay as they are.

Files of tools/ are linked into a program of its own, and run by the scripts in tests/server.

Results are remembered in BUILD/mutate/results.tsv: a change that was noticed is not tried again while the file is the same, one that was not
is tried again with --again. No golden data is used unless TENON_GOLDEN names it."""
import argparse
import concurrent.futures
import hashlib
import json
import os
import random
import re
import sys
import threading

from bench import ROOT, Bench, code_of, show_hidden, wall
from changes import changes
from program import ProgramBench
from reach import Reach


class Memory:
    def __init__(self, folder):
        self.path, self.results, self.kills, self.seconds = os.path.join(folder, 'results.tsv'), {}, {}, {}
        self.times = os.path.join(folder, 'seconds.json')
        if os.path.exists(self.path):
            with open(self.path, encoding='utf-8') as file:
                for line in file:
                    key, name, test = line.rstrip('\n').split('\t')[:3]
                    self.note(key, name, test)
        if os.path.exists(self.times):
            with open(self.times, encoding='utf-8') as file:
                self.seconds = json.load(file)

    def note(self, key, name, test):
        self.results[key] = test
        if test not in ('NOT NOTICED', 'SAME'):
            self.kills[(name, test)] = self.kills.get((name, test), 0) + 1

    def add(self, key, name, test, what):
        self.note(key, name, test)
        with open(self.path, 'a', encoding='utf-8') as file:
            file.write('\t'.join([key, name, test, what.replace('\t', ' ').replace('\n', ' ')]) + '\n')

    def save_seconds(self):
        with open(self.times, 'w', encoding='utf-8') as file:
            json.dump(self.seconds, file)


def baseline(bench, memory, slowest, end):
    """Tests that pass without a change and are quick enough, with their seconds of processor time."""
    def one(name):
        return bench.run(name, 'plain', 8 * slowest, slowest) if wall() < end else -1
    stamp = {name: str(os.path.getmtime(path)) for name, path in bench.tests.items()}
    unknown = [name for name in bench.tests if memory.seconds.get(name, [None])[0] != stamp[name]]
    if unknown:
        print(f'running {len(unknown)} tests without a change', flush=True)
        with concurrent.futures.ThreadPoolExecutor(bench.jobs) as pool:
            for name, took in zip(unknown, pool.map(one, unknown)):
                if took == -1:
                    sys.exit('mutate: not all tests are known in this time; another run goes on')
                memory.seconds[name] = [stamp[name], took]
                memory.save_seconds()
                if took is None:
                    print(f'left out: {name} fails, or takes longer than {slowest} s')
    return {name: memory.seconds[name][1] for name in bench.tests if (memory.seconds[name][1] or slowest + 1) <= slowest}


def words_of(name):
    return set(re.split(r'[/_.]', name)) - {'src', 'c', 'test', 'tests', 'unit'}


def order(name, tests, usable, memory, places):
    def rank(test):
        kills = memory.kills.get((name, test), 0)
        module = name.split('/')[1] == places.get(test, '') or places.get(test, '?') in name.split('/')
        return (-kills / (0.5 + usable[test]), -len(words_of(name) & words_of(test)), not module, usable[test])
    return sorted(tests, key=rank)


def lines_of(text, change):
    return text.count('\n', 0, change[1]) + 1, text.count('\n', 0, change[2]) + 1


def describe(name, text, change):
    kind, begin, end, new = change
    start, stop = text.rfind('\n', 0, begin) + 1, text.find('\n', end)
    after = text[start:begin] + new + text[end:stop]
    return f'{name}:{lines_of(text, change)[0]}: {kind}\n    {" ".join(text[start:stop].split())}\n    {" ".join(after.split())}'


def key_of(name, text, change):
    _, begin, end, new = change
    return hashlib.sha256((name + text[:begin] + new + text[end:]).encode()).hexdigest()[:16]


def read(name):
    with open(os.path.join(ROOT, name), encoding='utf-8') as file:
        return file.read()


def unnoticed(files, memory):
    """(file, text, change) of what was not noticed before, as far as the files are the same."""
    keys = {key for key, result in memory.results.items() if result == 'NOT NOTICED'}
    for name in files:
        text = read(name)
        for change in changes(text):
            key = key_of(name, text, change)
            if key in keys:
                keys.discard(key)
                yield name, text, change


def random_changes(files, rnd, memory):
    """Random (file, text, change), each once and none that has been tried; kinds of changes are equally likely."""
    weights, known, seen = [os.path.getsize(name) for name in files], {}, set()
    for _ in range(10**5):
        name = rnd.choices(files, weights)[0]
        if name not in known:
            text = read(name)
            known[name] = text, changes(text)
        text, found = known[name]
        if not found:
            continue
        kind = rnd.choice(sorted({change[0] for change in found}))
        change = rnd.choice([change for change in found if change[0] == kind])
        key = key_of(name, text, change)
        if key not in seen and key not in memory.results:
            seen.add(key)
            yield name, text, change


class Trial:
    """Tries changes, several at a time."""

    def __init__(self, bench, memory, usable, reach):
        self.bench, self.memory, self.usable, self.reach = bench, memory, usable, reach
        self.places = {os.path.basename(path)[:-2]: folder for folder in os.listdir('tests/unit') for path in os.listdir(f'tests/unit/{folder}')}
        self.counts, self.codes, self.lock = {'noticed': 0, 'not noticed': 0, 'makes no difference': 0}, {}, threading.Lock()

    def tried(self):
        return self.counts['noticed'] + self.counts['not noticed']

    def one(self, place, name, text, change):
        bench, what, key = self.bench, describe(name, text, change), key_of(name, text, change)
        if name not in self.codes:
            self.codes[name] = code_of(bench.compile(name, text, place))
        changed = bench.compile(name, text[:change[1]] + change[3] + text[change[2]:], place)
        if not changed:
            return
        if code_of(changed) == self.codes[name]:
            with self.lock:
                self.counts['makes no difference'] += 1
                self.memory.add(key, name, 'SAME', what)
            return
        show_hidden(changed)
        if bench.link([changed if n == name else path for n, path in bench.objects.items()], place).returncode:
            return
        tests = self.reach.tests(name, *lines_of(text, change), self.usable) if self.reach else list(self.usable)
        by = None
        for test in order(name, tests, self.usable, self.memory, self.places):
            if bench.run(test, place, 60 + 15 * self.usable[test], 5 + 4 * self.usable[test]) is None:
                by = test
                break
        with self.lock:
            self.counts['noticed' if by else 'not noticed'] += 1
            self.memory.add(key, name, by or 'NOT NOTICED', what)
            print(f'noticed by {by}: {what.splitlines()[0]}' if by else f'NOT NOTICED ({len(tests)} tests run the line): {what}', flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('paths', nargs='+')
    parser.add_argument('--build', default='build')
    parser.add_argument('--folder', help='where objects and results are kept, instead of BUILD/mutate')
    parser.add_argument('--seconds', type=float, default=600)
    parser.add_argument('--count', type=int, default=10**9, help='changes to try at most')
    parser.add_argument('--seed', type=int, default=None)
    parser.add_argument('--slowest', type=float, default=40, help='tests that take more processor time are left out')
    parser.add_argument('--only', default='', help='a regular expression: tests to run')
    parser.add_argument('--without', default='^$', help='a regular expression: files to leave alone')
    parser.add_argument('--again', action='store_true', help='only what was not noticed before')
    parser.add_argument('--no-reach', action='store_true', help='run all tests for each change, instead of those that run the changed line')
    parser.add_argument('-j', type=int, default=2)
    options = parser.parse_args()
    os.chdir(ROOT)
    end = wall() + options.seconds
    folder = options.folder or os.path.join(options.build, 'mutate')
    programs = all(path.startswith('tools/') for path in options.paths)
    bench = ProgramBench(options.build, os.path.join(folder, 'program'), options.j, options.only) if programs \
        else Bench(options.build, folder, options.j, options.only)
    files = [name for name in bench.commands if any(name == p or name.startswith(p.rstrip('/') + '/') for p in options.paths)
             and not re.search(options.without, name)]
    if not files:
        sys.exit('mutate: no sources of the libraries or of the program there')
    memory = Memory(bench.folder)
    usable = baseline(bench, memory, options.slowest, end)
    reach = None if options.no_reach or programs else Reach(bench, usable, end)
    seed = options.seed if options.seed is not None else random.randrange(10**6)
    trial = Trial(bench, memory, usable, reach)
    source = unnoticed(files, memory) if options.again else random_changes(files, random.Random(seed), memory)
    print(f'{len(files)} files, {len(usable)} tests, seed {seed}', flush=True)

    def work(place):
        while wall() < end:
            with trial.lock:
                item = next(source, None) if trial.tried() < options.count else None
            if item is None:
                break
            trial.one(place, *item)
    with concurrent.futures.ThreadPoolExecutor(options.j) as pool:
        for worker in [pool.submit(work, f'worker{i}') for i in range(options.j)]:
            worker.result()
    counts, total = trial.counts, trial.tried()
    print(f'{total} changes, {counts["noticed"]} noticed ({100 * counts["noticed"] / max(1, total):.1f}%), {counts["not noticed"]} not; '
          f'{counts["makes no difference"]} others give the same object; seed {seed}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
