#!/bin/bash
# Fields that clients of llama.cpp's server send: native fields, progress and timings, counting, filling in the middle, prefill,
# reasoning switches, named templates.
. "$(dirname "$0")/../support/checks.sh"
. "$(dirname "$0")/../support/server.sh"
model=$(cd "$(dirname "$0")/../.." && pwd)/models/tales.gguf
command -v curl > /dev/null || skip "curl is not installed"
post() { # description, status, pattern, path, body
    local got
    got=$(curl -s -m 10 -o "$work/out" -w '%{http_code}' "$url$4" -d "$5")
    [ "$got" = "$2" ] && grep -qE -- "$3" "$work/out" || failed "$1 (status $got): $(head -c 900 "$work/out")"
}
absent() { ! grep -qE -- "$2" "$work/out" || failed "$1: $(head -c 900 "$work/out")"; } # description, pattern

serve "$model" -b 64 -c 512 -np 2 -kvu
story='"prompt":"Once upon a time","temperature":0,"n_predict":4'
post "response_fields" 200 '^\{"content":"[^"]+","generation_settings/n_predict":4,"prompt":"<\|story\|>Once upon a time"\}$' /completion "{$story,\"response_fields\":[\"content\",\"generation_settings/n_predict\",\"prompt\"]}"
post "no tokens wanted" 200 '"tokens":\[\]' /completion "{$story,\"return_tokens\":false}"
post "line ends" 200 '"has_new_line":(true|false)' /completion "{$story}"
post "a prompt as an object" 200 '"tokens_evaluated":2' /completion '{"prompt":{"prompt_string":"Once"},"n_predict":1}'
post "a prompt with a picture" 400 'multimodal_data' /completion '{"prompt":{"prompt_string":"a","multimodal_data":["eA=="]},"n_predict":1}'
post "biases by text" 200 '"logit_bias":\[\{"bias":null,"token":[0-9]+,"text":' /completion "{$story,\"logit_bias\":{\" the\":false}}"
post "ends are biases" 200 '"logit_bias":\[\{"bias":null,"token":1,' /completion "{$story,\"ignore_eos\":true}"
post "probabilities after sampling" 200 '"prob":[01]\.[0-9e-]+,"top_probs":\[\{"id"' /completion '{"prompt":"Once","n_predict":2,"n_probs":3,"post_sampling_probs":true}'
absent "probabilities after sampling are no logarithms" '"logprob"'
post "progress" 200 '"prompt_progress":\{"total":[0-9]+,"cache":1,"processed":1,"time_ms":0\}' /completion "{\"prompt\":\"$(printf 'a dog %.0s' {1..40})\",\"n_predict\":1,\"stream\":true,\"return_progress\":true,\"timings_per_token\":true}"
total=$(grep -oE '"total":[0-9]+' "$work/out" | head -n 1 | cut -d: -f2)
grep -q "\"processed\":$total,\"time_ms\"" "$work/out" || failed "progress does not end: $(cat "$work/out")"
[ "$(grep -c prompt_progress "$work/out")" -ge 3 ] || failed "a prompt of several batches has several reports"
grep -q '"timings":{"cache_n":1,"prompt_n":0,"prompt_ms":0.0' "$work/out" || failed "timings before the first batch"
post "the rate leaves out the first token" 200 '"predicted_n":1,"predicted_ms":[0-9.e-]+,"predicted_per_token_ms":0.0,"predicted_per_second":0.0' /completion '{"prompt":"Once","n_predict":1}'
post "a full context" 200 '"truncated":true' /completion '{"prompt":"Once","n_predict":-1,"ignore_eos":true}'
post "too long" 400 'exceeds the available context size' /completion "{\"prompt\":\"$(printf 'word %.0s' {1..600})\"}"
post "no tokens for filling in" 501 'no tokens for filling' /infill '{"input_prefix":"a","input_suffix":"b"}'

chat='"messages":[{"role":"user","content":"Tell a story"}]'
post "input tokens of a chat" 200 '^\{"input_tokens":[0-9]+,"object":"response.input_tokens"\}$' /v1/chat/completions/input_tokens "{$chat}"
post "input tokens of messages" 200 '^\{"input_tokens":[0-9]+\}$' /v1/messages/count_tokens "{$chat}"
post "input tokens of responses" 200 '"input_tokens":[0-9]+' /responses/input_tokens '{"input":"Tell"}'
post "verbose" 200 '"__verbose":\{.*"prompt":"<\|story\|>.*Tell a story' /v1/chat/completions "{$chat,\"max_tokens\":1,\"verbose\":true}"
begun='{"role":"user","content":"Hi"},{"role":"assistant","content":"Well"}'
post "prefill" 200 '<\|im_start\|>assistant\\nWell"' /apply-template "{\"messages\":[$begun]}"
post "no prefill" 200 'Well<\|im_end\|>\\n<\|im_start\|>assistant\\n"' /apply-template "{\"messages\":[$begun],\"add_generation_prompt\":true}"
post "prefill by name" 200 'assistant\\nWell"' /apply-template "{\"messages\":[$begun],\"continue_final_message\":true,\"add_generation_prompt\":false}"
post "prefill and a new turn" 400 'cannot both be true' /v1/chat/completions "{\"messages\":[$begun],\"continue_final_message\":true,\"add_generation_prompt\":true}"
post "two answers at the end" 400 'which one' /v1/chat/completions "{\"messages\":[$begun,{\"role\":\"assistant\",\"content\":\"x\"}]}"
post "the developer is the system" 200 '<\|im_start\|>system\\nBe kind' /apply-template "{\"messages\":[{\"role\":\"developer\",\"content\":\"Be kind\"},{\"role\":\"user\",\"content\":\"Hi\"}]}"
post "progress of a chat" 200 '"prompt_progress"' /v1/chat/completions "{$chat,\"max_tokens\":1,\"stream\":true,\"return_progress\":true}"
post "an unknown place for reasoning" 400 'reasoning_format' /v1/chat/completions "{$chat,\"reasoning_format\":\"odd\"}"
record() { curl -s -m 10 -o "$work/out" -w '%{http_code}' -X "$1" "$url/v1/stream?conv_id=a%2Fb"; } # method
timeout 0.2 curl -sN -m 10 "$url/v1/chat/completions" -H "X-Conversation-Id: a/b" -d "{$chat,\"stream\":true,\"max_tokens\":150,\"ignore_eos\":true}" > /dev/null
for _ in $(seq 50); do [ "$(record GET)" = 200 ] && grep -q DONE "$work/out" && break; sleep 0.1; done
grep -q '^data: \[DONE\]' "$work/out" || failed "a recorded stream goes on without its client: $(head -c 300 "$work/out")"
[ "$(record DELETE) $(record GET)" = "204 404" ] || failed "a recorded stream is removed"
odd='{"type":"object","properties":{"n":{"type":"integer","multipleOf":3}},"required":["n"],"additionalProperties":false}'
post "an ignored keyword" 200 '"note":"ignored in the schema: #/properties/n: .{1,3}multipleOf' /completion "{\"prompt\":\"Once\",\"n_predict\":40,\"json_schema\":$odd}"
grep -qE '"content":"\{[^0-9]*[0-9-]+[^.]*"' "$work/out" || failed "the rest of the schema holds: $(head -c 300 "$work/out")"
post "an ignored keyword in a chat" 200 '"note":"ignored in the schema' /v1/chat/completions "{$chat,\"max_tokens\":2,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":$odd}}}"
post "an ignored keyword in a stream" 200 '"note":"ignored in the schema' /v1/chat/completions "{$chat,\"max_tokens\":2,\"stream\":true,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":$odd}}}"
post "a strict schema" 400 'multipleOf' /v1/chat/completions "{$chat,\"max_tokens\":2,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"strict\":true,\"schema\":$odd}}}"
tool() { echo "{\"type\":\"function\",\"function\":{\"name\":\"$1\",$2\"parameters\":$3}}"; } # name, further members, schema
post "a strict tool" 400 'tools\[0\] is strict: .*multipleOf' /v1/chat/completions "{$chat,\"max_tokens\":2,\"tools\":[$(tool look '"strict":true,' "$odd")]}"
kinds='{"type":"object","properties":{"k":{"$ref":"#/$defs/kind"}},"required":["k"],"additionalProperties":false,"$defs":{"kind":{"enum":["cat","dog"]}}}'
post "definitions of a tool" 200 '"arguments":"\{[^:]*:[^:]*(cat|dog)' /v1/chat/completions "{$chat,\"max_tokens\":120,\"temperature\":0,\"parallel_tool_calls\":false,\"tool_choice\":\"required\",\"tools\":[$(tool look "" "$kinds")]}"
only='{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"see"}}]}}'
post "only some tools" 200 '"name":"see"' /v1/chat/completions "{$chat,\"max_tokens\":120,\"temperature\":0,\"parallel_tool_calls\":false,\"tool_choice\":$only,\"tools\":[$(tool look "" "$kinds"),$(tool see "" "$kinds")]}"
post "a tool that is not there" 400 'no tool named see' /v1/chat/completions "{$chat,\"tool_choice\":$only,\"tools\":[$(tool look "" "$kinds")]}"
post "a response before" 400 'nothing is stored' /v1/responses '{"input":"Hi","previous_response_id":"resp_1"}'
asked='"model":"any:latest","options":{"num_predict":2,"temperature":0}'
post "Ollama: chat" 200 '^\{"model":"tales","created_at":"[^"]+Z","message":\{"role":"assistant","content":".*"\},"done":false\}$' /api/chat "{$asked,$chat}"
grep -qE '"done":true,"done_reason":"length","total_duration":[0-9]+,.*"eval_count":2,' "$work/out" || failed "Ollama: last line: $(cat "$work/out")"
post "Ollama: generate" 200 '"response":".+","done":true' /api/generate "{$asked,\"prompt\":\"Once\",\"stream\":false}"
post "Ollama: errors" 400 '^\{"error":"messages' /api/chat '{"messages":[]}'
post "Ollama: a schema" 200 '"content":"\\?"?' /api/chat "{$asked,$chat,\"stream\":false,\"format\":{\"type\":\"boolean\"}}"
curl -s -m 5 "$url/api/tags" | grep -q '"models":\[{"name":"tales"' || failed "Ollama: tags"
post "Ollama: show" 200 '"general.architecture":"llama"' /api/show '{"model":"x"}'
stop_server

cat > "$work/think.jinja" << 'JINJA'
{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]<think>
{% endif %}
JINJA
serve "$model" --chat-template-file "$work/think.jinja"
post "reasoning" 200 '\[assistant\]<think>\\n"' /apply-template "{$chat}"
post "no reasoning" 200 '\[assistant\]<think>\\n</think>"' /apply-template "{$chat,\"reasoning_effort\":\"none\"}"
post "no reasoning by budget" 200 '<think>\\n</think>"' /apply-template "{$chat,\"reasoning_budget\":0}"
post "prefill ends reasoning" 200 '<think>\\n</think>Well"' /apply-template "{\"messages\":[$begun]}"
post "prefill with reasoning" 200 '<think>\\nhm</think>Well"' /apply-template '{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Well","reasoning_content":"hm"}]}'
stop_server
serve "$model" --chat-template llama3
post "a template by name" 200 '^\{"prompt":"<\|story\|><\|start_header_id\|>user<\|end_header_id\|>\\n\\nTell a story<\|eot_id\|><\|start_header_id\|>assistant<\|end_header_id\|>\\n\\n"\}$' /apply-template "{$chat}"
stop_server

# Filling in the middle, and what the server's options change.
if command -v python3 > /dev/null; then
    here=$(cd "$(dirname "$0")" && pwd)
    python3 "$here/../data/add_metadata.py" "$model" "$work/fim.gguf" tokenizer.ggml.fim_pre_token_id:=300 \
        tokenizer.ggml.fim_suf_token_id:=301 tokenizer.ggml.fim_mid_token_id:=302 || failed "a model with tokens for filling in"
    same "the pieces" '{"text":"Lilyen her"}' "$("$tenon" detokenize "$work/fim.gguf" 300 301 302 --json 2> /dev/null)"
    gap='"input_prefix":"A","input_suffix":"B","prompt":"C","n_predict":1,"response_fields":["prompt","tokens_evaluated"]'
    serve "$work/fim.gguf" -c 512
    post "filling in" 200 '"<\|story\|>LilyACenB her"' /infill "{$gap}"
    post "a continued message" 200 'Well"' /apply-template "{\"messages\":[$begun]}"
    stop_server
    serve "$work/fim.gguf" -c 512 --spm-infill --no-prefill-assistant --chat-template chatml
    post "filling in, suffix first" 200 '"<\|story\|>enBLilyAC her"' /infill "{$gap}"
    post "a complete message" 200 'Well<\|im_end\|>\\n<\|im_start\|>assistant\\n"' /apply-template "{\"messages\":[$begun]}"
    post "a message that the request continues" 200 'assistant\\nWell"' /apply-template "{\"messages\":[$begun],\"continue_final_message\":true,\"add_generation_prompt\":false}"
    stop_server
fi
finish
