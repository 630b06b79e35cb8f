"""A client of tests/server/server_repeatable.sh: URL, requests, size of the crowd, file of recorded texts, part of the test."""
import json
import random
import sys
import threading
import urllib.request

url, count, crowd, path, part = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]


def complete(i, cache):
    """Request i: a prompt of its own, which begins as those of some others do."""
    r = random.Random(i)
    ids = [300 + x % 200 for x in range(17 * (i % 5), 17 * (i % 5) + 5 + 13 * (i % 4))]
    ids += [300 + r.randrange(200) for _ in range(1 + r.randrange(90))]
    body = {"prompt": ids, "n_predict": 24, "temperature": r.choice([0, 0.7, 1.2]), "seed": i, "ignore_eos": True,
            "top_k": r.choice([0, 40]), "cache_prompt": cache}
    request = urllib.request.Request(url + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        answer = json.loads(response.read())
    assert answer["tokens_predicted"] == 24, answer
    return answer


def same(i, answer, what):
    text = answer["content"]
    assert text == recorded[i], f"request {i}, {what}:\n{text!r}, not\n{recorded[i]!r}"


def in_crowd(cache):
    """All requests, `crowd` at a time, in another order."""
    order, lock, problems = list(range(count)), threading.Lock(), []
    random.Random(7).shuffle(order)

    def worker():
        while True:
            with lock:
                if not order or problems:
                    return
                i = order.pop()
            try:
                same(i, complete(i, cache), f"in a crowd, cache {cache}")
            except Exception as error:  # reported by the main thread
                problems.append(error)
    threads = [threading.Thread(target=worker) for _ in range(crowd)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


if part == "record":
    with open(path, "w") as out:
        json.dump([complete(i, False)["content"] for i in range(count)], out)
recorded = json.load(open(path))
if part == "cold":
    for i in range(count):
        same(i, complete(i, False), "cold")
if part == "cached":
    reused = 0
    for again in range(2):
        for i in range(count):
            answer = complete(i, True)
            reused += answer["timings"]["cache_n"]
            same(i, answer, f"cached, pass {again}")
    assert reused > 10 * count, reused
    print(f"{reused} prompt tokens were taken from the cache")
if part == "crowd":
    in_crowd(True)
    in_crowd(False)
print(f"{part}: {count} texts agree")
