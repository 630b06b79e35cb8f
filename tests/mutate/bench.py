"""The libraries' objects and the tests, linked so that one changed object costs one compilation and one link."""
import concurrent.futures
import filecmp
import glob
import hashlib
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))
LIBRARY = 'libtenon-mutate.so'


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


def code_of(path):
    """What an object computes: equal bytes are the same program."""
    copy = path + '.code'
    subprocess.run(['objcopy', '-O', 'binary', '--only-section=.text*', '--only-section=.rodata*', '--only-section=.data*', path, copy], check=False)
    with open(copy, 'rb') as file:
        code = file.read()
    relocations = subprocess.run(['readelf', '-rW', path], capture_output=True, text=True, check=False).stdout
    return code + re.sub(r'^Relocation section.*$', '', relocations, flags=re.M).encode()


def read_text(path):
    with open(path, encoding='utf-8') as file:
        return file.read()


def digest(paths):
    total = hashlib.sha256()
    for path in paths:
        with open(path, 'rb') as file:
            total.update(path.encode() if not os.path.isabs(path) else os.path.relpath(path, ROOT).encode())
            total.update(file.read())
    return total.hexdigest()[:16]


class Bench:
    """Everything is below FOLDER: objects/ as built, tests/ linked with the shared library, and a folder with such a library for each worker."""

    def __init__(self, build, folder, jobs, only):
        self.build, self.jobs, self.folder = os.path.abspath(build), jobs, os.path.abspath(folder)
        for part in ('objects', 'tests', 'plain'):
            os.makedirs(os.path.join(self.folder, part), exist_ok=True)
        with open(os.path.join(self.build, 'compile_commands.json'), encoding='utf-8') as file:
            entries = [e for e in json.load(file) if re.search(r'CMakeFiles/tenon_(core_objects|llm_objects|kernels\w*)\.dir', e['command'])]
        self.commands = {os.path.relpath(e['file'], ROOT): shlex.split(e['command']) for e in entries}
        self.objects, self.stamps, self.here, self.end = {}, {}, threading.local(), wall() + 10**7
        for name, command in self.commands.items():
            source = os.path.join(self.build, command[command.index('-o') + 1])
            target = os.path.join(self.folder, 'objects', name.replace('/', '+') + '.o')
            if not os.path.exists(target) or os.path.getmtime(target) < os.path.getmtime(source):
                shutil.copyfile(source, target)
                show_hidden(target)
            self.objects[name] = target
        done = self.link(self.objects.values(), 'plain')
        if done.returncode:
            raise SystemExit('mutate: the libraries do not link: ' + done.stderr[-400:])
        self.tests = self.link_tests(only)

    def link(self, objects, place, *more):
        """Links the objects into the library of a worker's folder."""
        folder = os.path.join(self.folder, place)
        os.makedirs(folder, exist_ok=True)
        listing = os.path.join(folder, 'objects.list')
        with open(listing, 'w', encoding='utf-8') as file:
            file.write('\n'.join(objects))
        linker = ['-fuse-ld=gold'] if shutil.which('ld.gold') else []
        return subprocess.run(['cc', *linker, '-shared', '-Wl,-Bsymbolic', f'-Wl,-soname,{LIBRARY}', '-o', os.path.join(folder, LIBRARY), f'@{listing}', *more,
                               '-lpcre2-8', '-lutf8proc', '-ljansson', '-lm', '-ldl', '-lpthread'], capture_output=True, text=True, check=False)

    def link_tests(self, only):
        """Links the unit tests and replays against the shared library; returns their paths by name."""
        names = subprocess.run(['ninja', '-C', self.build, '-t', 'targets', 'all'], capture_output=True, text=True, check=True).stdout
        wanted = [name for name in sorted(set(re.findall(r'^tests/((?:test|replay)_\w+): C_EXECUTABLE_LINKER', names, re.M))) if re.search(only, name)]
        library = os.path.join(self.folder, 'plain', LIBRARY)

        def one(name):
            target, origin = os.path.join(self.folder, 'tests', name), os.path.join(self.build, 'tests', name)
            seen = target + '.seen' # when it was linked last; the file itself stays as it is if nothing has changed
            if os.path.exists(target) and os.path.exists(origin) and max(map(os.path.getmtime, filter(os.path.exists, (target, seen)))) > os.path.getmtime(origin):
                return name, target
            command = subprocess.run(['ninja', '-C', self.build, '-t', 'commands', f'tests/{name}'], capture_output=True, text=True,
                                     check=True).stdout.strip().split('\n')[-1]
            command = re.sub(r' -o \S+', f' -o {target}.new', command, count=1).replace('lib/libtenon-llm.a', library).replace('lib/libtenon.a', library)
            command = command.replace('&& :', '').replace(': &&', '').replace('-rdynamic', '')
            done = subprocess.run(command, shell=True, cwd=self.build, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f'left out: {name}: {done.stderr.strip().splitlines()[-1][:160]}')
                return name, None
            if os.path.exists(target) and filecmp.cmp(target, target + '.new', shallow=False):
                os.remove(target + '.new')
            else:
                os.replace(target + '.new', target)
            with open(seen, 'w', encoding='utf-8'):
                pass
            return name, target
        with self.pool() as pool:
            return {name: path for name, path in pool.map(one, wanted) if path}

    def stamp(self, test):
        """Changes with a test's source and the files of tests/support whose headers it includes, and not with the compiler."""
        if test not in self.stamps:
            kind = f'tests/unit/*/{test}.c' if test.startswith('test_') else f'tests/fuzz/fuzz_{test[7:]}.c'
            sources = glob.glob(os.path.join(ROOT, kind))
            headers = set(re.findall(r'#include "([\w/]+)\.h"', ''.join(map(read_text, sources))))
            support = [path for header in sorted(headers) for path in glob.glob(os.path.join(ROOT, 'tests/support', header + '.[ch]'))]
            self.stamps[test] = digest(sources + support)
        return self.stamps[test]

    def scratch(self, place, name):
        """A fresh folder for the temporary files of one run, as several may run with the same library."""
        base = os.path.join(self.folder, place, 'tmp')
        os.makedirs(base, exist_ok=True)
        return tempfile.mkdtemp(prefix=name + '-', dir=base)

    def run(self, name, place, limit, cpu, **variables):
        """Seconds of processor time that a test took with the library of that folder, or None where it failed. An endless loop ends with the
        processor time, so that a busy machine is no failure; only a test that waits for ever meets the other limit."""
        arguments = []
        if name.startswith('replay_'):
            arguments = [os.path.join(ROOT, 'tests/fuzz/corpus', name[7:])]
            if not os.path.isdir(arguments[0]):
                return None
        library = ':'.join(filter(None, (os.path.join(self.folder, place), os.environ.get('LD_LIBRARY_PATH'))))
        return self.start([self.tests[name], *arguments], limit, cpu, LD_LIBRARY_PATH=library, **variables)

    def start(self, command, limit, cpu, **variables):
        env = dict(os.environ, TENON_GOLDEN=os.environ.get('TENON_GOLDEN', '/nonexistent'), CMOCKA_TEST_ABORT='0', TENON_LOG='off', **variables)
        prefix = ['prlimit', f'--cpu={max(2, int(cpu))}', '--core=0'] if shutil.which('prlimit') else []
        cores = getattr(self.here, 'cores', None)  # of the worker that this thread is: tests' threads must not crowd out other workers'
        if cores and shutil.which('taskset'):
            prefix = ['taskset', '-c', ','.join(map(str, cores)), *prefix]
        process = subprocess.Popen([*prefix, *command], cwd=self.build, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   stdin=subprocess.DEVNULL, start_new_session=True)
        timer = threading.Timer(min(limit, max(1, self.end - wall())), lambda: stop_group(process.pid))
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = status
        stop_group(process.pid)  # children that a failed test left behind
        return usage.ru_utime + usage.ru_stime if status == 0 else None

    def compile(self, name, text, place, *options):
        """Compiles a text in place of a source into PLACE/changed.o. Returns that path, or None."""
        folder = os.path.join(self.folder, place)
        source, target = os.path.join(folder, 'source', name), os.path.join(folder, 'changed.o')
        os.makedirs(os.path.dirname(source), exist_ok=True)
        with open(source, 'w', encoding='utf-8') as file:
            file.write(text)
        command = [word for word in self.commands[name] if 'ccache' not in word]
        command[command.index('-o') + 1] = target
        command[command.index('-c') + 1] = source
        done = subprocess.run([*command, '-iquote', os.path.dirname(os.path.join(ROOT, name)), '-w', *options], cwd=self.build, capture_output=True,
                              check=False)
        return target if done.returncode == 0 else None


    def pool(self):
        """A pool of threads, each with two processor cores of its own and its neighbour's."""
        cores, numbers = sorted(os.sched_getaffinity(0)), itertools.count()

        def begin():
            i = next(numbers)
            if len(cores) > 2:
                self.here.cores = {cores[i % len(cores)], cores[(i + 1) % len(cores)]}
        return concurrent.futures.ThreadPoolExecutor(self.jobs, initializer=begin)


def stop_group(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def wall():
    return time.monotonic()
