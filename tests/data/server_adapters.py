"""Drives tenon serve with two adapters that are off at first: server_adapters.py URL."""
import json
import sys
import threading
import urllib.error
import urllib.request

url = sys.argv[1]


def call(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url + path, data), timeout=60) as answer:
        return json.load(answer)


def refused(path, body, word):
    try:
        call(path, body)
    except urllib.error.HTTPError as error:
        text = error.read().decode()
        assert error.code == 400 and word in text, (error.code, text)
        return
    raise AssertionError("accepted: %s" % body)


prompt = "Once upon a time there was a little fox who lived in a deep and quiet forest near the sea."


def complete(lora=None, **more):
    body = {"prompt": prompt, "n_predict": 12, "temperature": 0, **more}
    if lora is not None:
        body["lora"] = lora
    return call("/completion", body)


listed = call("/lora-adapters")
assert [a["id"] for a in listed] == [0, 1] and all(a["scale"] == 0 for a in listed), listed
assert listed[0]["path"].endswith("1.gguf"), listed

# Every choice alone, without cached prompts.
choices = [[], [{"id": 0, "scale": 4}], [{"id": 1, "scale": 1}], [{"id": 0, "scale": -4}, {"id": 1, "scale": 2}]]
alone = [complete(c, cache_prompt=False)["content"] for c in choices]
assert len(set(alone)) == len(alone), alone
assert complete(cache_prompt=False)["content"] == alone[0]

# The first with each choice finds nothing, the second finds what the first left.
for choice, text in zip(choices, alone):
    first, again = complete(choice), complete(choice)
    assert first["content"] == again["content"] == text, (first["content"], text)
    cached = first["timings"]["cache_n"], again["timings"]["cache_n"]
    assert cached[0] == 0 and cached[1] > 10, (choice, cached)

# All at the same time, several times.
results = {}


def work(i):
    results[i] = complete(choices[i % len(choices)], cache_prompt=i % 3 != 0)["content"]


threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
for t in threads:
    t.start()
for t in threads:
    t.join()
for i, text in results.items():
    assert text == alone[i % len(choices)], (i, text)

# Scales for all: those that are not listed are 0. A request's own come first.
plain = call("/v1/embeddings", {"input": prompt})["data"][0]["embedding"]
assert call("/lora-adapters", [{"id": 1, "scale": 1}])
assert [a["scale"] for a in call("/lora-adapters")] == [0, 1]
assert complete()["content"] == alone[2]
assert complete(choices[1])["content"] == alone[1]
assert complete([])["content"] == alone[0]
assert call("/v1/embeddings", {"input": prompt})["data"][0]["embedding"] != plain
chat = call("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "lora": choices[1]})
assert chat["choices"], chat

refused("/lora-adapters", {"id": 0}, "list")
refused("/lora-adapters", [{"id": 7, "scale": 1}], "unknown adapter 7")
refused("/lora-adapters", [{"id": 0}], "scale")
refused("/lora-adapters", [{"scale": 1}], "id")
refused("/lora-adapters", [3], "id")
refused("/completion", {"prompt": "x", "lora": {"id": 0, "scale": 1}}, "list")
refused("/completion", {"prompt": "x", "lora": [{"id": -1, "scale": 1}]}, "id")
refused("/completion", {"prompt": "x", "lora": [{"id": 0, "scale": 1e30}]}, "scale")
assert [a["scale"] for a in call("/lora-adapters")] == [0, 1]
print("ok")
