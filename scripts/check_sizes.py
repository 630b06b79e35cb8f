#!/usr/bin/env python3
"""check_sizes.py [FOLDER...]: limits that keep the tree readable. Folders of sources and tests hold at most 25 files, source
files have at most 700 lines, functions at most 100 (GPU code, which the compiler must see as a whole, is exempt)."""
import os
import re
import subprocess
import sys

FILES_PER_FOLDER, LINES_PER_FILE, LINES_PER_FUNCTION = 25, 700, 100
ROOTS = ('src', 'tools', 'tests', 'include', 'bench', 'examples', 'scripts', 'cmake')

root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
os.chdir(root)
only = [folder.rstrip('/') + '/' for folder in sys.argv[1:]]


def project_files():
    try:
        listed = subprocess.run(['git', 'ls-files', '--cached', '--others', '--exclude-standard', '--', *ROOTS], capture_output=True,
                                text=True, check=True).stdout.split('\n')
    except (OSError, subprocess.CalledProcessError):  # not a checkout
        listed = [os.path.join(at, name) for top in ROOTS for at, _, names in os.walk(top) for name in names]
    return sorted({name for name in listed if name and os.path.isfile(name)})


def functions(lines):
    """(name, first line, length, signature) of every function that starts and ends in the first column."""
    start = None
    for number, line in enumerate(lines):
        if line.startswith('}'):
            if start is not None and line.rstrip() == '}':
                signature = ' '.join(lines[start[1]:start[0] + 1])
                name = re.search(r'(\w+)\s*\(', signature)
                if name:
                    yield name.group(1), start[1] + 1, number - start[1] + 1, signature
            start = None
        elif line.rstrip().endswith('{') and start is None:
            first = number
            while first > 0 and lines[first - 1].strip() and not re.match(r'[#}/ *]|.*[;}]\s*$', lines[first - 1]):
                first -= 1
            if '(' in ' '.join(lines[first:number + 1]) and not line.startswith((' ', '\t')) or line.startswith(' ') and first < number:
                start = (number, first)


wrong = []
files = project_files()
folders = {}
for name in files:
    folders.setdefault(os.path.dirname(name), []).append(name)
for folder, names in sorted(folders.items()):
    if len(names) > FILES_PER_FOLDER:
        wrong.append((folder + '/', f'{len(names)} files; at most {FILES_PER_FOLDER}: divide it by subject'))
for name in files:
    if not re.search(r'\.(c|h|cu|cuh|cpp|cc|py|js|mjs)$', name):
        continue
    with open(name, encoding='utf-8', errors='replace') as file:
        lines = file.read().split('\n')
    if len(lines) - 1 > LINES_PER_FILE:
        wrong.append((name, f'{len(lines) - 1} lines; at most {LINES_PER_FILE}: divide it by subject'))
    if not re.search(r'\.(c|h|cu|cuh|cpp|cc)$', name):
        continue
    for function, at, length, signature in functions(lines):
        if length > LINES_PER_FUNCTION and not re.search(r'__(global|device)__', signature):
            wrong.append((f'{name}:{at}', f'{function} has {length} lines; at most {LINES_PER_FUNCTION}'))

wrong = [(where, what) for where, what in wrong if not only or any(where.startswith(folder) for folder in only)]
for where, what in wrong:
    print(f'{where}: {what}')
sys.exit(1 if wrong else 0)
