#!/bin/bash
# Speculative decoding in the server: the same texts with every proposer, alone and in a crowd, with grammars, stop strings and
# several answers; figures in timings and metrics; requests can turn it off.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../support/checks.sh"
. "$here/../support/server.sh"
models=$here/../../models
cat > "$work/ask.py" << 'PY'
import concurrent.futures, json, sys, urllib.request
url, more = sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
def ask(body):
    request = urllib.request.Request(url + "/v1/completions", json.dumps({**body, **more}).encode(), {"Content-Type": "application/json"})
    answer = json.load(urllib.request.urlopen(request, timeout=120))
    return [c["text"] for c in answer["choices"]], answer.get("timings", {})
story = "One day a little cat saw a red ball. The cat liked the red ball. One day a little cat saw a red"
bodies = []
for i in range(8):
    bodies.append({"prompt": story if i % 2 else "Once upon a time", "max_tokens": 40, "temperature": 0 if i % 4 < 2 else 0.8, "seed": i})
bodies.append({"prompt": story, "max_tokens": 40, "temperature": 0, "stop": ["."]})
bodies.append({"prompt": "Tim said", "max_tokens": 30, "temperature": 0.7, "seed": 5, "n": 3})
bodies.append({"prompt": "A list:", "max_tokens": 40, "temperature": 0.9, "seed": 1, "grammar": 'root ::= ("the red ball, " | "a cat, " | "the sun, ")+'})
bodies.append({"prompt": story, "max_tokens": 30, "temperature": 0, "repeat_penalty": 1.3, "logprobs": 1})
with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
    answers = list(pool.map(ask, bodies))
print(json.dumps([a[0] for a in answers]))
print(sum(a[1].get("draft_n", 0) for a in answers), sum(a[1].get("draft_n_accepted", 0) for a in answers), file=sys.stderr)
PY
serve "$models/tales.gguf" --repeatable -np 4 -c 512 -kvu
python3 "$work/ask.py" "$url" > "$work/plain" 2> "$work/plain.n" || failed "plain requests"
stop_server
[ "$(cat "$work/plain.n")" = "0 0" ] || failed "guesses without --spec-type: $(cat "$work/plain.n")"
for kind in "--spec-type ngram --draft-fixed" "-md $models/tales-draft.gguf --draft-fixed" "-md $models/tales-draft.gguf" \
    "-md $models/tales-draft.gguf --draft-branches 3 --draft-fixed" "-md $models/tales-mtp.gguf --spec-type mtp --draft-branches 2 --draft-fixed" \
    "-md $models/tales-eagle3.gguf --draft-fixed" "-md $models/tales-eagle3.gguf --draft-branches 3"; do
    serve "$models/tales.gguf" --repeatable -np 4 -c 512 -kvu --metrics $kind
    python3 "$work/ask.py" "$url" > "$work/guessed" 2> "$work/guessed.n" || failed "$kind: requests"
    cmp -s "$work/plain" "$work/guessed" || failed "$kind: other texts: $(diff "$work/plain" "$work/guessed" | cut -c1-600)"
    [ -z "${TENON_LONG:-}" ] || echo "$kind: guessed and right: $(cat "$work/guessed.n")"
    curl -s "$url/metrics" > "$work/metrics"
    grep -q '^tenon:spec_decode_num_draft_tokens_total' "$work/metrics" || failed "$kind: no metrics"
    python3 "$work/ask.py" "$url" '{"speculative.n_max": 0}' > "$work/guessed" 2> "$work/off.n" || failed "$kind: requests without"
    cmp -s "$work/plain" "$work/guessed" || failed "$kind: other texts without guesses"
    case $kind in
        *fixed) [ "$(cut -d' ' -f2 "$work/guessed.n")" -gt 20 ] || failed "$kind: guessed and right: $(cat "$work/guessed.n")" ;;
    esac
    [ "$(cat "$work/off.n")" = "0 0" ] || failed "$kind: guesses although a request wants none: $(cat "$work/off.n")"
    stop_server
done
finish
