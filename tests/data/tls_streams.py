"""Event streams over TLS arrive whole: tls_streams.py PORT COUNT. Readers are quick, or slow with a small receive buffer."""
import json
import socket
import ssl
import sys
import threading
import time

CONTEXT = ssl.create_default_context()
CONTEXT.check_hostname, CONTEXT.verify_mode = False, ssl.CERT_NONE
BODY = json.dumps({'prompt': 'Once', 'max_tokens': 4, 'temperature': 0, 'ignore_eos': True, 'stream': True}).encode()


def stream(port, slow):
    """The bytes of one answer."""
    with socket.create_connection(('127.0.0.1', port), timeout=60) as plain:
        if slow:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection = CONTEXT.wrap_socket(plain)
        connection.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n'
                           + f'Content-Length: {len(BODY)}\r\n\r\n'.encode() + BODY)
        answer = b''
        while more := connection.recv(100 if slow else 65536):
            answer += more
            if slow:
                time.sleep(0.002)
        return answer


def main():
    port, count, cut = int(sys.argv[1]), int(sys.argv[2]), []

    whole = []

    def client(number):
        for _ in range(count // 4):
            try:
                answer = stream(port, number == 3)
            except OSError as error:
                cut.append(str(error).encode())
                continue
            is_whole = b'data: [DONE]' in answer and answer.endswith(b'\r\n0\r\n\r\n')
            (whole if is_whole else cut).append(answer)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if cut:
        sys.exit(f'{len(cut)} of {count} streams were cut off, one after {cut[0].count(b"data: ")} events: {cut[0][-200:]!r}')
    if len(whole) != count // 4 * 4:
        sys.exit(f'{len(whole)} of {count} streams have ended')


main()
