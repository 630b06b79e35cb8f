"""Connections that a server must bound: server_floods.py PORT PID. The server has the key "k", --timeout 2, --max-bodies 64M and
--max-connections 300. Bodies without a key are refused at their headers, all bodies together are bounded and their memory is given
back, requests that arrive too slowly end, and lengths are unambiguous."""
import json
import socket
import sys
import threading
import time

port, pid = int(sys.argv[1]), int(sys.argv[2])
failures = []
HOST = b"Host: localhost\r\nConnection: close\r\n"
KEY = b"X-Api-Key: k\r\nContent-Type: application/json\r\n"
BODY = b'{"content":"a"}'


def check(what, good, detail=""):
    if not good:
        failures.append(f"{what}: {detail}")


def memory():
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("VmRSS")).split()[1]) / 1024


def connect(seconds=20.0):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.settimeout(seconds)
    return connection


def answer(text):
    data = b""
    with connect() as connection:
        try:
            connection.sendall(text)
            while part := connection.recv(65536):
                data += part
        except OSError:
            pass
    return data


def status(headers, body=BODY, method=b"POST"):
    return answer(method + b" /tokenize HTTP/1.1\r\n" + HOST + KEY + headers + b"\r\n" + body)[9:12].decode()


CHUNKED = b"f\r\n" + BODY + b"\r\n0\r\n\r\n"
for what, expected, headers, body in (
        ("one length", "200", b"Content-Length: 15\r\n", BODY), ("two lengths", "400", b"Content-Length: 15\r\nContent-Length: 14\r\n", BODY),
        ("the same length twice", "400", b"Content-Length: 15\r\nContent-Length: 15\r\n", BODY), ("a sign", "400", b"Content-Length: +15\r\n", BODY),
        ("a list of lengths", "400", b"Content-Length: 15, 15\r\n", BODY), ("chunks", "200", b"Transfer-Encoding: chunked\r\n", CHUNKED),
        ("length and chunks", "400", b"Content-Length: 15\r\nTransfer-Encoding: chunked\r\n", CHUNKED),
        ("an unknown coding", "400", b"Transfer-Encoding: xchunked\r\n", CHUNKED), ("two codings", "400", b"Transfer-Encoding: gzip, chunked\r\n", CHUNKED),
        ("a chunk without a length", "400", b"Transfer-Encoding: chunked\r\n", b"x\r\n"), ("a folded header", "400", b"A: b\r\n c\r\nContent-Length: 15\r\n", BODY),
        ("a space before the colon", "400", b"Transfer-Encoding : chunked\r\nContent-Length: 15\r\n", BODY), ("a header without a name", "400", b": b\r\nContent-Length: 15\r\n", BODY),
        ("a NUL in a header", "400", b"Content-Length: 15\0 6\r\n", BODY), ("a carriage return in a header", "400", b"A: b\rContent-Length: 3\r\nContent-Length: 15\r\n", BODY),
        ("a second host", "400", b"Host: localhost\r\nContent-Length: 15\r\n", BODY), ("a length with a long tail", "400", b"Content-Length: 15" + b" " * 3000 + b"6\r\n", BODY),
        ("chunks with a long tail", "400", b"Transfer-Encoding: chunked" + b" " * 3000 + b", gzip\r\n", CHUNKED), ("a compressed body", "415", b"Content-Encoding: gzip\r\nContent-Length: 15\r\n", BODY),
        ("something expected", "417", b"Expect: cake\r\nContent-Length: 15\r\n", BODY), ("a chunk of one byte each", "200", b"Transfer-Encoding: chunked\r\n", b"".join(b"1\r\n%c\r\n" % c for c in BODY) + b"0\r\n\r\n"),
        ("a chunk with an extension", "400", b"Transfer-Encoding: chunked\r\n", b"f;a=b\r\n" + BODY + b"\r\n0\r\n\r\n"), ("a chunk that is longer than it says", "400", b"Transfer-Encoding: chunked\r\n", b"e\r\n" + BODY + b"\r\n0\r\n\r\n"),
        ("a chunk without an end", "400", b"Transfer-Encoding: chunked\r\n", b"f\r\n" + BODY + b"0\r\n\r\n"), ("a chunk of many bytes", "413", b"Transfer-Encoding: chunked\r\n", b"fffffffffff\r\n"),
        ("too long a body", "413", b"Content-Length: 16777217\r\n", b""), ("too many headers", "431", b"A: b\r\n" * 12000, b"")):
    text = answer(b"POST /tokenize HTTP/1.1\r\n" + HOST + KEY + headers + b"\r\n" + body)
    check(what, text[9:12].decode() == expected, f"status {text[9:12]}, not {expected}")
    check(what + " is told as JSON", expected == "200" or isinstance(json.loads(text.split(b"\r\n\r\n", 1)[1])["error"]["message"], str), text)
for what, expected, line in (("an unknown version", "505", b"GET /health HTTP/1.2\r\n"), ("HTTP/2", "505", b"PRI * HTTP/2.0\r\n"), ("an unknown method", "501", b"TRACE /health HTTP/1.1\r\n"),
                             ("no version", "400", b"GET /health\r\n"), ("a handshake of TLS", "400", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\r\n"), ("an empty line", "400", b"\r\n")):
    text = answer(line + HOST + b"\r\n")
    check(what, text[9:12].decode() == expected and b'{"error":' in text, text)
text = answer(b"POST /v1/messages HTTP/1.1\r\n" + HOST + b"Content-Length: 15000000\r\n\r\n")
check("Anthropic's form", b'{"type":"error","error":{"type":"authentication_error"' in text, text)
check("a GET with a body", status(b"Content-Length: 15\r\n", method=b"GET") == "400")
head = answer(b"HEAD /health HTTP/1.1\r\n" + HOST + b"\r\n")
check("HEAD", head.startswith(b"HTTP/1.1 200") and head.endswith(b"\r\n\r\n") and b"Content-Length: 15" in head, head)
check("a small body without a key", answer(b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Content-Length: 15\r\n\r\n" + BODY)[9:12] == b"401")


def flood(headers):
    """60 connections that announce 15 MB each and send all but the last byte of it."""
    everybody = []
    for _ in range(60):
        connection = connect(2)
        everybody.append(connection)
        try:
            connection.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + headers + b"\r\n")
            for _ in range(15):
                connection.sendall(b" " * 1000000)
        except OSError:
            pass
    return everybody


def ends(everybody):
    for connection in everybody:
        connection.close()
    time.sleep(0.5)


before = memory()
flooding = flood(b"Content-Length: 15000001\r\n")
check("keyless bodies take memory", memory() < before + 8, f"{before:.0f} MiB, then {memory():.0f}")
check("the reason is told", b" 401 " in flooding[0].recv(100))
ends(flooding)
flooding = flood(b"X-Api-Key: k\r\nContent-Length: 15000001\r\n")
check("bodies take memory", memory() < before + 64 * 1.25 + 8, f"{before:.0f} MiB, then {memory():.0f}")
ends(flooding)
# The length of a chunk has no end: libevent would keep it all, and search it again with every byte.
before_chunks = memory()
endless = [connect(2) for _ in range(8)]
for connection in endless:
    connection.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    try:
        for _ in range(50):
            connection.sendall(b"0" * 65536)
    except OSError:
        pass
check("lengths of chunks take memory", memory() < before_chunks + 4, f"{before_chunks:.0f} MiB, then {memory():.0f}")
ends(endless)
for _ in range(50):
    if memory() < before + 24:
        break
    time.sleep(0.1)
check("memory is given back", memory() < before + 24, f"{before:.0f} MiB, then {memory():.0f}")

# A byte a second is no sign of life.
slow = {}


def trickle(what, begin):
    connection, started = connect(0.3), time.monotonic()
    try:
        connection.sendall(begin)
        while time.monotonic() - started < 15:
            connection.sendall(b"X")
            try:
                if connection.recv(100):
                    break
            except TimeoutError:
                pass
    except OSError:
        pass
    slow[what] = time.monotonic() - started
    connection.close()


threads = [threading.Thread(target=trickle, args=args) for args in (
    ("a slow header", b"POST /tokenize HTTP/1.1\r\n" + KEY), ("a slow body", b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + KEY + b"Content-Length: 5000\r\n\r\n"))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for what, seconds in slow.items():
    check(what, seconds < 6, f"lived for {seconds:.1f} s")

# Those that never ask for anything make room for those that do.
idle = [connect() for _ in range(400)]
time.sleep(1.5)
begin = time.monotonic()
got = status(b"Content-Length: 15\r\n")
check("idle connections keep others out", got == "200" and time.monotonic() - begin < 5, f"status {got!r} after {time.monotonic() - begin:.1f} s")
ends(idle)
print("\n".join(failures))
sys.exit(bool(failures))
