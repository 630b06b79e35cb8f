#!/usr/bin/env python3
"""Compares launch lists of described GPUs with golden files, and checks that every launch is within the GPU's limits.

    launches.py BUILD            compares with tests/data/launches/DEVICE.txt
    TENON_UPDATE_LAUNCHES=1 …    writes those files instead

Lists are those of `tenon plan --launches` for a Llama, a mixture of experts and a hybrid model without weights. Compiling makes
no CUDA call, so the CUDA backend built for the CPU serves for all devices. Exit code 77: it was not built.
"""
import difflib
import os
import re
import subprocess
import sys
import tempfile

# Per device: multiprocessors; shared memory of a block and of a multiprocessor; threads and blocks of a multiprocessor;
# whether kernels may start early (capability 9.0). The backend has a table of its own.
LIMITS = {
    't4': (40, 64 << 10, 64 << 10, 1024, 16, False),
    'a100': (108, 163 << 10, 164 << 10, 2048, 32, False),
    'rtx3090': (82, 99 << 10, 100 << 10, 1536, 16, False),
    'rtx4090': (128, 99 << 10, 100 << 10, 1536, 24, False),
    'h200': (132, 227 << 10, 228 << 10, 2048, 32, True),
    'rtx5090': (170, 99 << 10, 100 << 10, 1536, 24, True),
}
# Two layers in the shapes of Llama 3 8B and Qwen3 30B-A3B; three recurrent ones and one with attention in that of Qwen 3.5 9B.
MODELS = {
    'llama': ['--type', 'Q4_K_M', '--arch', 'llama', '--shape',
              'layers=2,width=4096,ffn=14336,vocab=128256,ctx=8192,heads=32,kv=8,head=128'],
    'moe': ['--type', 'q4_0', '--arch', 'qwen3moe', '--shape',
            'layers=2,width=2048,ffn=6144,vocab=151936,ctx=8192,heads=32,kv=4,head=128,experts=128,used=8,expert-ffn=768'],
    'hybrid': ['--type', 'Q4_K_M', '--arch', 'qwen35', '--shape',
               'layers=4,width=4096,heads=16,kv=4,head=256,ffn=12288,vocab=151936,ctx=8192', '--set', 'ssm.state_size=128', '--set',
               'ssm.time_step_rank=32', '--set', 'ssm.group_count=16', '--set', 'rope.dimension_sections=11,11,10,0'],
}
SHAPE = re.compile(r'grid (\d+)(?:x(\d+))?(?:x(\d+))? block (\d+)(?: shared (\d+))?( early)?( cooperative)?: ')

failures = 0


def fail(message):
    global failures
    failures += 1
    print('FAILED:', message)


def tenon(build, *args, expect=0):
    environment = {k: v for k, v in os.environ.items() if not k.startswith('TENON_')}
    environment['TENON_BACKEND_PATH'] = MODULE
    done = subprocess.run([f'{build}/bin/tenon', *args], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != expect:
        fail(f'tenon {" ".join(args)} exited with {done.returncode}: {done.stderr.strip()}')
    return done


def check_limits(device, line):
    sms, shared_block, shared_sm, threads_sm, blocks_sm, early_allowed = LIMITS[device]
    match = SHAPE.search(line)
    if not match:
        if not re.match(r'cublasLtMatmul|copy |  (matmul|attention): ', line):
            fail(f'{device}: not understood: {line}')
        return
    x, y, z, threads, shared = (int(g or d) for g, d in zip(match.groups()[:5], (1, 1, 1, 1, 0)))
    early, cooperative = bool(match.group(6)), bool(match.group(7))
    resident = min(blocks_sm, threads_sm // threads, shared_sm // (shared + 1024))
    if not (1 <= threads <= 1024 and 1 <= x < 2**31 and 1 <= y <= 65535 and 1 <= z <= 65535):
        fail(f'{device}: block or grid is too large: {line}')
    if shared > shared_block:
        fail(f'{device}: too much shared memory: {line}')
    if early and not early_allowed:
        fail(f'{device}: kernels cannot start early: {line}')
    if cooperative and x * y * z > sms * resident:
        fail(f'{device}: a cooperative grid must be resident: {line}')


def lists_of(build, work, device):
    text = ''
    for name in MODELS:
        out = tenon(build, 'plan', f'{work}/{name}.gguf', '--device', f'cuda:{device}', '--ctx', '4096', '--ubatch', '512',
                    '--launches').stdout
        begin = out.find('\nprefill, ')
        if begin < 0:
            fail(f'{device}: no lists of {name}')
            continue
        for part in out[begin:].strip().split('\n\n'):
            heading, _, lines = part.partition('\n')
            for line in lines.splitlines():
                check_limits(device, line)
            text += f'{name} {heading}\n{lines}\n\n'
    return text.rstrip('\n') + '\n'


def compare(device, text, golden, update):
    path = f'{golden}/{device}.txt'
    if update:
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)
        return
    with open(path, encoding='utf-8') as file:
        expected = file.read()
    if text != expected:
        fail(f'{device}: the launches differ from {path}; TENON_UPDATE_LAUNCHES=1 accepts them')
        sys.stdout.writelines(difflib.unified_diff(expected.splitlines(True), text.splitlines(True), 'golden', 'now', n=1))


def check_described_device(build, work):
    """A described device runs nothing, and says so; a wrong specification is explained."""
    tenon(build, 'synth', f'{work}/small.gguf', '--type', 'f16', '--arch', 'llama', '--shape',
          'layers=1,width=64,ffn=128,vocab=512,ctx=64,heads=2,kv=2,head=32')
    ran = tenon(build, 'run', f'{work}/small.gguf', '--device', 'cuda:h200', '-n', '1', '-p', 'a', expect=1)
    if 'without hardware' not in ran.stderr:
        fail(f'running on a described device: {ran.stderr.strip()}')
    wrong = tenon(build, 'plan', f'{work}/small.gguf', '--device', 'cuda:h201', expect=1)
    if "unknown device 'h201'" not in wrong.stderr:
        fail(f'an unknown preset: {wrong.stderr.strip()}')
    part = tenon(build, 'plan', f'{work}/small.gguf', '--device', 'cuda:sm=90,sms=66,shared=100K,name=part', '--launches')
    if 'gemv' not in part.stdout:
        fail('a device described by its figures has no launches')


def check_persistent(build, work):
    """Rows of q6_K that are no multiple of 16 bytes, or longer than 16,384 weights: decode is one persistent launch."""
    for width, ffn in ((2560, 9728), (3072, 8192), (2048, 28672)):
        name = f'{work}/rows-{width}.gguf'
        tenon(build, 'synth', name, '--no-data', '--type', 'Q4_K_M', '--arch', 'llama', '--shape',
              f'layers=4,width={width},ffn={ffn},vocab=32000,ctx=4096,heads=16,kv=8,head=128')
        out = tenon(build, 'plan', name, '--device', 'cuda:h200', '--ctx', '4096', '--launches').stdout
        decode = [line.split(' ')[0] for line in out[out.find('\ndecode, '):].splitlines()[2:] if line[:1].strip()]
        if [kernel.split('<')[0] for kernel in decode] != ['get_rows_kernel', 'persistent_decode_kernel']:
            fail(f'rows of {width} and {ffn} weights: decode is {decode}')


def main(build, golden):
    with tempfile.TemporaryDirectory() as work:
        for name, options in MODELS.items():
            tenon(build, 'synth', f'{work}/{name}.gguf', '--no-data', *options)
        for device in LIMITS:
            compare(device, lists_of(build, work, device), golden, bool(os.environ.get('TENON_UPDATE_LAUNCHES')))
        check_described_device(build, work)
        check_persistent(build, work)
    print(f'{failures} failures' if failures else f'launches of {len(LIMITS)} devices are as expected')
    return failures > 0


BUILD = os.path.abspath(sys.argv[1])
MODULE = next((p for a in (90, 80, 75) if os.path.exists(p := f'{BUILD}/cuda_on_cpu/{a}/libtenon-cuda.so')), None)
if not MODULE or not os.path.exists(f'{BUILD}/bin/tenon'):
    print('skipped: the CUDA backend for the CPU was not built (it needs the CUDA headers and an x86-64 CPU), or the '
          'tenon program was not')
    sys.exit(77)
sys.exit(main(BUILD, os.path.join(os.path.dirname(os.path.abspath(__file__)), '../data/launches')))
