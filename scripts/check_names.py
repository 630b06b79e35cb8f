#!/usr/bin/env python3
"""check_names.py [FOLDER...]: names that are local to a file are specific enough to find with grep. A static function or a
struct tag may not be defined in several files. Sibling folders of CPU kernels and programs of one file mirror each other on purpose."""
import collections
import os
import re
import subprocess
import sys

os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
only = [folder.rstrip('/') + '/' for folder in sys.argv[1:]]
KERNELS = 'src/backend/cpu/kernels/'

listed = subprocess.run(['scripts/sources.sh', 'src', 'tools'], capture_output=True, text=True, check=True).stdout.split()
defined = collections.defaultdict(set)
for name in listed:
    if name.startswith(KERNELS):
        continue
    with open(name, encoding='utf-8') as file:
        text = file.read()
    text = re.sub(r'/\*.*?\*/|//[^\n]*', '', text, flags=re.S)
    for match in re.finditer(r'^(?:template[^\n]*\n)?static (?!const\b|struct \w+ \w+ ?=)[^;={}()]*?\b(\w+)\([^;{}]*\)\s*\{', text, re.M):
        defined[match.group(1) + '()'].add(name)
    for match in re.finditer(r'^(?:typedef )?(?:struct|union|enum) (\w+) \{', text, re.M):
        defined[match.group(1)].add(name)

wrong = 0
for name, files in sorted(defined.items()):
    if len(files) < 2 or (only and not any(file.startswith(folder) for file in files for folder in only)):
        continue
    wrong += 1
    print(f'{name}: in {", ".join(sorted(files))}')
if wrong:
    print(f'{wrong} local names stand in several files: name them after their subject')
sys.exit(1 if wrong else 0)
