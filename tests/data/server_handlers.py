"""server_handlers.py URL CONTROL TABLE ROUTES: every allocation of each handler of a running server fails in turn.

The server runs with tests/fault/preload.c, which shares the file CONTROL. After each failure the server must still be there and answer
the same request as it did before. The table must have a row for every handler that the source ROUTES names. Without TENON_LONG=1 at
most 50 allocations of each handler fail, spread over the request."""
import http.client
import mmap
import os
import re
import struct
import sys
import urllib.parse

url, control_path, table_path, routes_path = sys.argv[1:5]
address = urllib.parse.urlparse(url)
most = 10**6 if os.environ.get('TENON_LONG') else 50
failures = []


def fail(text):
    failures.append(text)
    print('FAILED:', text, flush=True)


def ask(method, path, body):
    """The status, 0 when the connection ended without one, -1 when there is no reply in time, or 500 for an error that names the memory. A stream of events is left after its first bytes."""
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=20)
    try:
        connection.request(method, path, body.encode() if body else None, {'Content-Type': 'application/json'} if body else {})
        answer = connection.getresponse()
        text = b'' if 'event-stream' in (answer.getheader('Content-Type') or '') else answer.read()
        return 500 if answer.status == 400 and b'memory' in text else answer.status
    except TimeoutError:
        return -1
    except (http.client.HTTPException, ConnectionError):
        return 0
    finally:
        connection.close()


def alive():
    try:
        return ask('GET', '/health', '') == 200
    except OSError:
        return False


with open(table_path, encoding='utf-8') as file:
    rows = [line.rstrip('\n').split('\t') for line in file if not line.startswith('#')]
with open(routes_path, encoding='utf-8') as file:
    handlers = set(re.findall(r'EVHTTP_REQ_\w+, (\w+), NEEDS_', file.read()))
if len(handlers) < 30:
    fail(f'only {len(handlers)} handlers were found in {routes_path}')
for name in sorted(handlers - {row[0] for row in rows}):
    fail(f'{name} has no row in {table_path}')
for name in sorted({row[0] for row in rows} - handlers):
    fail(f'{name} in {table_path} is no handler')

with open(control_path, 'r+b') as file:
    control = mmap.mmap(file.fileno(), 16)
total = 0
for handler, method, path, body, *others in rows:
    others = {int(status) for status in ' '.join(others).split()}
    usual = ask(method, path, body)
    if usual == 0:
        fail(f'{handler} does not answer')
        continue
    if usual in (404, 405) and 'nothing' not in path + body:
        fail(f'{handler}: {method} {path} is answered with {usual}')
    begin = struct.unpack_from('<q', control, 0)[0]
    ask(method, path, body)
    count = struct.unpack_from('<q', control, 0)[0] - begin
    for n in sorted({1 + i * max(0, count - 1) // (most - 1) for i in range(most)} if count > most else range(1, count + 1)):
        struct.pack_into('<q', control, 8, struct.unpack_from('<q', control, 0)[0] + n)
        failed = ask(method, path, body)
        struct.pack_into('<q', control, 8, 0)
        total += 1
        if failed not in {0, usual, 500, 503} | others:
            fail(f'{handler}, allocation {n} of {count}: status {failed}')
        if not alive():
            fail(f'{handler}, allocation {n} of {count}: the server is gone')
            sys.exit(1)
        again = ask(method, path, body)
        if again == 500 and 202 in others:  # what is made beside the request tells its failure to the one who asks next
            again = ask(method, path, body)
        if again not in {usual} | others:
            fail(f'{handler}, after allocation {n} of {count} had failed: status {again} instead of {usual}')
print(f'{len(rows)} handlers, {total} failed allocations')
sys.exit(1 if failures else 0)
