"""A hub on this machine, for tests of tenon pull: local_hub.py FOLDER PORT_FILE.

Repositories are FOLDER/OWNER/REPO with files in them. It answers like Hugging Face's: /api/models/…/tree/main, /OWNER/REPO/resolve/
main/PATH with X-Linked-Etag and a redirect to a storage at another port, ranges, ETags. The name of a repository may ask for a fault.
Every request is a line of FOLDER/requests: port, method, path, range, authorization."""
import hashlib
import http.server
import json
import os
import sys
import threading
import time

root, port_file = sys.argv[1:3]
counts = {}
lock = threading.Lock()


def count(key):
    with lock:
        counts[key] = counts.get(key, 0) + 1
        return counts[key]


def content(owner, repo, path):
    with open(os.path.join(root, owner, repo, path), "rb") as file:
        return file.read()


def commit_of(owner, repo):
    return hashlib.sha1((owner + repo).encode()).hexdigest()


digests = {}


def digest_of(owner, repo, path):
    """SHA-256 of a file; computed again when the file changes."""
    name = os.path.join(root, owner, repo, path)
    status = os.stat(name)
    key = (name, status.st_size, status.st_mtime_ns)
    if key not in digests:
        digests[key] = hashlib.sha256(content(owner, repo, path)).hexdigest()
    return digests[key], status.st_size


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    storage = None  # the other port

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        if self.path.startswith("http://"):  # as a proxy: the other host's path is looked for here
            self.path = "/" + self.path.split("/", 3)[3]
        words = self.path.split("?")[0].strip("/").split("/")
        with lock, open(os.path.join(root, "requests"), "a") as log:
            log.write(f"{'hub' if self.storage else 'storage'} {self.command} {self.path} {self.headers.get('Range', '-')} "
                      f"{self.headers.get('Authorization', '-')}\n")
        if not self.storage:
            return self.send_file(words[0], words[1], "/".join(words[2:]))
        if words[:2] == ["api", "models"]:
            return self.list_files(words[2], words[3])
        if len(words) > 4 and words[2] == "resolve" and words[3] in ("main", commit_of(words[0], words[1])):
            return self.resolve(words[0], words[1], "/".join(words[4:]))
        return self.answer(404)

    def denied(self, owner, repo):
        if repo == "private" and self.headers.get("Authorization") != "Bearer secret":
            self.answer(401)
        elif repo == "gated":
            self.answer(403)
        elif repo == "busy" and count("busy") <= 2:
            self.answer(429, Retry_After=1)
        elif repo == "overloaded":
            self.answer(429, Retry_After=1)
        elif repo == "broken":
            self.answer(500)
        elif not os.path.isdir(os.path.join(root, owner, repo)):
            self.answer(404)
        else:
            return False
        return True

    def list_files(self, owner, repo):
        if self.denied(owner, repo):
            return None
        base = os.path.join(root, owner, repo)
        files = []
        for folder, _, names in sorted(os.walk(base)):
            for name in sorted(names):
                path = os.path.relpath(os.path.join(folder, name), base)
                digest, size = digest_of(owner, repo, path)
                files.append({"type": "file", "path": path, "size": size, "oid": "0" * 40, "lfs": {"oid": digest, "size": size}})
        if repo == "escape":
            files.append({"type": "file", "path": "../../../evil.gguf", "size": 4})
        if repo == "nonsense":
            return self.answer(200, b"<html>not JSON")
        if repo == "pages" and "cursor" not in self.path:
            first, files = files[:1], files[1:]
            host = self.headers["Host"]
            return self.answer(200, json.dumps(first).encode(), Link=f'<http://{host}{self.path}&cursor=2>; rel="next"')
        if repo == "pages":
            files = files[1:]
        return self.answer(200, json.dumps(files).encode())

    def resolve(self, owner, repo, path):
        if self.denied(owner, repo):
            return None
        try:
            digest, size = digest_of(owner, repo, path)
        except OSError:
            return self.answer(404)
        if repo == "wrong":
            digest = hashlib.sha256(b"other").hexdigest()
        if repo == "longer":
            size += 100
        if repo == "shorter":
            size -= 100
        commit = commit_of(owner, repo)
        where = f"http://localhost:{self.storage}/{owner}/{repo}/{path}"
        return self.answer(302, Location=where, X_Linked_Etag=f'"{digest}"', X_Linked_Size=size, X_Repo_Commit=commit)

    def send_file(self, owner, repo, path):
        data, tag = content(owner, repo, path), "storage"
        if repo == "plain":
            tag = hashlib.sha1(data).hexdigest()
        if repo == "changes":  # other content after the first request for it
            tag = "first" if counts.get(path, 0) == 0 else "second"
            if self.command == "GET" and count(path) > 1:
                data = data[:4] + data[:3:-1]
        wanted = self.headers.get("Range")
        begin = int(wanted.split("=")[1].split("-")[0]) if wanted and repo != "noranges" else 0
        if begin >= len(data) and begin > 0:
            return self.answer(416)
        part = data[begin:]
        self.send_response(206 if begin else 200)
        if repo != "untagged":
            self.send_header("ETag", f'"{tag}"')
        self.send_header("Content-Length", str(len(part)))
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "HEAD":
            return None
        if repo in ("cut", "changes") and tag != "second" or (repo == "dies" and begin == 0):  # a few bytes, then the connection ends
            self.wfile.write(part[:max(1, len(data) // 3)])
            self.close_connection = True
            return None
        if repo == "dies":
            self.close_connection = True
            return None
        for at in range(0, len(part), 65536):
            self.wfile.write(part[at:at + 65536])
            if repo == "slow":
                time.sleep(0.05)
        return None


class Hub(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # clients that leave are part of the tests


storage = Hub(("127.0.0.1", 0), Handler)


class HubHandler(Handler):
    storage = storage.server_address[1]


hub = Hub(("127.0.0.1", 0), HubHandler)
threading.Thread(target=storage.serve_forever, daemon=True).start()
with open(port_file + ".new", "w") as out:
    out.write(f"{hub.server_address[1]} {storage.server_address[1]}")
os.rename(port_file + ".new", port_file)
hub.serve_forever()
