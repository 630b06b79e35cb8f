"""Which tests run which lines: every block of the libraries is compiled with a call that notes it, and every test is run once."""
import bisect
import concurrent.futures
import json
import os
import re
import subprocess

from bench import LIBRARY, ROOT, digest, read_text, show_hidden, wall

NOTING = ['-O0', '-g1', '-fsanitize-coverage=trace-pc', '-U_FORTIFY_SOURCE', '-w']


def uninstrumented(name):
    """Vector kernels need the optimizer; their tests are found by name."""
    return bool(re.search(r'/kernels/(avx|amx|neon)', name))


def ranges(numbers):
    """Sorted numbers as [first, last, first, last, …], which is short where lines follow one another."""
    found = []
    for number in sorted(numbers):
        if found and number == found[-1] + 1:
            found[-1] = number
        else:
            found += [number, number]
    return found


def spread(found):
    return {number for first, last in zip(found[::2], found[1::2]) for number in range(first, last + 1)}


class Reach:
    """Which tests run which lines. The map is kept in a file that is valid wherever sources and tests are the same."""

    def __init__(self, bench, usable, end):
        self.bench, self.place = bench, 'reach'
        self.path = os.path.join(bench.folder, 'reach.json')
        stamp = digest([os.path.join(ROOT, name) for name in sorted(bench.commands)])
        known = {}
        if os.path.exists(self.path):
            with open(self.path, encoding='utf-8') as file:
                known = json.load(file)
        if known.get('stamp') != stamp:
            known = {'stamp': stamp, 'lines': {}, 'tests': {}}
        missing = [t for t in usable if known['tests'].get(t, [None])[0] != bench.stamp(t)]
        if missing:
            self.build(stamp)
            self.blocks = self.read_blocks()
            lines = {}
            for _, name, line in self.rows():
                lines.setdefault(name, set()).add(line)
            known['lines'] = {name: ranges(numbers) for name, numbers in lines.items()}
            self.save(known)
            print(f'looking which lines {len(missing)} tests reach', flush=True)
            with bench.pool() as pool:
                waiting = {pool.submit(lambda t: self.look(t, 10 + 4 * usable[t]) if wall() < end else None, t): t
                           for t in sorted(missing, key=lambda t: -usable[t])}
                for done in concurrent.futures.as_completed(waiting):
                    test = waiting[done]
                    if done.result() is None:
                        raise SystemExit('mutate: not all lines are known in this time; another run goes on')
                    known['tests'][test] = [bench.stamp(test), *done.result()]
                    self.save(known)
        self.lines = {test: {name: spread(numbers) for name, numbers in known['tests'][test][2].items()} for test in usable}
        self.whole = {test: known['tests'][test][1] for test in usable}
        self.known_lines = {name: spread(numbers) for name, numbers in known['lines'].items()}

    def save(self, known):
        with open(self.path + '.new', 'w', encoding='utf-8') as file:
            json.dump(known, file)
        os.replace(self.path + '.new', self.path)

    def build(self, stamp):
        mark = os.path.join(self.bench.folder, self.place, 'stamp')
        if os.path.exists(mark) and read_text(mark) == stamp:
            return
        print('building the libraries that note what is reached', flush=True)
        folder = os.path.join(self.bench.folder, self.place)
        os.makedirs(folder, exist_ok=True)

        def one(name):
            if uninstrumented(name):
                return self.bench.objects[name]
            target = os.path.join(folder, name.replace('/', '+') + '.o')
            command = [word for word in self.bench.commands[name] if 'ccache' not in word]
            command[command.index('-o') + 1] = target
            subprocess.run([*command, *NOTING, *(['-O1'] if '/kernels/' in name or name.startswith('src/quant') else [])], cwd=self.bench.build, check=True)
            show_hidden(target)
            return target
        with self.bench.pool() as pool:
            objects = list(pool.map(one, self.bench.commands))
        helper = os.path.join(folder, 'reach.o')
        subprocess.run(['cc', '-O2', '-fPIC', '-D_GNU_SOURCE', '-c', os.path.join(ROOT, 'tests/mutate/reach.c'), '-o', helper], check=True)
        done = self.bench.link([*objects, helper], self.place)
        if done.returncode:
            raise SystemExit('mutate: ' + done.stderr[-400:])
        with open(mark, 'w', encoding='utf-8') as file:
            file.write(stamp)

    def rows(self):
        """(address, file, line) of the library's line table, by address."""
        if hasattr(self, 'table'):
            return self.table
        text = subprocess.run(['objdump', '--dwarf=decodedline', os.path.join(self.bench.folder, self.place, LIBRARY)], capture_output=True, text=True,
                              check=True).stdout
        # A source that begins a part of the table is named without its folder; the parts are in the order of the objects.
        table, name, order, at = [], None, list(self.bench.commands), -1
        for row in text.split('\n'):
            found = re.match(r'(?:CU: )?(\S+\.[ch]):(?:\[\+\+\])?$', row)
            if found and '/' in found[1]:
                name = os.path.relpath(os.path.normpath(os.path.join(self.bench.build, found[1])), ROOT)
                continue
            if found:
                at = next((i for i in range(at + 1, len(order)) if os.path.basename(order[i]) == found[1]), at)
                name = order[at]
                continue
            found = re.match(r'(\S+)\s+(\d+|-)\s+(0x[0-9a-f]+)', row)
            if found and name and found[2] != '-' and os.path.basename(name) == found[1]:
                table.append((int(found[3], 16), name, int(found[2])))
        self.table = sorted(table)
        return self.table

    def read_blocks(self):
        """Return addresses of the noting calls, in order, each with the lines of the code up to the next one."""
        library = os.path.join(self.bench.folder, self.place, LIBRARY)
        text = subprocess.run(['objdump', '-d', '--no-show-raw-insn', library], capture_output=True, text=True, check=True).stdout
        calls, pending = [], False
        for row in text.split('\n'):
            colon = row.find(':\t')
            if colon > 0 and pending:
                calls.append(int(row[:colon], 16))
            pending = 'call' in row and '__sanitizer_cov_trace_pc' in row
        table = self.rows()
        starts = [row[0] for row in table]
        blocks = {}
        for at, call in enumerate(calls):
            end = calls[at + 1] - 5 if at + 1 < len(calls) else call + 64
            lines = {table[i][1:] for i in range(max(0, bisect.bisect_right(starts, call) - 1), bisect.bisect_left(starts, end))}
            blocks[call] = lines
        return blocks

    def look(self, test, seconds):
        """(whether the test ended by itself, lines by file)."""
        path = os.path.join(self.bench.folder, self.place, test + '.map')
        took = self.bench.run(test, self.place, 10 * seconds, seconds, MUTATE_REACH=path)
        lines = {}
        if os.path.exists(path):
            with open(path, 'rb') as file:
                seen = file.read()
            os.remove(path)
            at = seen.find(1)
            while at >= 0:
                for name, line in self.blocks.get(at, ()):
                    lines.setdefault(name, set()).add(line)
                at = seen.find(1, at + 1)
        return took is not None, {name: ranges(numbers) for name, numbers in lines.items()}

    def tests(self, name, first, last, usable):
        """The tests that run one of the lines, or all where that is not known. A statement's first line may be above: the nearest one that
        has code counts."""
        known = self.known_lines.get(name)
        if uninstrumented(name) or not known:
            return list(usable)
        wanted = {line for line in range(first, last + 1) if line in known}
        if not wanted:
            above = [line for line in known if line < first]
            wanted = {max(above)} if above else set()
        reached = []
        for test in usable:
            lines = self.lines[test].get(name, set())
            if lines & wanted or (not self.whole[test] and lines):
                reached.append(test)
        return reached
