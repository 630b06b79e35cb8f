#!/usr/bin/env python3
"""check_words.py [PATH...]: no retired word (scripts/retired_words.txt) comes back."""
import os
import re
import subprocess
import sys

os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLE = 'scripts/retired_words.txt'
TEXT = re.compile(r'\.(c|h|cu|cuh|cpp|cc|md|sh|py|js|mjs|html|css|cmake|txt|in)$|(^|/)(Makefile|CMakeLists\.txt)$')
# The checker and its table name the words; the migration page and the change log list old names; seeds and libraries are other people's.
EXEMPT = ('scripts/retired_words.txt', 'scripts/check_words.py', 'docs/migration.md', 'CHANGELOG.md', 'tests/fuzz/corpus/', 'tools/tenon/web/vendor/')

only = [path.rstrip('/') for path in sys.argv[1:]]


def below(name, folder):
    return folder == '.' or name == folder or name.startswith(folder + '/')


rows = []
with open(TABLE, encoding='utf-8') as file:
    for number, line in enumerate(file, 1):
        if line.startswith('#') or not line.strip():
            continue
        fields = line.rstrip('\n').split('\t')
        if len(fields) not in (3, 4) or (len(fields) == 4 and ' because ' not in fields[3]):
            sys.exit(f'{TABLE}:{number}: expected pattern, paths, use and optionally "except because reason", separated by tabs')
        paths = fields[1].split(',')
        for path in paths:
            if path.lstrip('!') != '.' and not os.path.exists(path.lstrip('!')):
                sys.exit(f'{TABLE}:{number}: no such path: {path}')
        rows.append((re.compile(r'(?<![^\W_])(?:' + fields[0] + r')(?![^\W_])', re.I), [p for p in paths if p[0] != '!'],
                     [p[1:] for p in paths if p[0] == '!'], fields[2],
                     re.compile(fields[3].split(' because ')[0], re.I) if len(fields) == 4 else None))

listed = subprocess.run(['git', 'ls-files', '--cached', '--others', '--exclude-standard'], capture_output=True, text=True,
                        check=True).stdout.split('\n')
wrong = 0
for name in sorted(listed):
    if not TEXT.search(name) or name.startswith(EXEMPT) or not os.path.isfile(name) or (only and not any(below(name, o) for o in only)):
        continue
    mine = [row for row in rows if any(below(name, p) for p in row[1]) and not any(below(name, p) for p in row[2])]
    if not mine:
        continue
    with open(name, encoding='utf-8', errors='replace') as file:
        for number, line in enumerate(file, 1):
            for pattern, _, _, use, exception in mine:
                found = pattern.search(line)
                if found and not (exception and exception.search(line)):
                    print(f'{name}:{number}: "{found.group(0)}" is retired, use: {use}')
                    wrong += 1
if wrong:
    print(f'{wrong} retired words; {TABLE} lists them and their exceptions')
sys.exit(1 if wrong else 0)
