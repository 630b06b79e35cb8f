"""A client of tests/server/server_memory.sh: URL, part of the test, file for texts."""
import json
import socket
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

url, part, path = sys.argv[1:4]
BEGINNINGS = ["Once upon a time there was a little", "One day, Lily and her mom went to", "Tom had a big red", "The dog saw a cat in",
              "It was a sunny day and Ben", "Anna liked to play with her", "In the forest lived a small", "Sam found a shiny"]


def call(where, body=None, raw=False):
    request = urllib.request.Request(url + where, headers={"Content-Type": "application/json"})
    if body is not None:
        request.data = json.dumps(body).encode()
    try:
        with urllib.request.urlopen(request, timeout=250) as response:
            text = response.read().decode()
            return 200, text if raw else json.loads(text)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read().decode())


def complete(prompt, n, **more):
    status, answer = call("/completion", {"prompt": prompt, "n_predict": n, "temperature": 0, "ignore_eos": True, **more})
    assert status == 200, answer
    return answer


def stream(prompt, n):
    """The tokens of an event stream, which must end without an error."""
    status, text = call("/completion", {"prompt": prompt, "n_predict": n, "temperature": 0, "ignore_eos": True, "stream": True}, raw=True)
    assert status == 200, text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert not any("error" in event for event in events), events
    assert events[-1]["stop"], events[-1]
    return [token for event in events for token in event["tokens"]]


def metric(name):
    _, text = call("/metrics", raw=True)
    return float(next(line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith(f"tenon:{name} ")))


def same(what, got, want):
    assert got == want, f"{what}: {got!r}, not {want!r}"


def at_once(jobs):
    """Runs the functions at the same time and returns their results."""
    results, errors = [None] * len(jobs), []

    def run(i):
        try:
            results[i] = jobs[i]()
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def until(what, condition):
    deadline = time.time() + 20
    while not condition():
        assert time.time() < deadline, what
        time.sleep(0.02)


def idle():
    until("idle", lambda: not any(slot["is_processing"] for slot in call("/slots")[1]))


def requests():
    return [(begin, 40 + 15 * i) for i, begin in enumerate(BEGINNINGS)] * 2


def record():
    """Answers of a server with room for all, one at a time. With --repeatable they do not depend on that."""
    with open(path, "w") as file:
        json.dump([complete(begin, n)["tokens"] for begin, n in requests()], file)


def squeeze():
    """Many answers in a cache that holds two or three of them: all are complete, and those of a server with room."""
    jobs = [lambda begin=begin, n=n, i=i: stream(begin, n) if i % 2 else complete(begin, n)["tokens"]
            for i, (begin, n) in enumerate(requests())]
    got = at_once(jobs)
    with open(path) as file:
        same("texts", got, json.load(file))
    assert metric("requests_moved_aside_total") > 0
    idle()
    same("nothing is left", [slot["n_cells"] for slot in call("/slots")[1]], [0] * 6)


def admission():
    """Answers for which there is room from the beginning on are never moved aside; later ones wait for them, in order."""
    order = []

    def ask(i):
        complete(BEGINNINGS[i % 8], 400)
        order.append(i)
    threads = []
    for i in range(6):
        threads.append(threading.Thread(target=ask, args=(i,)))
        threads[-1].start()
        until("accepted", lambda: metric("requests_total") == i + 1)
    waited = metric("requests_deferred")
    for thread in threads:
        thread.join()
    assert waited >= 2, waited
    same("moved aside", metric("requests_moved_aside_total"), 0)
    assert order.index(0) < 2 and order.index(5) >= 4, order


def readers():
    """Three event streams that nobody reads and a request fill the cache, and the request is preempted: it gets its cells before the event
    streams time out, because they continue while others wait for cells."""
    body = json.dumps({"prompt": "Once", "n_predict": 1000, "ignore_eos": True, "stream": True, "n_probs": 128, "cache_prompt": False}).encode()
    address = urllib.parse.urlparse(url)
    streams = []
    for _ in range(3):
        streams.append(socket.socket())
        streams[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        streams[-1].connect((address.hostname, address.port))
        streams[-1].sendall(b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    cells = []
    until("they pause", lambda: cells.append([slot["n_cells"] for slot in call("/slots")[1]]) or (len(cells) > 20 and cells[-20] == cells[-1]))
    begin = time.time()
    complete("A dog", 260)
    assert time.time() - begin < 20, time.time() - begin
    for stream_ in streams:
        stream_.close()


def shares():
    """--no-kv-unified: a request may use its slot's share."""
    same("n_ctx", call("/props")[1]["default_generation_settings"]["n_ctx"], 128)
    status, answer = call("/completion", {"prompt": [300] * 128, "n_predict": 1})
    same("too long", [status, answer["error"]["type"], answer["error"]["n_ctx"]], [400, "exceed_context_size_error", 128])
    answer = complete(BEGINNINGS[0], 500)
    same("ends with the context", [answer["truncated"], answer["stop_type"]], [True, "limit"])
    assert answer["tokens_predicted"] + answer["tokens_evaluated"] == 128, answer
    status, chat = call("/v1/completions", {"prompt": BEGINNINGS[0], "max_tokens": 500, "ignore_eos": True})
    same("finish_reason", chat["choices"][0]["finish_reason"], "length")
    same("shifts", metric("context_shifts_total"), 0)


def shift():
    """A text goes on for several contexts. What was shifted is not reused; what was there before is."""
    prompt = [300 + i * 7 % 150 for i in range(100)]
    short = complete(prompt, 20)
    answer = complete(prompt, 700)
    same("goes on", [answer["tokens_predicted"], answer["truncated"], answer["stop_type"]], [700, True, "limit"])
    same("as before", answer["tokens"][:10], short["tokens"][:10])
    assert metric("context_shifts_total") >= 4
    text = prompt + answer["tokens"]
    for length in range(4, 256, 8):
        probe = complete(text[-length:] + [301], 1)
        assert probe["timings"]["cache_n"] <= 3, (length, probe["timings"])
        call(f"/slots/{probe['id_slot']}?action=erase", {})
    same("the prompt is still there", complete(prompt, 1)["timings"]["cache_n"] in (0, 99), True)
    same("the answer is the same", complete(prompt, 10)["tokens"], short["tokens"][:10])
    kept = complete(prompt, 500, n_keep=40)
    same("n_keep", [kept["tokens_predicted"], kept["truncated"]], [500, True])
    same("slots", at_once([lambda i=i: complete(prompt[i:], 400)["tokens_predicted"] for i in range(4)]), [400] * 4)


def tree():
    """The reports agree: pages by owner, the tree of prefixes, hits and misses."""
    system = [300 + i * 3 % 150 for i in range(150)]
    talks = [system + [310 + i] * 40 for i in range(3)]
    for talk in talks:
        complete(talk, 8)
    # Each conversation keeps its own history beside the common beginning.
    same("own histories", [complete(talk + [333], 1)["timings"]["cache_n"] for talk in talks], [190, 190, 190])
    idle()
    call("/memory")  # asks for the tree
    until("the tree", lambda: len(call("/memory")[1]["prefixes"]["tree"]) >= 3)
    memory = call("/memory")[1]
    pages, prefixes = memory["pages"], memory["prefixes"]
    kept = [entry for entry in prefixes["tree"] if entry["id"] >= 3]
    same("kept", len(kept), prefixes["kept"])
    same("tiers", [memory["tiers"]["host"]["limit"], memory["tiers"]["disk"]["limit"], memory["waiting"]], [0, 0, 0])
    assert memory["generated_tokens"] > 0 and memory["moved_aside"] == memory["context_shifts"] == 0, memory
    same("one beginning", sum(entry["parent"] < 0 for entry in prefixes["tree"]), 1)
    for i, entry in enumerate(prefixes["tree"]):
        assert entry["parent"] < i and 0 <= entry["shared"] <= entry["tokens"], entry
        assert entry["parent"] < 0 or entry["shared"] >= 150, entry
    same("all pages are free or kept", pages["free"] + pages["prefixes"], pages["total"])
    same("hits and misses", [prefixes["hits"], prefixes["misses"]], [5, 1])
    same("metrics", [metric("prefix_hits_total"), metric("prefix_misses_total"), metric('kv_cache_pages{owner="prefixes"}'),
                     metric('kv_cache_pages{owner="free"}')], [5, 1, pages["prefixes"], pages["free"]])
    thread = threading.Thread(target=complete, args=(talks[0], 800))
    thread.start()
    until("a slot with pages", lambda: any(slot["n_pages"] > 3 for slot in call("/slots")[1]))
    memory = call("/memory")[1]
    owned = sum(slot["pages"] for slot in memory["slots"])
    same("every page has an owner", owned + memory["pages"]["shared"] + memory["pages"]["prefixes"] + memory["pages"]["free"],
         memory["pages"]["total"])
    thread.join()


def answers():
    assert complete(BEGINNINGS[0], 8)["tokens_predicted"] == 8


globals()[part]()
