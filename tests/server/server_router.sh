#!/bin/bash
# Several models: loading and unloading on request, a limit, presets, lists that are read again, events; sleep; names, origins, prefix,
# metrics under the names of llama.cpp's server.
. "$(dirname "$0")/../support/checks.sh"
. "$(dirname "$0")/../support/server.sh"
model=$golden/server/stories260K.gguf
[ -r "$model" ] || model=$(realpath "$(dirname "$0")/../../models/tales.gguf")
command -v curl > /dev/null || skip "curl is not installed"
get() { # description, status, pattern, curl arguments…
    local what=$1 status=$2 pattern=$3 got
    shift 3
    got=$(curl -s -m 10 -o "$work/out" -w '%{http_code}' "$@")
    [ "$got" = "$status" ] && grep -qE -- "$pattern" "$work/out" || failed "$what (status $got): $(head -c 600 "$work/out")"
}
post() { get "$1" "$2" "$3" "$url$4" -d "$5"; } # description, status, pattern, path, body
state() { curl -s -m 10 "$url/models" | grep -oE "\"id\":\"$1\"[^}]*\"value\":\"[a-z]+\"" | sed 's/.*"value":"\(.*\)"/\1/'; } # model
await() { # model, state
    for _ in $(seq 100); do [ "$(state "$1")" = "$2" ] && return; sleep 0.05; done
    failed "$1 is $(state "$1"), not $2"
}

mkdir "$work/models" && for name in a b c; do cp "$model" "$work/models/$name.gguf"; done
printf '[*]\ndedup-cache-models = 1\n; a note\n[one]\nmodel = %s\n[two]\nhf-repo = who/what\n' "$work/models/a.gguf" > "$work/presets.ini"
serve --models-dir "$work/models" --models-preset "$work/presets.ini" --models-max 2 -c 256 -np 1
get "nothing is loaded" 200 '"id":"a".*"value":"unloaded".*"id":"one"' "$url/models"
get "a router" 200 '"role":"router","max_instances":2,"models_autoload":true' "$url/props"
(curl -sN -m 20 "$url/models/sse" > "$work/events" &)
sleep 0.2
post "load" 200 '"success":true' /models/load '{"model":"a"}'
await a loaded
post "load another" 200 '"success":true' /models/load '{"model":"b"}'
await b loaded
post "use the first" 200 'tokens' /tokenize '{"model":"a","content":"x"}'
post "a third one" 200 'tokens' /tokenize '{"model":"c","content":"x"}'
[ "$(state a) $(state b) $(state c)" = "loaded unloaded loaded" ] || failed "the least recently used makes room: a $(state a), b $(state b), c $(state c)"
post "unload" 200 '"success":true' /models/unload '{"model":"c"}'
await c unloaded
get "one model" 200 '^\{"id":"a","object":"model".*"n_ctx_train":[0-9]+' "$url/v1/models/a"
get "no such model" 404 '"code":"model_not_found"' "$url/v1/models/zzz"
post "no such model to load" 404 'no model' /models/load '{"model":"zzz"}'
post "a preset that was not downloaded" 500 'cannot load' /tokenize '{"model":"two","content":"x"}'
cp "$model" "$work/models/d.gguf" && rm "$work/models/b.gguf" && printf '[three]\nmodel = %s\n' "$work/models/a.gguf" > "$work/presets.ini"
get "the list is read again" 200 '"id":"d".*"id":"three"' "$url/models?reload=1"
! grep -qE '"id":"(b|one)"' "$work/out" || failed "models that are gone are still listed"
for event in '"model":"a","data":{"status":"loading"}' '"model":"a","data":{"status":"loaded"}' '"model":"b","data":{"status":"unloaded"}'; do
    grep -qF "$event" "$work/events" || failed "no event $event: $(cat "$work/events")"
done
stop_server
serve --models-dir "$work/models" --no-models-autoload -c 256
post "models are not loaded by themselves" 400 'models/load' /tokenize '{"model":"a","content":"x"}'
stop_server

mkdir -p "$work/cache/models--who--what/snapshots/1" && cp "$model" "$work/cache/models--who--what/snapshots/1/what-F32.gguf"
export HF_HUB_CACHE=$work/cache
serve -c 256 -np 1
get "without a model, downloads are served" 200 '"id":"who/what:F32".*"value":"unloaded"' "$url/models"
get "without a model, it is a router" 200 '"role":"router"' "$url/props"
post "a download is loaded" 200 'tokens' /tokenize '{"model":"who/what:F32","content":"x"}'
stop_server
printf '[two]\nhf-repo = who/what\n' > "$work/presets.ini"
serve --models-preset "$work/presets.ini" -c 256 -np 1
get "downloads beside presets" 200 '"id":"who/what:F32".*"id":"two"' "$url/models"
stop_server
serve --models-preset "$work/presets.ini" --no-models-cache -c 256 -np 1
get "presets only" 200 '"id":"two"' "$url/models"
! grep -q '"id":"who/what' "$work/out" || failed "downloads are listed with --no-models-cache"
stop_server
export HF_HUB_CACHE=$work/nothing
serve -c 256 -np 1
get "without downloads, the default model is served" 200 '"id":"tales"' "$url/models"
stop_server

serve "$model" -c 256 --alias "two,one" --tags "x,y" --sleep-idle-seconds 0.3s --metrics --api-prefix /llm --cors-origins "localhost,https://a.example" 2> /dev/null
url=http://127.0.0.1:$port/llm
for _ in $(seq 50); do curl -sf -m 2 "$url/health" > /dev/null && break; sleep 0.1; done
get "without the prefix" 404 'unknown path' "http://127.0.0.1:$port/v1/models"
get "names and tags" 200 '"id":"one".*"aliases":\["two","one"\],"tags":\["x","y"\]' "$url/v1/models"
post "a completion" 200 '"content"' /completion '{"prompt":"Once","n_predict":2}'
get "metrics under known names" 200 '^llamacpp:tokens_predicted_total 2$' "$url/metrics"
for _ in $(seq 50); do curl -s "$url/props" | grep -q '"is_sleeping":true' && break; sleep 0.1; done
get "asleep" 200 '"is_sleeping":true' "$url/props"
get "healthy in its sleep" 200 'ok' "$url/health"
get "metrics of a sleeping model" 200 '^llamacpp:tokens_predicted_total 2$' "$url/metrics"
post "awake" 200 '"content"' /completion '{"prompt":"Once","n_predict":2}'
get "counters go on" 200 '^llamacpp:tokens_predicted_total 4$' "$url/metrics"
origin() { curl -s -m 5 -i -X OPTIONS -H "Origin: $1" "$url/v1/models" | grep -qiF "Access-Control-Allow-Origin: $1"; } # origin
for allowed in http://localhost:3000 'http://[::1]' https://a.example; do origin "$allowed" || failed "$allowed is not allowed"; done
for other in http://localhost.evil.example https://b.example http://notlocalhost null; do ! origin "$other" || failed "$other is allowed"; done
small='{"prompt":"Once","n_predict":1}'
get "text/plain does nothing" 415 'application/json' "$url/completion" -H "Content-Type: text/plain" -d "$small"
get "another web site" 403 'cors-origins' "$url/completion" -H "Origin: https://evil.example" -d "$small"
get "another name of this machine" 403 'localhost' "$url/props" -H "Host: evil.example"
[ "$(curl -s -m 5 -I "$url/v1/models" | tr -d '\r' | grep -ciE '^content-length: [1-9]')" = 1 ] || failed "HEAD has the length of the body"
raw=$(timeout 2 bash -c 'exec 3<> /dev/tcp/127.0.0.1/$0; printf "HEAD /llm/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" >&3; cat <&3' "$port")
[ -z "$(printf '%s' "$raw" | sed '1,/^\r*$/d')" ] || failed "HEAD has a body: $raw"
finish
