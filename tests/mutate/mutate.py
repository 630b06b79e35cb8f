#!/usr/bin/env python3
"""mutate.py [options] FILE|FOLDER…: do the tests notice random changes of the source?

One change at a time is made in a copy of a file: a comparison, arithmetic, logic, a constant, a removed statement, swapped arguments or a
skipped error path. The copy is compiled with the build's own command and linked with the build's other objects into one shared library,
against which all unit tests and fuzz replays were linked once: a change costs one compilation and one link. The tests run in the order in
which they noticed earlier changes of the file, then those of the same module, then the others, the quick ones first. A change that no test
notices is a missing test, dead code, or makes no difference: look at each. Sources and the build folder stay as they are.

Results are remembered in BUILD/mutate/results.tsv: a change that was noticed is not tried again while the file is the same, one that was not
is tried again with --again. No golden data is used unless TENON_GOLDEN names it."""
import argparse
import concurrent.futures
import hashlib
import json
import os
import random
import re
import shlex
import shutil
import struct
import subprocess
import sys
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))

# ---- Changes ----

WORDS = {' < ': [' <= ', ' > '], ' <= ': [' < ', ' >= '], ' > ': [' >= ', ' < '], ' >= ': [' > ', ' <= '], ' == ': [' != '], ' != ': [' == '],
         ' && ': [' || '], ' || ': [' && '], ' + ': [' - '], ' - ': [' + '], ' / ': [' * '], ' % ': [' / '], ' << ': [' >> '], ' >> ': [' << '],
         ' & ': [' | '], ' | ': [' & '], ' += ': [' -= ', ' = '], ' -= ': [' += '], ' |= ': [' = ', ' &= '], ' &= ': [' = ', ' |= ']}
KINDS = {**{word: 'comparison' for word in (' < ', ' <= ', ' > ', ' >= ', ' == ', ' != ')}, ' && ': 'logic', ' || ': 'logic'}


def code_only(text):
    """The text with comments, strings, characters and preprocessor lines blanked, of the same length."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*'
    return re.sub(pattern, lambda m: re.sub(r'[^\n]', '\x00', m[0]), text, flags=re.S | re.M)


def changes(text):
    """(kind, begin, end, replacement) of every change that could be made."""
    code, found = code_only(text), []
    depth, inside = 0, []  # changes are made in functions only
    for char in code:
        depth += (char == '{') - (char == '}')
        inside.append(depth > 0)

    def add(kind, begin, end, new):
        if inside[begin]:
            found.append((kind, begin, end, new))
    for word, others in WORDS.items():
        for m in re.finditer(re.escape(word), code):
            for other in others:
                add(KINDS.get(word, 'arithmetic'), m.start(), m.end(), other)
    for m in re.finditer(r'\b(true|false)\b', code):
        add('constant', m.start(), m.end(), 'false' if m[1] == 'true' else 'true')
    for m in re.finditer(r'(?<![\w.\'"])(0|[1-9]\d{0,5})(?![\w.\'"])', code):
        add('constant', m.start(), m.end(), str(int(m[1]) + 1))
        if m[1] != '0':
            add('constant', m.start(), m.end(), str(int(m[1]) - 1))
    for m in re.finditer(r'(?<=[(&| ])!(?=[\w(])', code):
        add('logic', m.start(), m.end(), '')
    for m in re.finditer(r'\b(?:if|while) \(', code):
        end = closing(code, m.end() - 1)
        if end:
            add('logic', m.end() - 1, end + 1, f'(!({text[m.end():end]}))')
    for m in re.finditer(r'^([ \t]+)([A-Za-z_][\w>.\[\]* +-]*(?:\(.*\)| [-+|&*]?= [^;{}]*|\+\+|--));$', code, re.M):
        if not re.match(r'(return|goto|else|case|const|static|size_t|u?int\d*_t|int|bool|char|float|double|struct|tn_\w+ \*?\w+ =)\b', m[2]) \
                and not re.match(r'[a-z_][\w ]* \**\w+ = ', m[2]):
            add('statement', m.start(2), m.end(2), '(void)0')
    for m in re.finditer(r'\b(break|continue);', code):
        add('statement', m.start(), m.end(), ';')
    for m in re.finditer(r'(?<=[(,] )?([A-Za-z_][\w.>-]*), ([A-Za-z_][\w.>-]*)(?=[,)])', code):
        if m[1] != m[2] and re.search(r'\w\([^()]*$', code[max(0, m.start() - 200):m.start()].split(';')[-1]):
            add('arguments', m.start(), m.end(), f'{m[2]}, {m[1]}')
    for m in re.finditer(r'\bif \(', code):
        end = closing(code, m.end() - 1)
        if end and re.match(r'\)\s*(return|goto|status =|TN_TRY)', code[end:end + 40]):
            add('error path', m.end(), end, '0')
    for m in re.finditer(r'\bTN_TRY\(', code):
        add('error path', m.start(), m.end(), '(void)(')
    return found


def closing(code, at):
    depth = 0
    for i in range(at, min(len(code), at + 600)):
        depth += (code[i] == '(') - (code[i] == ')')
        if depth == 0:
            return i
    return None


# ---- The library of all objects, and the tests ----

def show_hidden(path):
    """Gives the hidden symbols of an object default visibility, so that a shared library exports them to the tests."""
    with open(path, 'rb') as file:
        data = bytearray(file.read())
    at, size, count = struct.unpack_from('<Q', data, 40)[0], *struct.unpack_from('<HH', data, 58)
    for i in range(count):
        kind, offset, length = *struct.unpack_from('<I', data, at + i * size + 4), *struct.unpack_from('<QQ', data, at + i * size + 24)
        if kind == 2:  # SHT_SYMTAB
            for symbol in range(offset, offset + length, 24):
                if data[symbol + 4] >> 4 != 0 and data[symbol + 5] & 3 == 2:  # global or weak, STV_HIDDEN
                    data[symbol + 5] &= ~3 & 255
    with open(path, 'wb') as file:
        file.write(data)


class Bench:
    def __init__(self, build, jobs):
        self.build, self.jobs, self.folder = os.path.abspath(build), jobs, os.path.join(os.path.abspath(build), 'mutate')
        os.makedirs(os.path.join(self.folder, 'objects'), exist_ok=True)
        os.makedirs(os.path.join(self.folder, 'tests'), exist_ok=True)
        with open(os.path.join(self.build, 'compile_commands.json'), encoding='utf-8') as file:
            entries = [e for e in json.load(file) if re.search(r'CMakeFiles/tenon_(core_objects|llm_objects|kernels\w*)\.dir', e['command'])]
        self.commands = {os.path.relpath(e['file'], ROOT): shlex.split(e['command']) for e in entries}
        self.objects = {}
        for name, command in self.commands.items():
            source = os.path.join(self.build, command[command.index('-o') + 1])
            target = os.path.join(self.folder, 'objects', name.replace('/', '+') + '.o')
            if not os.path.exists(target) or os.path.getmtime(target) < os.path.getmtime(source):
                shutil.copyfile(source, target)
                show_hidden(target)
            self.objects[name] = target
        self.library = os.path.join(self.folder, 'libtenon-mutate.so')
        self.link(self.objects.values())
        self.tests = self.link_tests()

    def link(self, objects):
        listing = os.path.join(self.folder, 'objects.list')
        with open(listing, 'w', encoding='utf-8') as file:
            file.write('\n'.join(objects))
        linker = ['-fuse-ld=gold'] if shutil.which('ld.gold') else []
        command = ['cc', *linker, '-shared', '-Wl,-Bsymbolic', '-o', self.library + '.new', f'@{listing}', '-lpcre2-8', '-lutf8proc', '-ljansson', '-lm',
                   '-ldl', '-lpthread']
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            os.replace(self.library + '.new', self.library)
        return result

    def link_tests(self):
        """Links every unit test and replay against the shared library; returns their paths by name."""
        names = subprocess.run(['ninja', '-C', self.build, '-t', 'targets', 'all'], capture_output=True, text=True, check=True).stdout
        tests = {}

        def one(name):
            command = subprocess.run(['ninja', '-C', self.build, '-t', 'commands', f'tests/{name}'], capture_output=True, text=True,
                                     check=True).stdout.strip().split('\n')[-1]
            target = os.path.join(self.folder, 'tests', name)
            command = re.sub(r' -o \S+', f' -o {target}', command, count=1).replace('lib/libtenon-llm.a', self.library)
            command = command.replace('lib/libtenon.a', self.library) + f' -Wl,-rpath,{self.folder}'
            command = command.replace('&& :', '').replace(': &&', '').replace('-rdynamic', '')
            origin = os.path.join(self.build, 'tests', name)
            if os.path.exists(target) and os.path.exists(origin) and os.path.getmtime(target) > os.path.getmtime(origin):
                return name, target
            done = subprocess.run(command, shell=True, cwd=self.build, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f'left out: {name}: {done.stderr.strip().splitlines()[-1][:160]}')
            return name, None if done.returncode else target
        wanted = sorted(set(re.findall(r'^tests/((?:test|replay)_\w+): C_EXECUTABLE_LINKER', names, re.M)))
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            for name, path in pool.map(one, wanted):
                if path:
                    tests[name] = path
        return tests

    def run(self, name, limit, cpu=None):
        """Seconds that a test took, or None where it failed. An endless loop ends with the processor time, so that a busy machine is no
        failure; only a test that waits for ever meets the other limit."""
        arguments = []
        if name.startswith('replay_'):
            arguments = [os.path.join(ROOT, 'tests/fuzz/corpus', name[7:])]
            if not os.path.isdir(arguments[0]):
                return None
        env = dict(os.environ, TENON_GOLDEN=os.environ.get('TENON_GOLDEN', '/nonexistent'), CMOCKA_TEST_ABORT='0', TENON_LOG='off')
        begin = time.monotonic()
        prefix = ['prlimit', f'--cpu={max(2, int(cpu))}'] if cpu and shutil.which('prlimit') else []
        try:
            done = subprocess.run([*prefix, self.tests[name], *arguments], cwd=self.build, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  stdin=subprocess.DEVNULL, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            return None
        return time.monotonic() - begin if done.returncode == 0 else None

    def compile(self, name, text, target):
        source = os.path.join(self.folder, 'source', name)
        os.makedirs(os.path.dirname(source), exist_ok=True)
        with open(source, 'w', encoding='utf-8') as file:
            file.write(text)
        command = [word for word in self.commands[name] if 'ccache' not in word]
        command[command.index('-o') + 1] = target
        command[command.index('-c') + 1] = source
        done = subprocess.run([*command, '-iquote', os.path.dirname(os.path.join(ROOT, name)), '-w'], cwd=self.build, capture_output=True, check=False)
        return done.returncode == 0


def code_of(path):
    """What an object computes: equal bytes are the same program."""
    copy = path + '.code'
    subprocess.run(['objcopy', '-O', 'binary', '--only-section=.text*', '--only-section=.rodata*', '--only-section=.data*', path, copy], check=False)
    with open(copy, 'rb') as file:
        code = file.read()
    relocations = subprocess.run(['readelf', '-rW', path], capture_output=True, text=True, check=False).stdout
    return code + re.sub(r'^Relocation section.*$', '', relocations, flags=re.M).encode()


# ---- Memory ----

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
            file.write('\t'.join([key, name, test, what.replace('\t', ' ')]) + '\n')

    def save_seconds(self):
        with open(self.times, 'w', encoding='utf-8') as file:
            json.dump(self.seconds, file)


def baseline(bench, memory, jobs, slowest):
    """Tests that pass without a change and are quick enough, with their seconds."""
    stamp = {name: str(os.path.getmtime(path)) for name, path in bench.tests.items()}
    unknown = [name for name in bench.tests if memory.seconds.get(name, [None])[0] != stamp[name] or memory.seconds[name][1] is None]
    if unknown:
        print(f'running {len(unknown)} tests without a change', flush=True)
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for name, took in zip(unknown, pool.map(lambda n: bench.run(n, slowest), unknown)):
                memory.seconds[name] = [stamp[name], took]
                if took is None:
                    print(f'left out: {name} fails, or takes longer than {slowest} s')
        memory.save_seconds()
    return {name: memory.seconds[name][1] for name in bench.tests if memory.seconds[name][1] is not None}


def words_of(name):
    return set(re.split(r'[/_.]', name)) - {'src', 'c', 'test', 'tests', 'unit'}


def order(name, usable, memory, places):
    def rank(test):
        kills = memory.kills.get((name, test), 0)
        module = name.split('/')[1] == places.get(test, '') or places.get(test, '?') in name.split('/')
        return (-kills, -len(words_of(name) & words_of(test)), not module, usable[test])
    return sorted(usable, key=rank)


def describe(name, text, change):
    kind, begin, end, new = change
    line = text.count('\n', 0, begin) + 1
    start, stop = text.rfind('\n', 0, begin) + 1, text.find('\n', end)
    after = text[start:begin] + new + text[end:stop]
    return f'{name}:{line}: {kind}\n    {" ".join(text[start:stop].split())}\n    {" ".join(after.split())}'


def key_of(name, text, change):
    _, begin, end, new = change
    return hashlib.sha256((name + text[:begin] + new + text[end:]).encode()).hexdigest()[:16]


def unnoticed(files, memory):
    """(file, text, change) of what was not noticed before, as far as the files are the same."""
    for name in files:
        keys = {key for key, result in memory.results.items() if result == 'NOT NOTICED'}
        with open(os.path.join(ROOT, name), encoding='utf-8') as file:
            text = file.read()
        for change in changes(text):
            if key_of(name, text, change) in keys:
                yield name, text, change


def pick(files, rnd, weights):
    name = rnd.choices(files, weights)[0]
    with open(os.path.join(ROOT, name), encoding='utf-8') as file:
        text = file.read()
    found = changes(text)
    if not found:
        return name, text, None
    kinds = sorted({change[0] for change in found})
    kind = rnd.choice(kinds)
    return name, text, rnd.choice([change for change in found if change[0] == kind])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('paths', nargs='+')
    parser.add_argument('--build', default='build')
    parser.add_argument('--seconds', type=float, default=600)
    parser.add_argument('--count', type=int, default=10**9, help='changes to try at most')
    parser.add_argument('--seed', type=int, default=None)
    parser.add_argument('--slowest', type=float, default=40, help='tests that take longer are left out')
    parser.add_argument('--only', default='', help='a regular expression: tests to run')
    parser.add_argument('--again', action='store_true', help='only what was not noticed before')
    parser.add_argument('-j', type=int, default=2)
    options = parser.parse_args()
    os.chdir(ROOT)
    bench = Bench(options.build, options.j)
    memory = Memory(bench.folder)
    bench.tests = {name: path for name, path in bench.tests.items() if re.search(options.only, name)}
    usable = baseline(bench, memory, options.j, options.slowest)
    places = {os.path.basename(path)[:-2]: folder for folder in os.listdir('tests/unit') for path in os.listdir(f'tests/unit/{folder}')}
    files = [name for name in bench.commands if any(name == p or name.startswith(p.rstrip('/') + '/') for p in options.paths)]
    if not files:
        sys.exit('mutate: no sources of the libraries there')
    weights = [os.path.getsize(name) for name in files]
    seed = options.seed if options.seed is not None else random.randrange(10**6)
    rnd, end = random.Random(seed), time.monotonic() + options.seconds
    counts, survivors, codes, tried = {'noticed': 0, 'not noticed': 0, 'makes no difference': 0}, [], {}, set()
    again, changed = unnoticed(files, memory), os.path.join(bench.folder, 'changed.o')
    print(f'{len(files)} files, {len(usable)} tests, seed {seed}', flush=True)
    while time.monotonic() < end and counts['noticed'] + counts['not noticed'] < options.count:
        name, text, change = next(again, (None, None, None)) if options.again else pick(files, rnd, weights)
        if name is None or len(tried) > 10**5:
            break
        if change is None:
            continue
        key = key_of(name, text, change)
        if key in tried or (memory.results.get(key) and not options.again):
            tried.add(key if key not in tried else len(tried))
            continue
        tried.add(key)
        mutant = text[:change[1]] + change[3] + text[change[2]:]
        what = describe(name, text, change)
        if not bench.compile(name, mutant, changed):
            continue
        if name not in codes:
            bench.compile(name, text, changed + '.same')
            codes[name] = code_of(changed + '.same')
        if code_of(changed) == codes[name]:
            counts['makes no difference'] += 1
            memory.add(key, name, 'SAME', what.split('\n')[-1].strip())
            continue
        show_hidden(changed)
        if bench.link([changed if n == name else path for n, path in bench.objects.items()]).returncode:
            continue
        by = notice(bench, order(name, usable, memory, places), usable, options.j)
        counts['noticed' if by else 'not noticed'] += 1
        memory.add(key, name, by or 'NOT NOTICED', what.replace('\n', ' '))
        if not by:
            survivors.append(what)
        print(f'noticed by {by}: {what.splitlines()[0]}' if by else f'NOT NOTICED: {what}', flush=True)
    bench.link(bench.objects.values())
    total = counts['noticed'] + counts['not noticed']
    print(f'{total} changes, {counts["noticed"]} noticed ({100 * counts["noticed"] // max(1, total)}%), {counts["not noticed"]} not; '
          f'{counts["makes no difference"]} others give the same object; seed {seed}')
    return 0


def notice(bench, tests, usable, jobs):
    """The first test that fails, or None."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for at in range(0, len(tests), jobs):
            group = tests[at:at + jobs]
            for test, took in zip(group, pool.map(lambda n: bench.run(n, 60 + 10 * usable[n], 5 + 5 * usable[n]), group)):
                if took is None:
                    return test
    return None


if __name__ == '__main__':
    sys.exit(main())
