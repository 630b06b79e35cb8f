#!/usr/bin/env python3
"""Translates a CUDA source file to C++ for tests/cuda_on_cpu: translate.py NAME.cu OUT.cpp

What a host compiler does not understand becomes calls of functions in cuda_on_cpu.h and ptx.h:

  k<T><<<grid, block, shared, stream>>>(x)   emul::kernel(k<T>, grid, block, shared, stream)(x)
  cudaLaunchKernelEx(…)                      emul::launch_ex(…)
  extern __shared__ char a[];                char *a = (char *)emul::dynamic_shared(alignment);
  __shared__ float a[2], b;                  float (&a)[2] = emul::shared<float[2], 4>(…); …
  asm("op.f32 %0, [%1];" : … : …);           ptx::op_f32(first operand, second operand);
  __global__ void k(…) {                     … { emul::begin(name, launch bounds);
  threadIdx, blockIdx, blockDim, gridDim     emul::here->thread, …
  __CUDA_ARCH__                              EMULATED_ARCH

Everything else is unchanged. An instruction that ptx.h does not have is a compile error at its line.
"""
import re
import sys


class Failure(Exception):
    pass


def blank(text):
    """The text with comments and literals replaced by spaces, so that their brackets do not count."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    return pattern.sub(lambda m: re.sub(r'[^\n]', ' ', m.group()), text)


def closing(text, at, pair='()'):
    """The index of the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        if text[i] == pair[0]:
            depth += 1
        elif text[i] == pair[1]:
            depth -= 1
            if depth == 0:
                return i
    raise Failure('no closing ' + pair[1])


def split(text, separator):
    """The parts between separators outside of brackets."""
    plain, parts, depth, begin = blank(text), [], 0, 0
    for i, c in enumerate(plain):
        if c in '([{':
            depth += 1
        elif c in ')]}':
            depth -= 1
        elif c == separator and depth == 0:
            if separator == ':' and ':' in (plain[i - 1:i], plain[i + 1:i + 2]):  # a scope operator
                continue
            parts.append(text[begin:i])
            begin = i + 1
    return parts + [text[begin:]]


def replace(text, begin, end, new):
    """Replaces a range and keeps line numbers unchanged."""
    return text[:begin] + new + '\n' * (text.count('\n', begin, end) - new.count('\n')) + text[end:]


# ---- Inline PTX

CASTS = {'r': '(uint32_t)', 'l': '(uint64_t)', 'h': '(uint16_t)', 'f': '(float)', 'd': '(double)', 'n': ''}


def operands_of(part, is_output):
    operands = []
    for piece in split(part, ','):
        match = re.match(r'\s*"([=+]?)(\w)"\s*\((.*)\)\s*$', piece, re.S)
        if not match:
            raise Failure('operand not understood: ' + piece)
        expression = '(' + match.group(3) + ')'
        operands.append(expression if is_output else CASTS[match.group(2)] + expression)
    return operands


def colons(body):
    """Splits an asm statement into template, outputs, inputs and clobbers: `::` outside of names is two separators."""
    plain, parts, depth, begin, i = blank(body), [], 0, 0, 0
    while i < len(plain):
        if plain[i] in '([{':
            depth += 1
        elif plain[i] in ')]}':
            depth -= 1
        elif plain[i] == ':' and depth == 0:
            parts.append(body[begin:i])
            begin = i + 1
        i += 1
    return parts + [body[begin:]]


def translate_asm(body):
    parts = colons(body)
    strings = re.findall(r'"((?:\\.|[^"\\])*)"', parts[0])
    code = ''.join(strings).replace('\\n', '\n').replace('\\t', ' ')
    operands = []
    for i, part in enumerate(parts[1:3]):
        if part.strip():
            operands += operands_of(part, i == 0)
    out = []
    code = code.strip()
    if code.startswith('{') and code.endswith('}'):
        code = code[1:-1]
    for instruction in code.split(';'):
        instruction = instruction.strip()
        if not instruction:
            continue
        opcode, _, rest = instruction.partition(' ')
        if opcode == '.reg':
            kind, _, names = rest.strip().partition(' ')
            types = {'.pred': 'bool', '.b32': 'uint32_t', '.u32': 'uint32_t', '.b64': 'uint64_t', '.u64': 'uint64_t',
                     '.f32': 'float', '.b16': 'uint16_t'}
            out.append(f'{types[kind]} {names};')
            continue
        arguments = []
        for argument in re.sub(r'[{}\[\]]', ' ', rest).split(','):
            argument = argument.strip()
            if argument in ('', '_'):
                continue
            match = re.match(r'%(\d+)$', argument)
            arguments.append(operands[int(match.group(1))] if match else argument)
        name = re.sub(r'\W+', '_', opcode)
        out.append(f'ptx::{name}({", ".join(arguments)});')
    return '{ ' + ' '.join(out) + ' }'


def translate_all_asm(text):
    at = 0
    while True:
        match = re.compile(r'\basm\s*(?:volatile\s*)?\(').search(blank(text), at)
        if not match:
            return text
        end = closing(blank(text), match.end() - 1)
        semicolon = text.index(';', end)
        new = translate_asm(text[match.end():end])
        text = replace(text, match.start(), semicolon + 1, new)
        at = match.start() + len(new)


# ---- Shared memory

def translate_shared(text):
    pattern = re.compile(r'(extern\s+)?\b__shared__\s+([^;]*);')
    at = 0
    while True:
        match = pattern.search(blank(text), at)
        if not match:
            return text
        declaration = text[match.start(2):match.end(2)]
        alignment = re.search(r'__align__\((\d+)\)\s*', declaration)
        bytes_aligned = alignment.group(1) if alignment else '1'
        if alignment:
            declaration = declaration.replace(alignment.group(), '')
        kind, _, names = declaration.strip().partition(' ')
        while kind.count('<') > kind.count('>') or kind in ('unsigned', 'const', 'volatile', 'struct'):
            more, _, names = names.strip().partition(' ')
            kind += ' ' + more
        new = ''
        for name in split(names, ','):
            name, bracket, dimensions = name.strip().partition('[')
            if match.group(1):
                new += f'{kind} *{name} = ({kind} *)emul::dynamic_shared(alignof({kind}) > {bytes_aligned} ? ' \
                       f'alignof({kind}) : {bytes_aligned});'
            else:
                array = bracket + dimensions
                new += f'{kind} (&{name}){array} = emul::shared<{kind}{array}, {bytes_aligned}>([] {{}}); '
        text = replace(text, match.start(), match.end(), new.rstrip())
        at = match.start()


# ---- Launches and kernels

def translate_launches(text):
    at = 0
    templates = re.findall(r'template\s*<[^>]*>\s*__global__ static void\s+(\w+)\(', text)
    while True:
        plain = blank(text)
        at = plain.find('<<<', at)
        if at < 0:
            return text.replace('cudaLaunchKernelEx(', 'emul::launch_ex(')
        end = plain.index('>>>', at)
        begin = at
        if plain[begin - 1] == '>':  # template arguments
            depth = 0
            while True:
                begin -= 1
                depth += {'>': 1, '<': -1}.get(plain[begin], 0)
                if depth == 0:
                    break
        while re.match(r'[\w:]', plain[begin - 1]):
            begin -= 1
        kernel = text[begin:at]
        if kernel in templates:  # its template arguments are deduced
            kernel = f'[=](auto... all) {{ {kernel}(all...); }}'
        new = f'emul::kernel({kernel}, {text[at + 3:end]})'
        text = text[:begin] + new + text[end + 3:]
        at = begin


def translate_kernels(text):
    at = 0
    while True:
        match = re.compile(r'\b__global__\b').search(blank(text), at)
        if not match:
            return text
        bounds = '1024'
        plain = blank(text)
        at = match.end()
        bounds_at = re.compile(r'__launch_bounds__\s*\(').search(plain, at)
        opening = plain.index('(', at)
        if bounds_at and bounds_at.end() - 1 == opening:
            end = closing(plain, opening)
            bounds = split(text[opening + 1:end], ',')[0]
            opening = plain.index('(', end)
        after = closing(plain, opening) + 1
        if plain[after:].lstrip().startswith('{'):
            brace = plain.index('{', after)
            text = text[:brace + 1] + f' emul::begin(__PRETTY_FUNCTION__, {bounds});' + text[brace + 1:]


BUILTIN_VARIABLES = {'threadIdx': 'thread', 'blockIdx': 'block', 'blockDim': 'threads', 'gridDim': 'blocks'}


def translate_builtin_variables(text):
    """Replaces threadIdx and so on, except where they are members of another object."""
    return re.sub(r'(?<![.\w>])(' + '|'.join(BUILTIN_VARIABLES) + r')\b', lambda m: 'emul::here->' + BUILTIN_VARIABLES[m.group()], text)


def main(source, target):
    with open(source, encoding='utf-8') as file:
        text = file.read()
    try:
        text = translate_all_asm(text)
        text = translate_shared(text)
        text = translate_launches(text)
        text = translate_kernels(text)
    except Failure as failure:
        sys.exit(f'{source}: {failure}')
    text = translate_builtin_variables(text)
    text = text.replace('__CUDA_ARCH__', 'EMULATED_ARCH').replace('__noinline__', '__attribute__((noinline))')
    with open(target, 'w', encoding='utf-8') as file:
        file.write(f'#line 1 "{source}"\n{text}')


main(*sys.argv[1:])
