"""What stopped or delayed a server before: server_attacks.py URL PID [MODEL]. PID is the server's. With MODEL it serves several models, and
only what differs there is tried. A small completion must be answered while each of them is under way, and
requests that a browser could be tricked into do nothing."""
import json
import multiprocessing
import os
import socket
import sys
import time
import urllib.error
import urllib.request

url, server, model = sys.argv[1], int(sys.argv[2]), {"model": sys.argv[3]} if len(sys.argv) > 3 else {}
host, port = url.split("//")[1].split(":")
failures = []


def call(path, body=None, method=None, **headers):
    data = body if isinstance(body, bytes) or body is None else json.dumps({**body, **model}).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json", **headers}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def small():
    begin = time.time()
    status, _ = call("/completion", {"prompt": "Once", "n_predict": 4})
    assert status == 200
    return time.time() - begin


def check(what, good, detail=""):
    if not good:
        failures.append(f"{what}: {detail}")


def median(values):
    return sorted(values)[len(values) // 2]


def calm_times(n=20):
    return [small() for _ in range(n)]


def process_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def foreign_seconds():
    """Processor time of all other programs so far."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, interrupts, soft = (int(n) for n in file.readline().split()[1:8])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK") - sum(process_seconds(pid) for pid in (server, os.getpid(), child.pid))


def judge(what, measure):
    """A small completion takes at most three times as long as in calm, by the medians. Calm is measured right before and after, and what is beyond
    the bar is measured again: another program may slow down one round, a server that is stopped slows down all. Where others take more
    than a tenth of the processors in every round, a wait for a time slice is no fault of the server: 30 ms more, with a note."""
    idle = False
    for _ in range(4):
        began, foreign = time.time(), foreign_seconds()
        calm = calm_times()
        times = measure()
        calm = median(calm + calm_times())
        share = (foreign_seconds() - foreign) / (time.time() - began) / os.cpu_count()
        idle = idle or share < 0.1
        ratio = median(times) / calm
        print(f"{what}: {len(times)} times, median {1000 * median(times):.1f} ms, longest {1000 * max(times):.0f} ms; "
              f"{ratio:.2f} of {1000 * calm:.1f} ms in calm; others have {100 * share:.0f}% of the processors", file=sys.stderr)
        if ratio <= 3:
            return
    if idle or median(times) > 3 * calm + 0.03:
        check(what, False, f"a small completion took {1000 * median(times):.1f} ms, {1000 * calm:.1f} ms in calm")
    else:
        print(f"{what}: the machine is busy, 30 ms were added", file=sys.stderr)


def attacker(orders, answers):
    """A process of its own, so that the interpreter's lock delays no measurement: sends what it is told to."""
    for path, body in iter(orders.get, None):
        answers.send(call(path, body))


def while_busy(what, path, body):
    """Small completions while a large request is under way, repeatedly if it is short; the request's last answer."""
    answer = []
    body = json.dumps({**body, **model}).encode()

    def measure():
        times = []
        while len(times) < 15:
            orders.put((path, body))
            while not answers.poll():
                times.append(small())
            answer[:] = [answers.recv()]
        return times

    judge(what, measure)
    return answer[0]


context = multiprocessing.get_context("fork")
orders, (answers, answers_end) = context.SimpleQueue(), context.Pipe(duplex=False)
child = context.Process(target=attacker, args=(orders, answers_end), daemon=True)
child.start()
calm_times(50)  # the first ones find nothing cached
wide = {"type": "object", "properties": {f"property{i}": {"type": "string"} for i in range(5000)}}
status, text = while_busy("a wide schema", "/v1/completions", {"prompt": "Once", "max_tokens": 4, "n": 64, "json_schema": wide})
check("a wide schema is refused", status == 400 and b"schema" in text, text[:200])
some = {"type": "object", "properties": {f"p{i}": {"type": "boolean"} for i in range(60)}}
status, _ = while_busy("n = 64 with a schema", "/v1/completions", {"prompt": "Once", "max_tokens": 16, "n": 64, "json_schema": some})
check("n = 64 with a schema", status == 200, status)
status, _ = while_busy("a long text to tokenize", "/tokenize", {"content": "word " * 3000000})
check("a long text to tokenize", status == 200, status)
status, _ = while_busy("many messages", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}] * 300000, "max_tokens": 1})
check("many messages", status == 400, status)
status, _ = while_busy("many parts of a text", "/v1/messages", {"messages": [{"role": "user", "content": "x"}], "system": [{"type": "text", "text": "x"}] * 400000, "max_tokens": 1})
check("many parts of a text", status == 400, status)
status, _ = while_busy("many stop words", "/completion", {"prompt": "Once", "n_predict": 1, "stop": ["a"] * 1000000})
check("many stop words", status == 400, status)
tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(8)}}}}
status, _ = while_busy("many tools", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "tools": [tool] * 20000})
check("many tools", status == 400, status)
status, _ = while_busy("a large body for a plan", "/fit", {"shape": [{}] * 3000000})
check("a large body for a plan", status == 413, status)
if model:
    print("\n".join(failures))
    sys.exit(bool(failures))

# Schemas and grammars that are short and costly: each is answered or refused in a second, and delays nobody.
TEXT = {"type": "string"}
REFERENCES = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"type": "object", "properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}}}]} for i in range(60)}
COSTLY = {
    "optional properties": {"json_schema": {"type": "object", "properties": {f"p{i}": {"type": "boolean"} for i in range(1500)}}},
    "alternatives of alternatives": {"json_schema": {"allOf": [{"anyOf": [{"properties": {f"a{i}": TEXT}}, {"properties": {f"b{i}": TEXT}}]} for i in range(14)]}},
    "a fan of references": {"json_schema": {"$defs": {**REFERENCES, "d60": {}}, "$ref": "#/$defs/d0"}},
    "repeated repetitions": {"json_schema": {"type": "string", "pattern": "^((a{1,100}b){1,100}c){1,100}$"}},
    "stars of stars": {"json_schema": {"type": "string", "pattern": "^((((a*)*)*)*)*$"}},
    "many items": {"json_schema": {"type": "array", "items": {"type": "integer"}, "minItems": 9999, "maxItems": 10000}},
    "unique items": {"json_schema": {"type": "array", "items": {"enum": list(range(300))}, "uniqueItems": True}},
    "multiples": {"json_schema": {"type": "integer", "multipleOf": 9999991}},
    "patterns of names": {"json_schema": {"type": "object", "patternProperties": {f"^p{i}_[a-z]+$": TEXT for i in range(200)}, "additionalProperties": False}},
    "optional letters": {"grammar": "root ::= " + " ".join('"a"?' for _ in range(5000))},
    "repetitions": {"grammar": 'root ::= ("a"{1,1000}){1,300}'},
    "one text in many ways": {"grammar": "root ::= x x x x x x x x x x\nx ::= y y y y y y y y y y\ny ::= z z z z z z z z z z\nz ::= [a-z ]*"},
    "two halves, each of two halves": {"grammar": "root ::= a a | [a-z ]\na ::= [a-z ] | b b\nb ::= [a-z ] | a a"},
    "anything, two hundred times": {"grammar": "root ::= " + '( .* "a" )' * 200},
    "anything, with many ends": {"grammar": "root ::= " + " | ".join(f'.* "{chr(97 + i % 26)}{i}"' for i in range(500))},
}
for what, fields in COSTLY.items():
    begin = time.time()
    status, text = call("/completion", {"prompt": "Once", "n_predict": 16, **fields})
    took = time.time() - begin
    check(what, status in (200, 400), f"{status} {text[:200]}")
    check(what + " takes long", took < 2, f"{took:.1f} s")
    while_busy(what, "/completion", {"prompt": "Once", "n_predict": 16, **fields})

# What other web sites could make a browser send.
status, _ = call("/completion", b'{"prompt":"Once","n_predict":1}', **{"Content-Type": "text/plain"})
check("text/plain", status == 415, status)
status, _ = call("/completion", {"prompt": "Once", "n_predict": 1}, Origin="https://evil.example")
check("another web site", status == 403, status)
status, _ = call("/completion", {"prompt": "Once", "n_predict": 1}, Origin=url)
check("the server's own page", status == 200, status)
status, _ = call("/props", None, Host="evil.example")
check("another name of this machine", status == 403, status)

# Waiting requests of one client take no turns from others.
def beside_many():
    orders.put(("/v1/completions", json.dumps({"prompt": "Once", "max_tokens": 200, "n": 64, "ignore_eos": True}).encode()))
    time.sleep(0.1)
    times = [small()]
    while not answers.poll():
        times.append(small())
    answers.recv()
    return times


judge("n = 64", beside_many)

# Clients that stop reading hold no slots.
STREAM = json.dumps({"prompt": "Once", "n_predict": 1900, "ignore_eos": True, "stream": True, "n_probs": 20}).encode()


def beside_stalled():
    stalled = []
    for _ in range(4):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        connection.sendall(b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(STREAM) + STREAM)
        stalled.append(connection)
    time.sleep(3)
    begin = time.time()
    small()
    waited = time.time() - begin
    print(f"four that stop reading: {1000 * waited:.0f} ms until a slot is free", file=sys.stderr)
    check("clients that stop reading hold all slots", waited < 15, f"{waited:.1f} s")
    times = calm_times()
    for connection in stalled:
        connection.close()
    time.sleep(0.5)
    return times


judge("four that stop reading", beside_stalled)
print("\n".join(failures))
sys.exit(bool(failures))
