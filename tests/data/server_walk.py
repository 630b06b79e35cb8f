"""server_walk.py URL SOURCES: wrong values at every place of every request body of a running server.

BODIES has for each path a body with every field that the path reads. Each node of it, at any depth, is replaced in turn by values of other types
and sizes, and removed. Whatever the value, the answer is JSON; a refusal has a 4xx status or says what is not supported (501), names no
file of the machine and nothing of the program's insides, and fits on a line. A field of another type than it has is refused, and the bodies
themselves get the status that is listed with them. Every field that the sources read must be in a body.
Without TENON_LONG=1 only some of the values are tried, each at other nodes."""
import concurrent.futures
import glob
import http.client
import json
import os
import re
import sys
import time
import urllib.parse
import urllib.request

url, sources = sys.argv[1:3]
address = urllib.parse.urlparse(url)
failures, messages = [], {}

SAMPLING = {"temperature": 0.5, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.9, "top_n_sigma": 1.5, "xtc_probability": 0.1, "xtc_threshold": 0.1,
            "dynatemp_range": 0.1, "dynatemp_exponent": 1.0, "repeat_penalty": 1.1, "repetition_penalty": 1.1, "repeat_last_n": 8,
            "presence_penalty": 0.1, "frequency_penalty": 0.1, "dry_multiplier": 0.1, "dry_base": 1.5, "dry_allowed_length": 2,
            "dry_penalty_last_n": 8, "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "adaptive_target": -1.0, "min_keep": 1, "samplers": ["top_k", "temperature"],
            "logit_bias": {"5": 1.0, " the": -1}, "seed": 1, "stop": ["zz", "yy"], "ignore_eos": False, "cache_prompt": True, "id_slot": 0,
            "n_keep": 1, "timings_per_token": False, "return_progress": False, "lora": [], "speculative.n_max": 0, "speculative.n_min": 0,
            "speculative.p_min": 0.5, "verbose": False}
TOOL = {"type": "function", "function": {"name": "look", "description": "d", "strict": True,
                                         "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{\"a\":1}"}}
CHAT = {"messages": [{"role": "system", "content": "Be kind"}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                     {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]},
                     {"role": "tool", "tool_call_id": "call_1", "content": "2"}, {"role": "user", "content": "So?"}],
        "tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False, "max_tokens": 2, "n": 1, "stream": False,
        "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2, "chat_template_kwargs": {"a": 1},
        "reasoning_format": "auto", "reasoning_effort": "low", "reasoning_budget": 5, "thinking_budget_tokens": 5, "enable_thinking": True,
        "documents": [{"title": "t", "text": "x"}], "add_generation_prompt": True, "continue_final_message": False, "chat_format": "granite", "model": "any"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "maxItems": 2},
                                           "b": {"anyOf": [{"const": 1}, {"enum": ["x", None]}]}, "c": {"$ref": "#/$defs/d"}, "d": {"type": "string", "pattern": "^a+$"}},
          "required": ["a"], "additionalProperties": False, "$defs": {"d": {"type": ["string", "null"], "maxLength": 3}}}
RESPONSE = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}, {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
                      {"type": "function_call_output", "call_id": "c", "output": "2"}, {"type": "reasoning", "content": []}, {"role": "user", "content": "So?"}],
            "instructions": "Be kind", "tools": [{"type": "function", "name": "look", "description": "d", "parameters": {"type": "object"}}],
            "tool_choice": "auto", "text": {"format": {"type": "text"}}, "previous_response_id": None, "max_output_tokens": 2, "stream": False}
MESSAGES = {"system": [{"type": "text", "text": "Be kind"}], "max_tokens": 2, "stop_sequences": ["zz"], "stream": False,
            "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "tool_use", "id": "c", "name": "look", "input": {"a": 1}}]},
                         {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "2"}]}, {"type": "text", "text": "So?"}]}],
            "tools": [{"name": "look", "description": "d", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "thinking": {"type": "enabled", "budget_tokens": 5}}
OLLAMA = {"messages": [{"role": "user", "content": "Hi", "images": []}, {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [{"function": {"name": "look", "arguments": {"a": 1}}}]},
                       {"role": "tool", "content": "2"}], "stream": False, "think": False, "tools": [TOOL], "format": SCHEMA,
          "options": {"num_predict": 2, "num_keep": 1, "temperature": 0, "top_k": 5, "stop": ["zz"], "seed": 1}}
BODIES = [
    ("/v1/chat/completions", {**CHAT, **SAMPLING}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{"type": "function", "function": {"name": "look"}}]}}}),
    ("/v1/chat/completions/input_tokens", CHAT), ("/apply-template", CHAT),
    ("/v1/completions", {"prompt": ["Once", [5, 6], ["a", 7]], "max_tokens": 2, "n": 1, "logprobs": 1, "echo": True, "stream": False, "stream_options": {"include_usage": False}, **SAMPLING}),
    ("/v1/completions", {"prompt": "Once", "suffix": "end", "max_tokens": 2, "grammar": "root ::= [a-z ]+"}, 501),
    ("/completion", {"prompt": {"prompt_string": "Once"}, "n_predict": 2, "n_probs": 2, "post_sampling_probs": True, "return_tokens": True,
                     "response_fields": ["content", "generation_settings/seed"], "json_schema": SCHEMA, "stream": False}),
    ("/completion", {"prompt": {"prompt_string": "Once", "multimodal_data": []}, "n_predict": 2}),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "prompt": "c", "input_extra": [{"filename": "f", "text": "t"}], "n_predict": 2}, 501),
    ("/v1/messages", MESSAGES), ("/v1/messages/count_tokens", MESSAGES), ("/v1/responses", RESPONSE), ("/v1/responses/input_tokens", RESPONSE),
    ("/v1/embeddings", {"input": ["a", [5, 6]], "encoding_format": "float", "dimensions": 64, "embd_normalize": 2}),
    ("/embedding", {"content": "a", "embd_normalize": 2}),
    ("/v1/rerank", {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1, "return_documents": True}, 501), ("/v1/rerank", {"query": "a", "texts": ["b"], "return_text": True}, 501),
    ("/api/chat", OLLAMA), ("/api/generate", {"prompt": "Hi", "system": "Be kind", "images": [], "stream": False, "options": {"num_predict": 2}, "think": "low"}),
    ("/api/embed", {"input": ["a"]}), ("/api/embeddings", {"prompt": "a"}), ("/api/show", {"model": "x"}),
    ("/predict", {"instances": [{"@requestFormat": "chatCompletions", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}]}),
    ("/tokenize", {"content": "Once", "add_special": True, "parse_special": True, "with_pieces": True}), ("/tokenize", {"prompt": "Once"}),
    ("/detokenize", {"tokens": [5, 6]}), ("/lora-adapters", [{"id": 0, "scale": 1.0}], 400), ("/models", {"model": "a/b"}, 400), ("/models/load", {"model": "x"}, 400),
    ("/models/unload", {"model": "x"}, 400), ("/slots/0?action=save", {"filename": "a.slot"}), ("/slots/0?action=restore", {"filename": "b.slot"}, 400),
    ("/fit", {"ctx": 64, "slots": 1, "gpu_layers": 0, "cache_type_k": "f16", "cache_type_v": "f16", "shape": "tiny", "arch": "llama", "weights": "Q8_0"}),
]
COUNTING = ("/v1/chat/completions/input_tokens", "/apply-template", "/v1/responses/input_tokens", "/v1/messages/count_tokens")
DEEP = "a"
for _ in range(300):
    DEEP = [DEEP]
VALUES = [None, True, False, 0, -1, 7, 1.5, -2.5e300, 1e300, 2**63 - 1, -2**63, 2**31, "", "x", "../../etc/passwd", "/etc/passwd", "a\nb\tc\u001b[31m", "\u00e9\U0001f600",
          "a" * 5000, "%s%n%d", "{{ messages }}", [], [None], [[]], [{}], [1, "a", None, {}], DEEP, {}, {"a": 1}, {"type": "text"}, {"type": 5}, {"": ""}]
HIDDEN = re.compile(r"/tmp|/work|/home|/root|/usr|/var|/proc|\.gguf\b|\.[ch]:\d|\btn_|json_[a-z]+\(|\(null\)|%[sdz]|\bNULL\b|assert|errno")


def nodes(value, path=()):
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from nodes(inner, path + (key,))


def replaced(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(path) == 1 and new is replaced:
        del copy[path[0]]
    else:
        copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def wrong(path, body, what):
    failures.append(f"{path} {json.dumps(body)[:600]}: {what}")


class Client:
    def __init__(self):
        self.connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)

    def ask(self, path, body, sent):
        try:
            for _ in range(500):
                self.connection.request("POST", path, json.dumps(sent).encode(), {"Content-Type": "application/json"})
                answer = self.connection.getresponse()
                status, data = answer.status, answer.read()
                if status != 202:  # /fit plans in the background
                    break
                time.sleep(0.01)
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            return wrong(path, body, f"no answer ({type(error).__name__})")
        lines = "ndjson" in (answer.getheader("Content-Type") or "")
        if data.startswith((b"data: ", b"event: ", b": ")) or lines:
            error = re.search(rb'"error": ?(\{.*?\}|".*?")', data)
            self.judge(path, body, status, error[0] if error else b"")
            return status
        try:
            value = json.loads(data)
        except ValueError:
            return wrong(path, body, f"status {status}, not JSON: {data[:200]!r}")
        if status in (200, 202, 204):
            return status
        error = value.get("error") if isinstance(value, dict) else None
        text = error if isinstance(error, str) else error.get("message") if isinstance(error, dict) else None
        if not isinstance(text, str) or not text:
            return wrong(path, body, f"status {status} without a message: {data[:200]!r}")
        if isinstance(error, dict) and isinstance(error.get("code"), int) and error["code"] != status:
            wrong(path, body, f"status {status}, code {error['code']}")
        self.judge(path, body, status, text.encode())
        return status

    def judge(self, path, body, status, text):
        said = text.decode("utf-8", "replace")
        messages.setdefault((status, re.sub(r"\d+", "N", said)), path)
        if status >= 500 and status not in (501, 503):
            wrong(path, body, f"status {status}: {said}")
        if len(said) > 1200 or re.search(r"[\x00-\x1f\x7f]", said):
            wrong(path, body, f"a message of {len(said)} characters, or with control characters: {said[:300]!r}")
        shown = said.replace("../../etc/passwd", "").replace("/etc/passwd", "").replace("%s%n%d", "")
        if HIDDEN.search(shown):
            wrong(path, body, f"the message shows the server's insides: {said}")


def walk(work):
    client = Client()
    for path, body, place, new in work:
        shown = "removed" if new is replaced else new
        client.ask(path, {"at": "/".join(map(str, place)), "value": shown}, replaced(body, place, new))
    client.connection.close()


fields = set()
for name in glob.glob(sources + "/**/*.c", recursive=True):
    with open(name, encoding="utf-8") as file:
        text = file.read()
    fields |= set(re.findall(r'(?:json_object_get\((?:body|format|options|message|part|item|tool|choice|call|function|file|prompt)|get_field\(\w+|field_\w+\(\w+|\bREAL\(|read_cache_field\(\w+),? ?"([\w.]+)"', text))
known = set(re.findall(r'"([\w.]+)":', json.dumps([row[1] for row in BODIES])))
for name in sorted(fields - known):
    failures.append(f"{name} is read by the server and in no body of the walk")
if len(fields) < 60:
    failures.append(f"only {len(fields)} fields were found in {sources}")

with urllib.request.urlopen(urllib.request.Request(url + "/v1/embeddings", b'{"input":"a"}', {"Content-Type": "application/json"})) as answer:
    size = len(json.load(answer)["data"][0]["embedding"])
for _, body, *_ in BODIES:
    if "dimensions" in body:
        body["dimensions"] = size
work, turn = [], 0
for path, body, *expected in BODIES:
    got = Client().ask(path, {"at": "nothing"}, body)
    if got != (expected or [200])[0]:
        failures.append(f"{path}: the body itself has status {got}: {json.dumps(body)[:300]}")
    for name, value in body.items() if isinstance(body, dict) and not expected and path not in COUNTING else ():
        other = 7 if isinstance(value, (str, list, dict)) else "x"
        if value is not None and name not in ("model", "think") and (got := Client().ask(path, {"at": name, "value": other}, {**body, name: other})) in (200, 202):
            failures.append(f"{path}: {name} may be {json.dumps(other)}, status {got}")
    for place in nodes(body):
        for i, new in enumerate([replaced] + VALUES if place else VALUES):
            if os.environ.get("TENON_LONG") or i == 0 or (i + turn) % 6 == 0:
                work.append((path, body, place, new))
        turn += 1
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    list(pool.map(walk, [work[i::4] for i in range(4)]))
Client().ask("/completion", {"at": "the end"}, {"prompt": "Once", "n_predict": 2})
print(f"{len(work)} requests, {len(messages)} messages")
if os.environ.get("WALK_MESSAGES"):
    for (status, text), path in sorted(messages.items(), key=str):
        print(status, path, text)
print("\n".join(failures[:40]))
sys.exit(bool(failures))
