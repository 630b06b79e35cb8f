#!/bin/bash
# tenon serve end to end: every endpoint, event streams, errors, keys, disconnects and hostile clients.
. "$(dirname "$0")/../support/checks.sh"
. "$(dirname "$0")/../support/server.sh"
model=$(cd "$(dirname "$0")/../.." && pwd)/models/tales.gguf
command -v curl > /dev/null || skip "curl is not installed"

start() { serve "$model" "$@"; } # options…
failed() { # description; shows the last response
    echo "FAILED: $1:"
    head -c 1500 "$work/out"
    echo
    failures=$((failures + 1))
}
get() { # description, status, pattern, curl arguments…
    local what=$1 status=$2 pattern=$3 got
    shift 3
    got=$(curl -s -m 10 -o "$work/out" -w '%{http_code}' "$@")
    [ "$got" = "$status" ] && grep -qE -- "$pattern" "$work/out" || failed "$what (status $got, expected $status)"
}
raw() { # bytes to send; the server answers or closes the connection within 5 seconds
    timeout 5 bash -c 'exec 3<> /dev/tcp/127.0.0.1/$1; printf "$2" >&3; head -c 2000 <&3' - "$port" "$1" > /dev/null 2>&1
}

start --slot-save-path "$work" --metrics --api-key "first,second" -np 3 --timeout 2
key=(-H "Authorization: Bearer second")
get "health is public" 200 '^\{"status":"ok"\}$' "$url/health"
get "the plan's tensors" 200 '"tensors":\[' "${key[@]}" "$url/plan.json"
get "what cannot be planned" 400 'cache_type_k: unknown type q9' "${key[@]}" "$url/fit" -d '{"cache_type_k":"q9"}'
for _ in $(seq 100); do
    [ "$(curl -s -o "$work/out" -w '%{http_code}' "${key[@]}" "$url/fit" -d '{"ctx":64,"slots":2}')" = 202 ] || break
    sleep 0.1
done
grep -q '"fits":true.*"ctx":64,"slots":2,.*"name":"cpu"' "$work/out" || failed "other settings are planned"
fit() { # request, status, pattern: plans what no file has
    for _ in $(seq 100); do
        got=$(curl -s -o "$work/out" -w '%{http_code}' "${key[@]}" "$url/fit" -d "$1")
        [ "$got" = 202 ] || break
        sleep 0.1
    done
    [ "$got" = "$2" ] && grep -qE -- "$3" "$work/out" || failed "the plan of $1 (status $got)"
}
fit '{"shape":"layers=3,width=512","weights":"q8_0","ctx":64}' 200 '"ctx":64,.*"layers":3,'
config='{\"architectures\":[\"Qwen3ForCausalLM\"],\"hidden_size\":512,\"num_hidden_layers\":5,\"num_attention_heads\":8,\"head_dim\":64,\"vocab_size\":2000,\"max_position_embeddings\":256}'
fit "{\"shape\":\"$config\",\"ctx\":64}" 200 '"layers":5,'
fit "{\"shape\":\"${config/Qwen3/Apertus}\"}" 400 'its config.json is not enough'
fit '{"shape":"nonsense"}' 400 'shape nonsense: a name'
fit '{"shape":"layers=2000,width=512"}' 400 'more than 1000 layers'
fit '{"shape":"8b","arch":"none"}' 400 'unknown architecture'
planned=0 # clients that ask in turn, each for another plan, all get theirs
for _ in $(seq 400); do
    for n in 1 2 3; do
        [ ! -e "$work/planned$n" ] || continue
        [ "$(curl -s -o "$work/out" -w '%{http_code}' "${key[@]}" "$url/fit" -d "{\"ctx\":$((n * 64))}")" = 200 ] || continue
        grep -q "\"ctx\":$((n * 64))," "$work/out" && touch "$work/planned$n" && planned=$((planned + 1))
    done
    [ "$planned" -lt 3 ] || break
    sleep 0.05
done
[ "$planned" = 3 ] || failed "clients that ask in turn discard each other's plans"
[ -z "$(find "${TMPDIR:-/tmp}" -maxdepth 1 -name 'tenon-shape-*' -newer "$work/out")" ] || failed "files of shapes stay"
get "the web UI is public" 200 '<!doctype html>' "$url/"
get "its libraries are compressed" 200 'highlight.js .* \(BSD-3-Clause\)' --compressed "$url/vendor/licenses.txt"
tag=$(curl -s -m 5 -I "$url/vendor/licenses.txt" | tr -d '\r' | sed -n 's/^ETag: //p')
get "known files are not sent again" 304 '' -H "If-None-Match: $tag" "$url/vendor/licenses.txt"
get "no key" 401 '"type":"authentication_error"' "$url/v1/models"
get "wrong key" 401 'authentication_error' -H "Authorization: Bearer secon" "$url/v1/models"
get "X-Api-Key" 200 '"id":"tales"' -H "X-Api-Key: first" "$url/v1/models"
get "models" 200 '"n_vocab":4096' "${key[@]}" "$url/v1/models"
curl -s -m 5 -i -X OPTIONS -H "Origin: http://localhost:99" "$url/v1/models" > "$work/out"
grep -q "^Access-Control-Allow-Origin: http://localhost:99" "$work/out" || failed "preflight"
post() { # description, status, pattern, path, body
    get "$1" "$2" "$3" "${key[@]}" -H "Content-Type: application/json" "$url$4" -d "$5"
}

story='"prompt":"Once upon a time","temperature":0'
post "completion" 200 '"text":", there was a little girl named Lily. She".*"finish_reason":"length".*"completion_tokens":10' /v1/completions "{$story,\"max_tokens\":10}"
post "the prefix is reused" 200 '"cached_tokens":4' /v1/completions "{$story,\"max_tokens\":1}"
post "token ids" 200 '"text":", there' /v1/completions '{"prompt":[0,398,397,260,371],"temperature":0,"max_tokens":2}'
post "several prompts and answers" 200 '"index":3' /v1/completions '{"prompt":["Once","The cat"],"n":2,"max_tokens":3,"seed":1}'
post "stop word" 200 '"text":", there was a ","index":0,"logprobs":null,"finish_reason":"stop"' /v1/completions "{$story,\"stop\":[\"little\"],\"max_tokens\":20}"
post "echo with logprobs" 200 '"text":"Once upon a time","index":0,"logprobs":\{"tokens":\["<\|story\|>","Once"," upon"," a"," time"\],"token_logprobs":\[null,-0.22[0-9]*,' /v1/completions "{$story,\"echo\":true,\"logprobs\":1,\"max_tokens\":0}"
# lm-eval's requests are token lists with echo. The log-probabilities must match those computed from tenon logits.
if command -v python3 > /dev/null; then
    post "tokens of a text" 200 '^\{"tokens":\[0,398,' /tokenize '{"content":"Once upon a time, there was a little girl named Lily. She loved to play outside in the park with her big red ball.","add_special":true}'
    long=$(sed 's/.*\[\(.*\)\].*/\1/' "$work/out") short=0,398,397,260,371
    post "lm-eval's request" 200 '"index":1' /v1/completions "{\"model\":\"any\",\"prompt\":[[$short],[$long]],\"temperature\":0,\"max_tokens\":1,\"logprobs\":1,\"seed\":1234,\"echo\":true}"
    cp "$work/out" "$work/echo"
    for list in "$short" "$long"; do
        "$tenon" logits "$model" --tokens "$list" --cache-type f16 --out "$work/logits.${#list}" -t 2 || failed "tenon logits"
    done
    timeout 20 python3 - "$work/echo" "$short" "$work/logits.${#short}" "$long" "$work/logits.${#long}" > "$work/out" 2>&1 << 'PY' || failed "logprobs equal those of tenon logits"
import array, json, math, sys
choices = json.load(open(sys.argv[1]))["choices"]
for choice, ids, name in zip(choices, sys.argv[2::2], sys.argv[3::2]):
    tokens, logits = [int(i) for i in ids.split(",")], array.array("f", open(name, "rb").read())
    n, want, greedy = len(logits) // len(tokens), 0, []
    for i in range(len(tokens) - 1):
        row = logits[i * n:(i + 1) * n]
        top = max(row)
        want += row[tokens[i + 1]] - top - math.log(sum(math.exp(x - top) for x in row))
        greedy.append(row[tokens[i + 1]] == top)
    got = choice["logprobs"]
    assert len(got["tokens"]) == len(got["token_logprobs"]) == len(got["top_logprobs"]) == len(tokens) + 1
    assert abs(sum(got["token_logprobs"][1:-1]) - want) < 2e-3, (sum(got["token_logprobs"][1:-1]), want)
    likeliest = [max(top, key=top.get) == token for top, token in zip(got["top_logprobs"][1:-1], got["tokens"][1:-1])]
    assert likeliest == greedy, (likeliest, greedy)
PY
fi
post "the same seed, the same text" 200 'text' /v1/completions '{"prompt":"The","seed":5,"max_tokens":12}'
one=$(grep -o '"text":"[^"]*"' "$work/out")
post "the same seed again" 200 'text' /v1/completions '{"prompt":"The","seed":5,"max_tokens":12}'
[ "$one" = "$(grep -o '"text":"[^"]*"' "$work/out")" ] || failed "a seed does not repeat its text"
post "stream" 200 '^data: \[DONE\]' /v1/completions "{$story,\"max_tokens\":4,\"stream\":true,\"stream_options\":{\"include_usage\":true}}"
grep -q '"choices":\[\],"usage":{"prompt_tokens":5,"completion_tokens":4' "$work/out" || failed "usage in a stream"
post "native" 200 '"stop_type":"word","stopping_word":"little".*"content":", there was a ".*"completion_probabilities":\[\{"id":13' /completion "{$story,\"n_predict\":20,\"stop\":[\"little\"],\"n_probs\":2}"
post "native stream" 200 '"stop":true.*"stop_type":"limit"' /completion "{$story,\"n_predict\":3,\"stream\":true}"

chat='"messages":[{"role":"user","content":"Tell a story"}],"temperature":0'
post "chat" 200 '"object":"chat.completion".*"role":"assistant","content":".+"\},"finish_reason":"length"' /v1/chat/completions "{$chat,\"max_tokens\":8}"
post "chat stream" 200 '^data: \[DONE\]' /v1/chat/completions "{$chat,\"max_tokens\":3,\"stream\":true}"
head -n 1 "$work/out" | grep -q '"delta":{"role":"assistant","content":null}' || failed "first delta"
grep -q '"delta":{},"finish_reason":"length"' "$work/out" || failed "last delta"
post "content parts" 200 'chat.completion' /v1/chat/completions '{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"max_tokens":1}'
post "logprobs of a chat" 200 '"logprobs":\{"content":\[\{"token":.*"top_logprobs":\[\{' /v1/chat/completions "{$chat,\"max_tokens\":2,\"logprobs\":true,\"top_logprobs\":2}"
schema='{"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"],"additionalProperties":false}'
post "JSON schema" 200 '"content":"\{[\\n ]*\\"a\\"[\\n ]*:[\\n ]*(true|false)?' /v1/chat/completions "{$chat,\"max_tokens\":12,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":$schema}}}"
post "grammar" 200 '"content":"(yes|no)"\},"finish_reason":"stop"' /v1/chat/completions "{$chat,\"grammar\":\"root ::= \\\"yes\\\" | \\\"no\\\"\",\"max_tokens\":9}"
post "an unknown format of answers" 400 'unknown format.*hermes' /v1/chat/completions "{$chat,\"chat_format\":\"nonsense\"}"
post "a cut tool call is text with a note" 200 '"finish_reason":"length".*"note":|"note":.*"finish_reason":"length"' /v1/chat/completions "{$chat,\"max_tokens\":60,\"tool_choice\":\"required\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"minLength\":500}},\"required\":[\"a\"]}}}]}"
post "a forced tool call" 200 '"finish_reason":"(tool_calls|length)"' /v1/chat/completions "{$chat,\"max_tokens\":40,\"tool_choice\":\"required\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]}"

told='"max_tokens":3,"temperature":0,"messages":[{"role":"user","content":[{"type":"text","text":"Tell"}]}]'
post "messages" 200 '"type":"message","role":"assistant".*"content":\[\{"type":"text","text":".+"\}\],"stop_reason":"max_tokens".*"output_tokens":3' /v1/messages "{\"system\":\"Be kind\",$told}"
post "messages stream" 200 '^event: message_stop' /v1/messages "{$told,\"stream\":true}"
for event in message_start content_block_start content_block_delta content_block_stop message_delta; do
    grep -q "^event: $event" "$work/out" || failed "messages stream without $event"
done
post "responses" 200 '"object":"response".*"status":"incomplete".*"type":"output_text","text":".+"' /v1/responses '{"input":"Tell","max_output_tokens":3}'
post "responses stream" 200 '"type":"response.incomplete"' /v1/responses '{"input":[{"role":"user","content":[{"type":"input_text","text":"Tell"}]}],"max_output_tokens":3,"stream":true}'
grep -q '"type":"response.output_text.delta"' "$work/out" || failed "responses stream without text"

post "tokenize" 200 '^\{"tokens":\[398,397\]\}$' /tokenize '{"content":"Once upon"}'
post "detokenize" 200 '"content":" ?Once upon"' /detokenize '{"tokens":[398,397]}'
post "apply-template" 200 'im_start.*hi' /apply-template '{"messages":[{"role":"user","content":"hi"}]}'
get "props" 200 '"total_slots":3' "${key[@]}" "$url/props"
get "slots" 200 '"id":2' "${key[@]}" "$url/slots"
post "settings of a completion" 200 '"generation_settings":\{"n_predict":1,.*"top_k":3,.*"temperature":0.5,.*"samplers":\["top_k","temperature"\],"seed":7' \
    /completion '{"prompt":"Once","n_predict":1,"top_k":3,"temperature":0.5,"samplers":["top_k","temperature"],"seed":7}'
get "metrics" 200 '^tenon:tokens_predicted_total [1-9]' "${key[@]}" "$url/metrics"
get "memory" 200 '"devices":\[\{"name":"cpu".*"runs":\[\[' "${key[@]}" "$url/memory"
get "the picture of memory and speed needs a key" 401 'API key' "$url/frontier.svg"
get "planning for the picture of memory and speed" 202 '"status":"planning"' "${key[@]}" "$url/frontier.svg"
for _ in $(seq 300); do
    got=$(curl -s -m 10 -o "$work/out" -w '%{http_code}' "${key[@]}" "$url/frontier.svg")
    [ "$got" = 202 ] || break
    sleep 0.1
done
# Without measured peaks there is nothing to predict.
case $got in
200) grep -q 'this server</text>' "$work/out" ;;
501) grep -q 'not measured: run tenon devices --measure' "$work/out" ;;
*) false ;;
esac || failed "the picture of memory and speed (status $got)"

for i in 0 1 2; do post "erase slot $i" 200 "\"id_slot\":$i,\"n_erased\"" "/slots/$i?action=erase" '{}'; done
kept='"prompt":[398,319,290,253,263],"temperature":0,"n_predict":1'
post "a text to keep" 200 '"id_slot":1,.*"cache_n":0,' /completion "{$kept,\"id_slot\":1}"
post "save a slot" 200 '"n_saved":5,"filename":"kept.slot"' "/slots/1?action=save" '{"filename":"kept.slot"}'
post "erase the slot" 200 '"n_erased":5' "/slots/1?action=erase" '{}'
post "an erased prefix is computed again" 200 '"id_slot":1,.*"cache_n":0,' /completion "{$kept,\"id_slot\":1}"
post "erase the slot again" 200 '"n_erased":5' "/slots/1?action=erase" '{}'
post "nothing to save" 400 'empty' "/slots/1?action=save" '{"filename":"none.slot"}'
post "restore it elsewhere" 200 '"n_restored":5' "/slots/2?action=restore" '{"filename":"kept.slot"}'
post "a restored prefix is reused" 200 '"cache_n":4,' /completion "{$kept}"
post "a file name outside the folder" 400 'plain name' "/slots/0?action=save" '{"filename":"../x"}'
post "no such slot" 404 'not_found_error' "/slots/9?action=erase" '{}'

post "not JSON" 400 'not valid JSON.*invalid_request_error' /v1/completions '{bad'
post "not UTF-8" 400 'invalid_request_error' /v1/completions $'{"prompt":"\xff\xfe"}'
post "not an object" 400 'must be a JSON object' /v1/completions '[1]'
post "deep nesting" 400 'not valid JSON' /v1/completions "$(printf '[%.0s' $(seq 3000))"
post "wrong type" 400 'temperature must be a number' /v1/completions '{"prompt":"a","temperature":"hot"}'
post "token out of range" 400 'token ids below' /v1/completions '{"prompt":[99999999]}'
post "no messages" 400 'messages' /v1/chat/completions '{}'
post "pictures" 400 'image input is not supported' /v1/chat/completions '{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}'
post "bad grammar" 400 'grammar' /v1/completions '{"prompt":"a","grammar":"root := ("}'
post "too long" 400 '"type":"exceed_context_size_error".*"n_prompt_tokens":' /v1/completions "{\"prompt\":\"$(printf 'word %.0s' $(seq 6000))\"}"
post "embeddings are off" 501 'not_supported_error' /v1/embeddings '{"input":"a"}'
get "unknown path" 404 'not_found_error' "${key[@]}" "$url/nothing"
get "wrong method" 405 'invalid_request_error' "${key[@]}" "$url/v1/completions"

# A busy slot reports its parameters. The context ends a request soon, so there are several.
(for _ in $(seq 40); do
    timeout 1 curl -sN "${key[@]}" "$url/completion" -d '{"prompt":"Once","n_predict":3000,"ignore_eos":true,"stream":true,"top_k":17,"seed":5}'
done > "$work/out") &
requests=$!
busy='"is_processing":true[^{]*\{[^}]*\}\],"params":\{"n_predict":3000,[^}]*"top_k":17,[^}]*"seed":5'
for _ in $(seq 100); do
    curl -s "${key[@]}" "$url/slots" > "$work/slots"
    grep -qE "$busy" "$work/slots" && break
    sleep 0.02
done
grep -qE "$busy" "$work/slots" || failed "no slot reports the parameters of its request: $(head -c 500 "$work/slots")"
kill $requests 2> /dev/null
wait $requests 2> /dev/null

# A client that disconnects frees its slot.
timeout 1 curl -sN "${key[@]}" "$url/completion" -d '{"prompt":"Once","n_predict":3000,"ignore_eos":true,"stream":true}' > "$work/out"
sleep 0.3
get "a closed stream frees its slot" 200 '^\[(\{[^{]*"is_processing":false[^{]*\{[^}]*\}\]\},?)*\]$' "${key[@]}" "$url/slots"

# Hostile clients: the server answers or drops them and continues.
hostile=()
hostile() { # bytes to send; all at once, as some wait for the time limit
    raw "$1" &
    hostile+=($!)
}
hostile 'nonsense\r\n\r\n'
hostile 'GET / HTTP/1.1\r\nX: %09999d' # half a request; dropped at the time limit
hostile "GET / HTTP/1.1\r\nX: $(printf '%070000d' 0)\r\n\r\n"
hostile 'POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n'
hostile 'POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n{}'
hostile 'GET /health HTTP/1.1\r\n\r\nGET /health HTTP/1.1\r\n\r\n'
body='{"prompt":"Once","max_tokens":40}'
hostile "POST /v1/completions HTTP/1.1\r\nX-Api-Key: first\r\nContent-Length: ${#body}\r\n\r\n${body}bytes while the answer is made"
wait "${hostile[@]}"
for _ in $(seq 20); do (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null; done
get "still healthy" 200 '"ok"' "$url/health"
post "still generating" 200 'Lily' /v1/completions "{$story,\"max_tokens\":10}"

# More clients than slots.
for i in $(seq 8); do
    curl -s -m 20 "${key[@]}" "$url/v1/completions" -d "{$story,\"max_tokens\":24}" > "$work/many.$i" &
    clients[i]=$!
done
wait "${clients[@]}"
for i in $(seq 8); do
    cp "$work/many.$i" "$work/out"
    grep -q 'there was a little girl named Lily.*"completion_tokens":24' "$work/out" || failed "client $i of 8"
done

stop_server
code=$?
[ $code = 0 ] || { cp "$work/log" "$work/out"; failed "exit code $code after stopping"; }

# A full queue rejects clients. In a small context, jobs evict each other and still finish.
start -np 2 --queue 1 -c 256 -kvu
key=()
for i in 1 2 3; do
    curl -sN -m 20 "$url/completion" -d '{"prompt":"Once","n_predict":200,"ignore_eos":true,"temperature":0,"stream":true}' > "$work/long.$i" &
    clients[i]=$!
    sleep 0.15
done
code=$(curl -s -m 5 -D "$work/headers" -o "$work/out" -w '%{http_code}' "$url/completion" -d '{"prompt":["a","b","c","d"],"n_predict":1}')
[ "$code" = 503 ] && grep -qi '^retry-after: 1' "$work/headers" || failed "a full queue is status $code"
wait "${clients[1]}" "${clients[2]}" "${clients[3]}"
for i in 1 2 3; do
    tail -n 2 "$work/long.$i" > "$work/out"
    grep -q '"tokens_predicted":200' "$work/out" || failed "long client $i"
    grep -o '"content":"[^"]*"' "$work/long.$i" > "$work/text.$i"
done
cmp -s "$work/text.1" "$work/text.2" || failed "a text changes when its job is evicted"

stop_server

# Embeddings beside text generation: the same numbers as tenon embed, in both formats.
start --embedding --pooling mean --slot-save-path "$work"
"$tenon" embed "$model" -p "Once upon a time" -p "A cat" --pooling mean --json -t 2 > "$work/embed" 2> /dev/null
post "embeddings" 200 '"object":"list".*"object":"embedding","index":1,.*"usage":\{"prompt_tokens":[0-9]+,"total_tokens":[0-9]+\}' /v1/embeddings '{"input":["Once upon a time","A cat"]}'
cp "$work/out" "$work/floats"
post "embeddings in base64" 200 '"embedding":"[A-Za-z0-9+/]+=*"' /v1/embeddings '{"input":["Once upon a time","A cat"],"encoding_format":"base64"}'
if command -v python3 > /dev/null; then
    cp "$work/out" "$work/base64"
    timeout 20 python3 - "$work/embed" "$work/floats" "$work/base64" > "$work/out" 2>&1 << 'PY' || failed "embeddings are those of tenon embed"
import base64, json, struct, sys
want, floats, coded = (json.load(open(name))["data"] for name in sys.argv[1:])
for i in range(2):
    raw = base64.b64decode(coded[i]["embedding"])
    got = struct.unpack("<%df" % (len(raw) // 4), raw)
    assert len(got) == len(floats[i]["embedding"]) == len(want[i]["embedding"]) == 256
    assert abs(sum(x * x for x in got) - 1) < 1e-4
    assert max(abs(a - b) for a, b in zip(got, floats[i]["embedding"])) < 1e-6
    assert max(abs(a - b) for a, b in zip(got, want[i]["embedding"])) < 1e-4
PY
fi
post "embedding of token ids" 200 '"index":0' /v1/embeddings '{"input":[398,397]}'
post "text generation beside embeddings" 200 'Lily' /v1/completions "{$story,\"max_tokens\":10}"
post "no input" 400 'input is missing' /v1/embeddings '{}'
post "a text too long to embed" 400 'exceed_context_size_error' /v1/embeddings "{\"input\":\"$(printf 'word %.0s' $(seq 600))\"}"
post "other dimensions" 400 'have 256' /v1/embeddings '{"input":"a","dimensions":7}'
post "many inputs" 200 '"index":299' /v1/embeddings "{\"input\":[$(printf '"a cat",%.0s' $(seq 299))\"a dog\"]}"
stop_server

# The examples of the documentation.
start --embedding --slot-save-path "$work" --api-key secret
while read -r example; do
    example=${example//localhost:8080/127.0.0.1:$port}
    eval "${example%%  #*} -sf -m 30 -H 'X-Api-Key: secret'" > "$work/out" 2>&1 || failed "$example"
done < <(sed -n 's/^    \(curl .*\)/\1/p' "$(dirname "$0")"/../../docs/server*.md)
stop_server

# Several models: loaded when named, and unloaded for each other when the memory suffices for one.
mkdir "$work/models"
ln -s "$model" "$work/models/first.gguf"
ln -s "$model" "$work/models/second.gguf"
printf 'GGUF' > "$work/models/third.gguf"
serve --models-dir "$work/models" --models-memory 100M -c 512 --metrics
get "several models" 200 '"id":"first".*"unloaded".*"id":"second".*"unloaded".*"id":"third"' "$url/v1/models"
post "the first model" 200 '"model":"first".*Lily' /v1/completions "{$story,\"model\":\"first\",\"max_tokens\":10}"
post "no name: the one used last" 200 '"model":"first"' /v1/completions "{$story,\"max_tokens\":1}"
post "the second model" 200 '"model":"second".*Lily' /v1/completions "{$story,\"model\":\"second\",\"max_tokens\":10}"
get "both are loaded" 200 '"id":"first"[^}]*"loaded".*"id":"second"[^}]*"loaded"' "$url/v1/models"
get "metrics by model" 200 '^tenon:tokens_predicted_total\{model="second"\} 10$' "$url/metrics"
post "an unknown model" 404 'not_found_error' /v1/completions "{$story,\"model\":\"fourth\"}"
post "a broken model" 500 'cannot load third' /v1/completions "{$story,\"model\":\"third\"}"
get "props of a model" 200 '"model_alias":"first"' "$url/props?model=first"
stop_server
serve --models-dir "$work/models" --models-memory 1M -c 512
post "a model larger than the memory for models" 503 'it needs [0-9]+ MiB; 1 MiB are allowed' /v1/completions "{$story,\"model\":\"first\"}"
need=$(sed -n 's/.*it needs \([0-9]*\) MiB.*/\1/p' "$work/out")
stop_server
serve --models-dir "$work/models" --models-memory "$((need * 3 / 2))M" -c 512
for turn in 1 2; do
    for name in first second; do
        post "$name in turn $turn" 200 "\"model\":\"$name\".*Lily" /v1/completions "{$story,\"model\":\"$name\",\"max_tokens\":10}"
    done
done
get "one is unloaded for the other" 200 '"id":"first"[^}]*"unloaded".*"id":"second"[^}]*"loaded"' "$url/v1/models"
curl -sN -m 20 "$url/completion" -d '{"model":"second","prompt":"Once","n_predict":480,"ignore_eos":true,"stream":true}' > "$work/long.1" &
busy=$!
until [ -s "$work/long.1" ] || ! kill -0 $busy 2> /dev/null; do sleep 0.01; done # wait until it generates
post "no memory beside a busy model" 503 'cannot load first: it needs [0-9]+ MiB' /v1/completions "{$story,\"model\":\"first\",\"max_tokens\":1}"
kill "$busy"
finish
