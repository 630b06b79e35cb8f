#!/usr/bin/python3
"""Writes tenon/_types.py and tenon/_functions.py from the public headers: declarations.py [--check].

The headers are preprocessed by `cc` with empty system headers and parsed by pycparser (Debian: python3-pycparser). With
--check nothing is written; the exit code is 1 where the files differ from what the headers say, 77 without pycparser.
"""
import os
import re
import subprocess
import sys
import tempfile

try:
    from pycparser import c_ast, c_parser
except ImportError:
    print('declarations.py needs pycparser: apt-get install python3-pycparser')
    sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
INCLUDE = os.path.join(HERE, '..', '..', 'include')

# What the public headers use of the C library. pycparser reads no compiler's own headers.
SYSTEM = {
    'stdarg.h': 'typedef int va_list;',
    'stdbool.h': '#define bool _Bool',
    'stddef.h': 'typedef unsigned long size_t;\n#define NULL ((void *)0)',
    'stdint.h': 'typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t; typedef unsigned short uint16_t;'
                'typedef int int32_t; typedef unsigned int uint32_t; typedef long int64_t; typedef unsigned long uint64_t;'
                'typedef unsigned long uintptr_t;',
    'stdio.h': 'typedef struct FILE FILE;',
}
PLAIN = {
    '_Bool': 'c_bool', 'char': 'c_char', 'unsigned char': 'c_ubyte', 'int': 'c_int', 'unsigned int': 'c_uint', 'unsigned': 'c_uint', 'float': 'c_float',
    'double': 'c_double', 'size_t': 'c_size_t', 'int8_t': 'c_int8', 'uint8_t': 'c_uint8', 'int16_t': 'c_int16',
    'uint16_t': 'c_uint16', 'int32_t': 'c_int32', 'uint32_t': 'c_uint32', 'int64_t': 'c_int64', 'uint64_t': 'c_uint64',
    'uintptr_t': 'c_size_t', 'tn_token': 'c_int32',
}


def preprocessed(*options):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in SYSTEM.items():
            with open(os.path.join(folder, name), 'w', encoding='utf-8') as file:
                file.write(text + '\n')
        command = ['cc', '-E', '-nostdinc', '-U__GNUC__', '-I', folder, '-I', INCLUDE, *options, '-x', 'c', '-']
        return subprocess.run(command, input='#include <tenon/tenon.h>\n', text=True, check=True, capture_output=True).stdout


class Headers:
    def __init__(self):
        self.enums, self.unions = set(), set()
        self.constants, self.structs, self.callbacks, self.aliases, self.functions = {}, {}, {}, {}, {}
        tree = c_parser.CParser().parse(preprocessed('-P'), 'tenon.h')
        for node in tree.ext:
            self.add(node)
        self.add_macros(preprocessed('-dM'))

    def add(self, node):
        if isinstance(node, c_ast.Typedef):
            self.add_typedef(node)
        elif isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.FuncDecl):
            if node.name.startswith('tn_'):
                self.functions[node.name] = node.type
        elif isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.Enum):
            self.add_enum(node.type)
        elif isinstance(node, c_ast.Decl) and isinstance(node.type, (c_ast.Struct, c_ast.Union)):
            self.add_struct(node.type)

    def add_typedef(self, node):
        inner = node.type
        if isinstance(inner, c_ast.TypeDecl) and isinstance(inner.type, c_ast.Enum):
            self.enums.add(node.name)
            self.add_enum(inner.type)
        elif isinstance(inner, c_ast.TypeDecl) and isinstance(inner.type, (c_ast.Struct, c_ast.Union)):
            self.add_struct(inner.type, node.name)
        elif isinstance(inner, c_ast.PtrDecl) and isinstance(inner.type, c_ast.FuncDecl):
            self.callbacks[node.name] = inner.type
        elif node.name.startswith('tn_'):
            self.aliases[node.name] = inner

    def add_enum(self, enum):
        value = -1
        for item in (enum.values.enumerators if enum.values else []):
            value = self.value(item.value) if item.value is not None else value + 1
            self.constants[item.name] = value

    def add_struct(self, struct, name=None):
        name = name or struct.name
        if isinstance(struct, c_ast.Union):
            self.unions.add(name)
        for field in struct.decls or []:
            field.name = field.name or 'anonymous'  # its members are the struct's: see _anonymous_ in ctypes
            inner = field.type if field.name == 'anonymous' else getattr(field.type, 'type', None)
            if isinstance(inner, (c_ast.Struct, c_ast.Union)) and inner.decls and not inner.name:
                inner.name = f'{name}_{field.name}'
                self.add_struct(inner)
        if struct.decls is not None or name not in self.structs:
            self.structs[name] = struct.decls

    def value(self, node):
        """The value of a constant expression."""
        if isinstance(node, c_ast.Constant):
            return int(node.value.rstrip('uUlL'), 0)
        if isinstance(node, c_ast.ID):
            return self.constants[node.name]
        if isinstance(node, c_ast.UnaryOp):
            return {'-': lambda x: -x, '~': lambda x: ~x}[node.op](self.value(node.expr))
        if isinstance(node, c_ast.BinaryOp):
            a, b = self.value(node.left), self.value(node.right)
            return {'+': int.__add__, '-': int.__sub__, '*': int.__mul__, '/': int.__floordiv__, '<<': int.__lshift__, '|': int.__or__}[node.op](a, b)
        raise ValueError(f'constant of kind {type(node).__name__}')

    def add_macros(self, text):
        """Macros that are whole numbers."""
        for name, value in re.findall(r'^#define (TN_\w+) \(?(0x[0-9a-f]+|[0-9]+)u?(?: << [0-9]+)?\)?$', text, re.M):
            shifted = re.search(rf'^#define {name} \((\d+) << (\d+)\)$', text, re.M)
            self.constants[name] = int(shifted[1]) << int(shifted[2]) if shifted else int(value, 0)

    # ---- C types to ctypes ----

    def named(self, name):
        if name in PLAIN:
            return PLAIN[name]
        if name in self.enums:
            return 'c_int'
        if name in self.callbacks or name in self.structs:
            return name
        if name in self.aliases:
            return self.ctype(self.aliases[name])
        raise ValueError(f'unknown type {name}')

    def ctype(self, node):
        if isinstance(node, c_ast.TypeDecl):
            inner = node.type
            if isinstance(inner, c_ast.IdentifierType):
                return self.named(' '.join(inner.names))
            if isinstance(inner, (c_ast.Struct, c_ast.Union)):
                return self.named(inner.name)
            if isinstance(inner, c_ast.Enum):
                return 'c_int'
            raise ValueError(f'type of kind {type(inner).__name__}')
        if isinstance(node, (c_ast.Struct, c_ast.Union)):
            return self.named(node.name)
        if isinstance(node, c_ast.ArrayDecl):
            return f'{self.ctype(node.type)} * {self.value(node.dim)}'
        if isinstance(node, c_ast.PtrDecl):
            return self.pointer(node.type)
        raise ValueError(f'type of kind {type(node).__name__}')

    def pointer(self, target):
        if isinstance(target, c_ast.FuncDecl):
            return self.callback(target)
        if isinstance(target, c_ast.TypeDecl) and isinstance(target.type, c_ast.IdentifierType):
            name = ' '.join(target.type.names)
            if name in ('void', 'FILE'):
                return 'c_void_p'
            if name == 'char' and 'const' in target.quals:
                return 'c_char_p'
        return f'POINTER({self.ctype(target)})'

    def parameters(self, function):
        types = []
        for parameter in (function.args.params if function.args else []):
            if isinstance(parameter, c_ast.EllipsisParam):
                return types, True
            node = parameter.type
            if isinstance(node, c_ast.ArrayDecl):
                types.append(self.pointer(node.type))
            elif not (isinstance(node, c_ast.TypeDecl) and getattr(node.type, 'names', None) == ['void']):
                types.append(self.ctype(node))
        return types, False

    def result(self, function, types=()):
        node = function.type
        if isinstance(node, c_ast.TypeDecl) and getattr(node.type, 'names', None) == ['void']:
            return 'None'
        kind = self.ctype(node)
        # A text with a length may contain NUL: the caller reads as many bytes as the length says.
        return 'POINTER(c_char)' if kind == 'c_char_p' and types and types[-1] == 'POINTER(c_size_t)' else kind

    def callback(self, function):
        types, _ = self.parameters(function)
        return f'CFUNCTYPE({", ".join([self.result(function), *types])})'

    def fields(self, name):
        for decl in self.structs[name]:
            if decl.bitsize is not None:
                raise ValueError(f'{name}.{decl.name}: bit fields depend on the compiler')
            yield decl.name, self.ctype(decl.type)

    def by_value(self, name):
        """Structs that a struct contains, which must be complete before it."""
        for _, kind in self.fields(name):
            base = kind.split(' * ')[0]
            if base in self.structs:
                yield base

    def order(self):
        done = []

        def visit(name):
            if name not in done and self.structs[name] is not None:
                for inner in self.by_value(name):
                    visit(inner)
                done.append(name)
        for name in self.structs:
            visit(name)
        return done


def wrapped(head, items, tail):
    """One line where it fits in 140 columns, else several."""
    line = head + ', '.join(items) + tail
    if len(line) <= 140:
        return [line]
    lines, current = [head], '    '
    for item in items:
        if len(current) + len(item) > 137:
            lines.append(current.rstrip())
            current = '    '
        current += item + ', '
    return [*lines, current.rstrip(), tail]


HEAD = '''"""{subject} of Tenon's public headers. Written by declarations.py; a test compares it with them."""
# pylint: disable=all
from ctypes import *  # noqa: F403
'''


def types_module(headers):
    lines = HEAD.format(subject='Constants and types').split('\n')
    lines += wrapped('(', [name for name in headers.constants], ') = (')
    values = wrapped('', [str(value) for value in headers.constants.values()], ')')
    lines[-1] += values[0]
    lines += values[1:]
    lines += ['', '']
    for name in headers.structs:
        lines.append(f'class {name}({"Union" if name in headers.unions else "Structure"}): pass')
    lines += ['', '']
    for name, pointer in headers.callbacks.items():
        lines += wrapped(f'{name} = CFUNCTYPE(', [headers.result(pointer), *headers.parameters(pointer)[0]], ')')
    lines += ['', '']
    for name in headers.order():
        if any(field == 'anonymous' for field, _ in headers.fields(name)):
            lines.append(f'{name}._anonymous_ = ["anonymous"]')
        lines += wrapped(f'{name}._fields_ = [', [f'("{field}", {kind})' for field, kind in headers.fields(name)], ']')
    return '\n'.join(lines) + '\n'


def functions_module(headers):
    lines = HEAD.format(subject='Functions').split('\n')
    lines += ['from typing import Any, Dict, List', '', 'from ._types import *  # noqa: F403', '', '# name: (result, parameters …)',
              'FUNCTIONS: Dict[str, List[Any]] = {']
    for name, function in headers.functions.items():
        types, more = headers.parameters(function)
        lines += wrapped(f'    "{name}": [', [headers.result(function, types), *types], '],' + ('  # and more' if more else ''))
    return '\n'.join([*lines, '}']) + '\n'


def main():
    headers = Headers()
    wrong = 0
    for name, text in (('_types.py', types_module(headers)), ('_functions.py', functions_module(headers))):
        path = os.path.join(HERE, 'tenon', name)
        if '--check' in sys.argv[1:]:
            with open(path, encoding='utf-8') as file:
                if file.read() != text:
                    print(f'{path} is not what the headers say: run bindings/python/declarations.py')
                    wrong = 1
        else:
            with open(path, 'w', encoding='utf-8') as file:
                file.write(text)
    return wrong


if __name__ == '__main__':
    sys.exit(main())
