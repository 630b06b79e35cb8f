#!/usr/bin/env python3
"""mutate.py [options] FILE|FOLDER…: do the tests notice random changes of the source?

One change at a time is made in a copy of a file: a comparison, arithmetic, logic, a constant, a removed statement, swapped arguments or a
skipped error path. The copy is compiled with the build's own command and linked with the build's other objects into one shared library,
against which all unit tests and fuzz replays were linked once: a change costs one compilation and one link. Only tests that run the changed
line are run, those first that noticed earlier changes of the file, then those named like it, the quick ones first. A change that no test
notices is a missing test, dead code, or makes no difference: look at each. Sources and the build folder stay as they are.

Files of tools/ are linked into a program of its own, and run by the scripts in tests/server.

A test that fails is run again without the change; if it fails there too, it is left out. What no test notices is compiled again with -O3:
changes that give the same object at either level make no difference. Those that do not by an argument are listed with it in
tests/mutate/equivalent.tsv (file, line before, line after, why) and are counted apart.

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
from reach import Reach, uninstrumented


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
        if test not in ('NOT NOTICED', 'SAME', 'LISTED'):
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
        unknown.sort(key=lambda name: -(memory.seconds.get(name, [None, None])[1] or 0))
        with bench.pool() as pool:
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


def listed():
    """(file, line before, line after) of the changes that make no difference by an argument."""
    with open(os.path.join(ROOT, 'tests/mutate/equivalent.tsv'), encoding='utf-8') as file:
        return {tuple(line.split('\t')[:3]) for line in file if not line.startswith('#')}


def listed_key(name, text, change):
    before, after = describe(name, text, change).split('\n')[1:]
    return name, before.strip(), after.strip()


class Trial:
    """Tries changes, several at a time."""

    def __init__(self, bench, memory, usable, reach, options, end):
        self.bench, self.memory, self.usable, self.reach = bench, memory, dict(usable), reach
        self.patience, self.end, self.listed, self.rows, self.begun, self.path = options.patience, end, listed(), [], 0, options.json
        self.places = {os.path.basename(path)[:-2]: folder for folder in os.listdir('tests/unit') for path in os.listdir(f'tests/unit/{folder}')}
        self.codes, self.lock = {}, threading.Lock()

    def count(self, result):
        return sum(row['result'] == result for row in self.rows)

    def add(self, key, name, text, change, result, **more):
        what = describe(name, text, change)
        with self.lock:
            self.rows.append({'result': result, 'file': name, 'line': lines_of(text, change)[0], 'kind': change[0],
                              'before': what.split('\n')[1].strip(), 'after': what.split('\n')[2].strip(), **more})
            self.save()
            if result != 'unfinished':
                self.memory.add(key, name, {'same': 'SAME', 'listed': 'LISTED', 'not noticed': 'NOT NOTICED'}.get(result, more.get('by')), what)
            if result == 'noticed':
                print(f'noticed by {more["by"]}: {what.splitlines()[0]}', flush=True)
            elif result in ('not noticed', 'unfinished'):
                print(f'{result.upper()} ({more["ran"]} of {more["tests"]} tests that run the line): {what}', flush=True)

    def save(self):
        if self.path:
            with open(self.path + '.new', 'w', encoding='utf-8') as file:
                json.dump({'noticed': self.count('noticed'), 'not noticed': self.count('not noticed'), 'rows': self.rows}, file, indent=1)
            os.replace(self.path + '.new', self.path)

    def same_code(self, name, text, changed, place, *options):
        """The changed object, and whether it is the same as without the change; None if it does not compile."""
        if (name, options) not in self.codes:
            self.codes[name, options] = code_of(self.bench.compile(name, text, place, *options))
        target = self.bench.compile(name, changed, place, *options)
        return target, bool(target) and code_of(target) == self.codes[name, options]

    def one(self, place, name, text, change):
        """Whether the change counts: it compiles, and to another object."""
        bench, key = self.bench, key_of(name, text, change)
        changed = text[:change[1]] + change[3] + text[change[2]:]
        target, same = self.same_code(name, text, changed, place)
        if not target:
            return False
        if same:
            self.add(key, name, text, change, 'same')
            return False
        if listed_key(name, text, change) in self.listed:
            self.add(key, name, text, change, 'listed')
            return False
        if '-O3' not in bench.commands[name]:
            if self.same_code(name, text, changed, place, '-O3')[1]:
                self.add(key, name, text, change, 'same')
                return False
            bench.compile(name, changed, place)
        show_hidden(target)
        if bench.link([target if n == name else path for n, path in bench.objects.items()], place).returncode:
            return False
        tests = self.reach.tests(name, *lines_of(text, change), self.usable) if self.reach else list(self.usable)
        ran, spent, doubtful = 0, 0, []
        for test in order(name, tests, self.usable, self.memory, self.places):
            if wall() > self.end or spent > self.patience:
                break
            usual = self.usable.get(test)
            if usual is None:
                continue
            ran, spent = ran + 1, spent + usual
            if bench.run(test, place, 20 + 10 * usual, 5 + 4 * usual) is None and wall() < self.end:
                if bench.run(test, 'plain', 20 + 10 * usual, 5 + 4 * usual) is not None:
                    self.add(key, name, text, change, 'noticed', by=test)
                    return True
                doubtful.append(test)
                if len(doubtful) > 1:
                    continue
                print(f'{test} fails without a change as well', flush=True)
        finished = ran == len(tests) or wall() < self.end
        self.add(key, name, text, change, 'not noticed' if finished else 'unfinished', ran=ran, tests=len(tests), spent=round(spent))
        return True


def report(trial, seed):
    noticed, missed = trial.count('noticed'), trial.count('not noticed')
    total = noticed + missed
    print(f'{total} changes, {noticed} noticed ({100 * noticed / max(1, total):.1f}%), {missed} not; '
          f'{trial.count("same")} others give the same object, {trial.count("listed")} are listed as making no difference, '
          f'{trial.count("unfinished")} were not finished; seed {seed}')


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
    parser.add_argument('--patience', type=float, default=10**9, help='seconds of processor time of tests for one change, as they usually take')
    parser.add_argument('--json', help='a file for the results of this run')
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
    reach = None if options.no_reach or programs or all(map(uninstrumented, files)) else Reach(bench, usable, end)
    seed = options.seed if options.seed is not None else random.randrange(10**6)
    trial = Trial(bench, memory, usable, reach, options, end)
    bench.end = end # what runs then is stopped, and its change counts as not finished
    source = unnoticed(files, memory) if options.again else random_changes(files, random.Random(seed), memory)
    print(f'{len(files)} files, {len(usable)} tests, seed {seed}', flush=True)

    def work(place):
        while wall() < end:
            with trial.lock:
                item = next(source, None) if trial.begun < options.count else None
                trial.begun += 1
            if item is None:
                break
            if not trial.one(place, *item):
                with trial.lock:
                    trial.begun -= 1
    with bench.pool() as pool:
        for worker in [pool.submit(work, f'worker{i}') for i in range(options.j)]:
            worker.result()
    report(trial, seed)
    return 0


if __name__ == '__main__':
    sys.exit(main())
