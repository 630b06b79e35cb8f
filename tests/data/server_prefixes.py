"""A client of tests/server/server_prefixes.sh: URL, part of the test. Prompts are lists of token ids."""
import json
import sys
import threading
import time
import urllib.error
import urllib.request

url, part = sys.argv[1], sys.argv[2]


def call(path, body=None, key="first", raw=False):
    request = urllib.request.Request(url + path, headers={"Authorization": "Bearer " + key, "Content-Type": "application/json"})
    if body is not None:
        request.data = json.dumps(body).encode()
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read().decode()
            return 200, text if raw else json.loads(text)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def prompt(name, n):
    """The text `name`, `n` tokens: the same every time."""
    ids, x = [], sum(ord(c) * 31 ** i for i, c in enumerate(name))
    while len(ids) < n:
        x = (x * 6364136223846793005 + 1442695040888963407) % 2 ** 64
        ids.append(300 + (x >> 33) % 200)
    return ids


def complete(ids, key="first", n=1, **more):
    status, answer = call("/completion", {"prompt": ids, "n_predict": n, "temperature": 0, "ignore_eos": True, **more}, key)
    assert status == 200, answer
    assert answer["timings"]["cache_n"] + answer["timings"]["prompt_n"] == len(ids) == answer["tokens_evaluated"], answer
    assert answer["tokens_predicted"] == n, answer
    return answer


def cached(ids, key="first", **more):
    return complete(ids, key, **more)["timings"]["cache_n"]


def same(what, got, want):
    assert got == want, f"{what}: {got}, not {want}"


def metric(name):
    status, text = call("/metrics", raw=True)
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"tenon:{name} ")))


def reuse():
    a, b = prompt("a", 100), prompt("b", 90)
    same("cold", [cached(a), cached(b)], [0, 0])
    same("alternating", [cached(ids) for ids in (a, b, a, b)], [99, 89, 99, 89])
    system = prompt("system", 80)
    same("one system prompt", [cached(system + prompt(name, 20)) for name in "xyz"], [0, 80, 80])
    reply = complete(a, n=12)["tokens"]
    same("the next turn has the reply", cached(a + reply[:-1] + prompt("turn", 9)), 111)
    same("another key", cached(a, "second"), 0)
    same("another key again", cached(a, "second"), 99)
    same("cache_prompt: false does not take", cached(a, cache_prompt=False), 0)
    c = prompt("c", 70)
    same("cache_prompt: false does not leave", [cached(c, cache_prompt=False), cached(c)], [0, 0])
    # Sums are added in another order after a cached prompt: over a longer answer tokens of nearly equal logits may differ.
    same("the answer is the same", complete(a, n=4)["tokens"], complete(a, n=4, cache_prompt=False)["tokens"])
    status, chat = call("/v1/completions", {"prompt": a, "max_tokens": 1})
    assert "id_slot" not in chat, chat
    same("cached_tokens", chat["usage"]["prompt_tokens_details"]["cached_tokens"], 99)

    same("id_slot", [complete(a, id_slot=i)["id_slot"] for i in (3, 1, 3, 0)], [3, 1, 3, 0])
    status, chat = call("/v1/completions", {"prompt": a, "max_tokens": 1, "id_slot": 2})
    same("id_slot of a completion", chat["id_slot"], 2)
    same("no such slot", call("/completion", {"prompt": a, "id_slot": 4})[0], 400)
    slots = []
    def ask(slot):
        slots.append(complete(prompt(f"{slot} {len(slots)}", 40), n=30, id_slot=slot)["id_slot"])
    threads = [threading.Thread(target=ask, args=(i,)) for i in (2, 2, 2, -1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert slots.count(2) >= 3 and len(slots) == 5, slots

    # A prompt can be taken while its reply is generated.
    d, held = prompt("d", 60), []
    thread = threading.Thread(target=lambda: held.append(complete(d, n=440)))
    thread.start()
    deadline = time.time() + 20
    while time.time() < deadline and not any(s["is_processing"] and s["next_token"][0]["n_decoded"] for s in call("/slots")[1]):
        time.sleep(0.02)
    same("of a job that still generates", cached(d), 59)
    thread.join()

    while any(s["is_processing"] for s in call("/slots")[1]):  # the state is published after the last answer
        time.sleep(0.02)
    usage = call("/memory")[1]["prefixes"]
    same("metrics and memory agree", [metric("prefixes_kept"), metric("prefix_tokens_taken_total"), metric("prefix_cells")],
         [usage["kept"], usage["taken"], usage["cells"]])
    assert usage["kept"] >= 8 and 0 < usage["taken"] < usage["asked"] and usage["limit"] == 256, usage
    assert all(s["n_cells"] == 0 for s in call("/slots")[1])

    keep = prompt("keep", 50)
    slot = complete(keep)["id_slot"]
    same("save", call(f"/slots/{slot}?action=save", {"filename": "kept.slot"})[1]["n_saved"], 50)
    same("of another key", call(f"/slots/{slot}?action=save", {"filename": "other.slot"}, "second")[0] == 200, False)
    same("saving changes nothing", cached(keep, id_slot=slot), 49)
    same("erase", call(f"/slots/{slot}?action=erase", {})[1]["n_erased"], 50)
    same("erased", cached(keep), 0)


def restored():
    keep = prompt("keep", 50)
    same("restore", call("/slots/2?action=restore", {"filename": "kept.slot"})[1]["n_restored"], 50)
    same("after a restart", cached(keep + [300]), 50)
    same("restored is as computed", complete(keep, n=4)["tokens"], complete(keep, n=4, cache_prompt=False)["tokens"])
    same("prefixes are shared", cached(keep + [300], "second"), 50)


def crowd():
    """More than fits: everything is answered, and right."""
    texts = [prompt(f"{i % 9}", 20 + i % 5 * 14) for i in range(40)]
    want = {tuple(ids): complete(ids, n=20, cache_prompt=False)["tokens"] for ids in texts}
    answers = [None] * len(texts)
    def ask(first):
        for i in range(first, len(texts), 8):
            answers[i] = complete(texts[i], n=20)["tokens"]
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    right = sum(answer == want[tuple(ids)] for answer, ids in zip(answers, texts))
    assert right >= len(texts) * 0.75, f"{right} of {len(texts)} texts are those of a request alone"
    assert metric("prefixes_evicted_total") > 0
    same("the whole context", cached(prompt("long", 150)), 0)


def none():
    a = prompt("a", 100)
    same("nothing is kept", [cached(a), cached(a)], [0, 0])


def windows():
    """A model with sliding windows: texts continue where one ended, and where two have parted."""
    a = prompt("a", 200)
    same("the same again", [cached(a), cached(a)], [0, 199])
    reply = complete(a, n=12)["tokens"]
    same("the next turn", cached(a + reply[:-1] + prompt("turn", 9)), 211)
    system = prompt("system", 150)
    same("one system prompt", [cached(system + prompt(name, 60)) for name in "xyzu"], [0, 0, 150, 150])
    same("the answer is the same", complete(system + prompt("v", 60), n=8)["tokens"],
         complete(system + prompt("v", 60), n=8, cache_prompt=False)["tokens"])


def checkpoints():
    """A model with recurrent layers: texts continue where messages ended, every 128 tokens, at the ends of replies, and before the last
    token of a prompt. Token 2 is a control token."""
    a = prompt("a", 200)
    same("the same again", [cached(a), cached(a)], [0, 199])
    reply = complete(a, n=12)["tokens"]
    same("the next turn", cached(a + reply[:-1] + prompt("turn", 9)), 211)
    same("the same turn again", cached(a + reply[:-1] + prompt("turn", 9)), 219)
    system = prompt("system", 90) + [2]
    same("one system prompt", [cached(system + prompt(name, 60)) for name in "xyzu"], [0, 91, 91, 91])
    tools = prompt("tools", 150)
    same("every 128 tokens", [cached(tools + prompt(name, 60)) for name in "xyzu"], [0, 128, 150, 150])
    messages = sum((prompt("message " + name, 20) + [2] for name in "abc"), [])
    same("messages", [cached(messages + prompt("d", 20)), cached(messages[:42] + prompt("e", 20)), cached(messages[:21] + prompt("f", 20))],
         [0, 42, 21])
    same("not kept", [cached(prompt("g", 20) + [2] + prompt("h", 9), cache_prompt=False), cached(prompt("g", 20) + [2] + prompt("i", 9))],
         [0, 0])
    same("the answer is the same", complete(system + prompt("v", 60), n=8)["tokens"],
         complete(system + prompt("v", 60), n=8, cache_prompt=False)["tokens"])


def tiers():
    """A KV cache for one of the texts; host memory and a disk for all of them."""
    a, b, hidden = prompt("tier a", 400), prompt("tier b", 380), prompt("tier c", 300)
    same("cold", [cached(a), cached(b)], [0, 0])
    same("from host memory", [cached(a), cached(b), cached(a)], [399, 379, 399])
    same("another key", cached(a, key="second"), 0)
    same("not kept", [cached(hidden, cache_prompt=False), cached(b), cached(hidden)], [0, 379, 0])
    assert metric("cache_ram_tokens_taken_total") > 0 and metric("cache_ram_bytes") > 0
    assert metric("cache_ram_bytes") <= metric("cache_ram_limit_bytes") <= 64 << 20
    host = call("/memory")[1]["tiers"]["host"]
    assert host["limit"] <= 64 << 20 and host["tokens_taken"] > 0, host


def restarted():
    same("from disk", [cached(prompt("tier a", 400)), cached(prompt("tier b", 380))], [399, 379])
    same("another key", cached(prompt("tier b", 380), key="second"), 0)
    assert metric("cache_disk_tokens_taken_total") > 0
    assert metric("cache_disk_bytes") <= metric("cache_disk_limit_bytes") == 64 << 20


{"reuse": reuse, "restored": restored, "crowd": crowd, "none": none, "windows": windows, "tiers": tiers,
 "restarted": restarted, "checkpoints": checkpoints}[part]()
