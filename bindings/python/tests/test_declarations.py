"""The declarations agree with the headers and with the library."""
import ctypes
import glob
import os
import re
import subprocess
import sys
import tempfile
import unittest

from tenon import _types
from tenon._functions import FUNCTIONS
from tenon._library import lib

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, '..', '..', '..')


def headers():
    text = ''
    for path in glob.glob(os.path.join(ROOT, 'include', 'tenon', '**', '*.h'), recursive=True):
        if os.path.basename(path) != 'backend_impl.h':  # for those who write a backend; tenon.h leaves it out
            with open(path, encoding='utf-8') as file:
                text += file.read()
    return re.sub(r'/\*.*?\*/', '', text, flags=re.S)


class Declarations(unittest.TestCase):
    def test_every_function_of_the_headers_is_declared_and_in_the_library(self):
        declared = set(re.findall(r'\bTN_API\b[^;{]*?\b(tn_\w+)\s*\(', headers()))
        self.assertEqual(sorted(declared - set(FUNCTIONS)), [])
        self.assertEqual(sorted(set(FUNCTIONS) - declared), [])
        self.assertEqual([name for name in FUNCTIONS if not hasattr(lib, name)], [])

    def test_sizes_offsets_and_constants_are_those_of_the_compiler(self):
        structs = {name: kind for name, kind in vars(_types).items()
                   if isinstance(kind, type) and issubclass(kind, (ctypes.Structure, ctypes.Union)) and hasattr(kind, '_fields_')
                   and name.startswith('tn_') and not name.startswith('tn_op_params_') and '_anonymous' not in name}
        self.assertGreater(len(structs), 60)
        expected, lines = [], []
        for name, kind in structs.items():
            for field, _ in kind._fields_:
                if field != 'anonymous':
                    expected.append(f'{name}.{field} {getattr(kind, field).offset} {getattr(kind, field).size}')
                    lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));')
            expected.append(f'{name} {ctypes.sizeof(kind)}')
            lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for name, value in vars(_types).items():
            if name.startswith('TN_') and isinstance(value, int):
                expected.append(f'{name} {value}')
                lines.append(f'printf("{name} %lld\\n", (long long){name});')
        with tempfile.TemporaryDirectory() as folder:
            source, program = os.path.join(folder, 'layout.c'), os.path.join(folder, 'layout')
            with open(source, 'w', encoding='utf-8') as file:
                file.write('#include <stdio.h>\n#include <tenon/tenon.h>\nint main(void) {\n' + '\n'.join(lines) + '\nreturn 0;\n}\n')
            subprocess.run(['cc', '-I', os.path.join(ROOT, 'include'), source, '-o', program], check=True)
            printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
            self.assertEqual([pair for pair in zip(printed, expected) if pair[0] != pair[1]], [],
                             'the headers have changed: run bindings/python/declarations.py')

    def test_the_files_are_what_a_parser_of_the_headers_writes(self):
        result = subprocess.run([sys.executable, os.path.join(HERE, '..', 'declarations.py'), '--check'], capture_output=True, text=True,
                                check=False)
        if result.returncode == 77:
            self.skipTest(result.stdout.strip())
        self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ''))

    def test_no_function_exists_as_a_macro_only(self):
        macros = set(re.findall(r'^#define (tn_\w+)\(', headers(), re.M))
        self.assertEqual(macros, {'tn_tensor_nd', 'tn_input', 'tn_reshape', 'tn_output', 'tn_param'})  # short forms of:
        self.assertTrue({'tn_tensor_new', 'tn_mark', 'tn_reshape_to'} <= set(FUNCTIONS))


if __name__ == '__main__':
    unittest.main()
