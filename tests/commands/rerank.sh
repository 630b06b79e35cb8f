#!/bin/bash
# Ranking: cross-encoders and language models that answer "yes" or "no", converted from folders and compared with the
# definition of their classes; tenon embed --rerank, and the server's /v1/rerank.
. "$(dirname "$0")/../support/checks.sh"
. "$(dirname "$0")/../support/server.sh"
here=$(cd "$(dirname "$0")/.." && pwd)
[ -x "$tenon" ] || skip "the tenon program is not built"
command -v node > /dev/null || skip "no node"
command -v curl > /dev/null || skip "curl is not installed"
node "$here/peer/rerankers.mjs" "$work" > "$work/expected" || failed "the models could not be made"
mkdir "$work/plain" && cp "$work"/bert/*.json "$work"/bert/model.safetensors "$work/plain/" && sed -i s/BertForSequenceClassification/BertModel/ "$work/plain/config.json"
documents=(-p "the world" -p "a cat" -p "hello hello the cat world" -p "zzz")
f32=(-ctk f32 -ctv f32)

while read -r name expected; do
    "$tenon" convert "$work/$name" "$work/$name.gguf" --type f32 > "$work/out" 2>&1 || { failed "$name: $(cat "$work/out")"; continue; }
    grep -q warning "$work/out" && failed "$name: $(cat "$work/out")"
    "$tenon" embed "$work/$name.gguf" --rerank "hello world" "${documents[@]}" "${f32[@]}" > "$work/ranked" 2> "$work/out" ||
        { failed "$name: $(cat "$work/out")"; continue; }
    sort -c -k1,1gr "$work/ranked" || failed "$name: the most relevant is not first"
    got=$(sort -k2n "$work/ranked" | cut -d' ' -f1 | paste -sd' ')
    paste <(tr ' ' '\n' <<< "$expected") <(tr ' ' '\n' <<< "$got") |
        awk '{ d = $1 - $2; if (d < 0) d = -d; if (NF != 2 || d > 2e-5) bad = 1 } END { exit bad || NR != 4 }' ||
        failed "$name: expected $expected, got $got"
done < "$work/expected"

# An ordinary model cannot rank; a model that ranks is told by its file.
"$tenon" convert "$work/plain" "$work/plain.gguf" --type f32 > "$work/out" 2>&1 || failed "a plain model: $(cat "$work/out")"
check "no classifier" 1 "no classifier" "$tenon" embed "$work/plain.gguf" --rerank "hello" -p "a cat"
check "scores as JSON" 0 '^\{"object":"list","results":\[\{"relevance_score":[-0-9.e]+,"index":[0-3]\},' "$tenon" embed "$work/bert.gguf" --rerank "hello world" "${documents[@]}" --json
same "pairs: [CLS] query [SEP]" "2 6 7 3" "$("$tenon" tokenize "$work/bert.gguf" --add-special "hello world")"
same "one end token" "0 5 6 2" "$("$tenon" tokenize "$work/xlmr.gguf" --add-special "hello world")"

# ---- sentence-transformers: pooling, matrices after it, prompts ----
"$tenon" convert "$work/embedder" "$work/embedder.gguf" --type f32 > "$work/out" 2>&1 || failed "embedder: $(cat "$work/out")"
grep -q warning "$work/out" && failed "embedder: $(cat "$work/out")"
"$tenon" embed "$work/embedder.gguf" --prompt-name query -p "hello world" --embd-normalize -1 "${f32[@]}" 2> /dev/null > "$work/got"
paste <(tr ' ' '\n' < "$work/vector") <(tr ' ' '\n' < "$work/got") |
    awk '{ d = $1 - $2; if (d < 0) d = -d; if (NF != 2 || d > 1e-4) bad = 1 } END { exit bad || NR != 32 }' ||
    failed "the embedding is not that of the modules: $(cut -c1-60 "$work/vector") / $(cut -c1-60 "$work/got")"
check "an unknown prompt" 1 "has no prompt \"passage\"; it has query" "$tenon" embed "$work/embedder.gguf" --prompt-name passage -p "a cat"
sed -i 's/Identity/Tanh/' "$work/embedder/2_Dense/config.json"
check "a matrix with an activation" 1 "without bias and activation" "$tenon" convert "$work/embedder" "$work/no.gguf"
sed -i 's/cls_token": *true/max_tokens":true/; s/pooling_mode_cls_token":true/pooling_mode_max_tokens":true/' "$work/embedder/1_Pooling/config.json"
check "an unknown pooling" 1 "unknown pooling" "$tenon" convert "$work/embedder" "$work/no.gguf"

# ---- The server ----
post() { # description, status, pattern, path, body
    got=$(curl -s -m 20 -o "$work/out" -w '%{http_code}' "$url$4" -d "$5")
    [ "$got" = "$2" ] && grep -qE -- "$3" "$work/out" || failed "$1 (status $got): $(head -c 600 "$work/out")"
}
body='"query":"hello world","documents":["the world","a cat","hello hello the cat world",{"text":"zzz"}]'
for name in bert Qwen3-Reranker-tiny; do
    serve "$work/$name.gguf" "${f32[@]}"
    top=$(sed -n "s/^$name //p" "$work/expected" | tr ' ' '\n' | awk 'NR == 1 || $1 > most { most = $1; best = NR - 1 } END { print best }')
    for route in /v1/rerank /rerank /v1/reranking /reranking; do
        post "$name: $route" 200 '"object":"list","usage":\{"prompt_tokens":[0-9]+,"total_tokens":[0-9]+\},"meta":\{\},"results":\[\{"index":'$top',"relevance_score":' $route "{$body}"
    done
    expected=$(sed -n "s/^$name \([^ ]*\) .*/\1/p" "$work/expected")
    score=$(grep -o '"index":0,"relevance_score":[-0-9.e]*' "$work/out" | cut -d: -f3)
    awk -v a="$expected" -v b="$score" 'BEGIN { d = a - b; if (d < 0) d = -d; exit d > 2e-5 }' || failed "$name: the server says $score, not $expected"
    post "$name: top_n" 200 '"results":\[\{"index":'$top',"relevance_score":[-0-9.e]*\}\]' /v1/rerank "{$body,\"top_n\":1}"
    post "$name: with the documents" 200 '"document":\{"text":"zzz"\}' /v1/rerank "{$body,\"return_documents\":true}"
    post "$name: no query" 400 'query is missing' /v1/rerank '{"documents":["a"]}'
    post "$name: no documents" 400 'list of texts' /v1/rerank '{"query":"a"}'
    post "$name: an empty list" 400 '1 to' /v1/rerank '{"query":"a","documents":[]}'
    post "$name: a number" 400 'document 1 is not a text' /v1/rerank '{"query":"a","documents":["a",1]}'
    post "$name: embeddings of a ranking model" 501 'rank' /v1/embeddings '{"input":"a"}'
    stop_server
done
finish
