#!/bin/bash
# Whole answers to some 280 requests of every kind, right and wrong, are those in tests/data/requests.json, also if each byte of a request arrives
# on its own; streams over TLS arrive whole. RECORD=1 writes the file anew: look at what has changed.
. "$(dirname "$0")/../support/checks.sh"
. "$(dirname "$0")/../support/server.sh"
here=$(cd "$(dirname "$0")/.." && pwd)
command -v python3 > /dev/null || skip "python3 is not installed"
command -v curl > /dev/null || skip "curl is not installed"
unset TENON_API_KEY LLAMA_API_KEY
cat > "$work/think.jinja" << 'JINJA'
{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]<think>
{% endif %}
JINJA
expected=$here/data/requests.json
run() { # set, options of the server…
    local set=$1 way
    shift
    mkdir -p "$work/slots"
    for way in ${RECORD:+--record} --whole --bytes; do
        rm -f "$work/slots"/*
        serve "$here/../models/tales.gguf" -b 32 -c 256 -np 2 -kvu --seed 1 --cache-type f16 "$@"
        [ -n "$port" ] || { failed "the server does not start: $(tail -n 3 "$work/log")"; return; }
        timeout 120 python3 "$here/data/requests.py" "$url" "$set" "$expected" $way || failed "$set $way"
        [ "$set $way" != "tls --whole" ] || timeout 100 python3 "$here/data/tls_streams.py" "$port" 400 || failed "streams over TLS"
        stop_server || failed "$set: exit code after stopping"
    done
}
run plain --slots --metrics --slot-save-path "$work/slots"
run keys --api-key first,second --api-prefix /llm --alias b,a --tags x,y --no-slots -n 3 --chat-template-file "$work/think.jinja" --cors-origins http://example.com
run vectors --embedding --pooling mean --ubatch 64 --slots --metrics

# The same over TLS, and certificates that do not fit.
tls() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30000 -subj /CN=localhost -keyout "$work/$1.key" -out "$work/$1.pem" 2> /dev/null; }
if ! command -v openssl > /dev/null || ! tls one || ! tls other; then
    echo "note: no openssl; TLS was not tested"
elif "$tenon" serve "$here/../models/tales.gguf" --port 0 --ssl-key-file /nonexistent --ssl-cert-file "$work/one.pem" 2>&1 | grep -q 'no TLS\|needs OpenSSL'; then
    echo "note: this build or machine has no TLS"
else
    run tls --ssl-key-file "$work/one.key" --ssl-cert-file "$work/one.pem"
    refused() { # description, exit code, pattern, options…
        local what=$1 code=$2 pattern=$3
        shift 3
        check "$what" "$code" "$pattern" timeout 20 "$tenon" serve "$here/../models/tales.gguf" --port 0 "$@"
    }
    refused "no key" 1 'private key /nonexistent: ' --ssl-key-file /nonexistent --ssl-cert-file "$work/one.pem"
    refused "no certificate" 1 'certificate /nonexistent: ' --ssl-key-file "$work/one.key" --ssl-cert-file /nonexistent
    refused "another one's key" 1 'private key .*other.key: ' --ssl-key-file "$work/other.key" --ssl-cert-file "$work/one.pem"
    refused "a key alone" 2 'used together' --ssl-key-file "$work/one.key"
    refused "a certificate alone" 2 'used together' --ssl-cert-file "$work/one.pem"
fi
finish
