"""run_page.py PAGE: runs the ```python blocks of a page, in order and with the same variables. A ```text block after one is its output."""
import contextlib
import io
import re
import sys

with open(sys.argv[1], encoding='utf-8') as file:
    blocks = re.findall(r'^```(\w+)\n(.*?)^```$', file.read(), re.M | re.S)
failures, variables, printed, n = 0, {'__name__': 'page'}, '', 0
for kind, text in blocks:
    if kind == 'python':
        out, n = io.StringIO(), n + 1
        try:
            with contextlib.redirect_stdout(out):
                exec(compile(text, f'{sys.argv[1]}, block {n}', 'exec'), variables)
        except Exception as error:  # pylint: disable=broad-except
            print(f'block {n}: {type(error).__name__}: {error}\n{text}')
            failures += 1
        printed = out.getvalue()
    elif kind == 'text' and printed.strip() != text.strip():
        print(f'block {n} prints\n{printed}not\n{text}')
        failures += 1
if failures or not n:
    sys.exit(f'{failures} of {n} blocks failed')
print(f'{n} blocks')
