#!/bin/bash
# tenon pull, -hf, -mu and --offline against a hub on this machine: quants, split models, redirects, resuming, checksums, tokens. Every
# fault ends with a clear message and a file that can be continued, or none; never with a wrong one.
. "$(dirname "$0")/../support/checks.sh"
command -v python3 > /dev/null || skip "needs python3"
here=$(cd "$(dirname "$0")" && pwd)
export HF_HUB_CACHE=$work/cache XDG_CACHE_HOME=$work/xdg HOME=$work/home TENON_PULL_WAIT_MS=10 TENON_PULL_STALL=5
unset HF_TOKEN HF_HOME http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY HF_HUB_OFFLINE LLAMA_ARG_OFFLINE
"$tenon" pull a/b 2>&1 | grep -q 'not supported by this build' && skip "built without libcurl"
hub=$work/hub
mkdir -p "$hub" "$HOME"
"$tenon" synth "$work/m.gguf" --shape layers=2,width=64,heads=2,kv=1,head=32,ffn=128,vocab=600,ctx=128 --type f16 > /dev/null || failed synth
for repo in model private gated page busy overloaded broken cut dies noranges wrong longer shorter slow escape nonsense pages plain changes untagged; do
    mkdir -p "$hub/org/$repo"
    cp "$work/m.gguf" "$hub/org/$repo/$repo-Q4_K_M.gguf"
done
"$tenon" quantize "$work/m.gguf" "$hub/org/model/model-Q8_0.gguf" Q8_0 > /dev/null
echo picture > "$hub/org/model/mmproj-model-Q4_K_M.gguf"
mkdir -p "$hub/org/split/Q4_K_M" "$hub/org/only" "$hub/org/none"
"$tenon" split "$work/m.gguf" "$hub/org/split/Q4_K_M/s-Q4_K_M.gguf" --max-size 60K > "$work/parts"
cp "$work/m.gguf" "$hub/org/only/only-IQ3_XS.gguf"
echo x > "$hub/org/none/README.md"
mkdir -p "$hub/org/choice"
for name in a-Q4_0 b-BF16 c-Q8_0 c-IQ4_XS mtp-c-Q4_K_M c-Q4_K_M-mmproj eagle3-c-Q6_K cQ5_1; do cp "$work/m.gguf" "$hub/org/choice/$name.gguf"; done
echo '<html>Please log in</html>' > "$hub/org/page/page-Q4_K_M.gguf"
(printf GGUF; head -c 8000000 /dev/urandom) > "$hub/org/slow/slow-Q4_K_M.gguf"
python3 "$here/../data/local_hub.py" "$hub" "$work/port" &
server=$!
trap 'kill $server 2> /dev/null; rm -rf "$work"' EXIT
for _ in $(seq 100); do
    [ -s "$work/port" ] && break
    sleep 0.05
done
read -r port storage < "$work/port"
export HF_ENDPOINT=http://127.0.0.1:$port/
partials() { find "$work/cache" -name '*.incomplete'; }
wrong() { # description: a file that is not the right one
    find "$work/cache" -path '*/blobs/*' -type f ! -name '*.incomplete' | while read -r blob; do
        [ "$(sha256sum < "$blob" | cut -d' ' -f1)" = "$(basename "$blob")" ] || echo "$blob"
    done | grep -q . && failed "$1: a wrong file is in the cache"
    find "$work/cache" -type l ! -exec test -e {} \; -print | grep -q . && failed "$1: a link to nothing"
}

# Getting a model, quants.
path=$("$tenon" pull org/model 2> "$work/err") || failed "pull: $(cat "$work/err")"
case $path in "$work/cache/models--org--model/snapshots/"*/model-Q4_K_M.gguf) ;; *) failed "the path $path" ;; esac
cmp -s "$path" "$work/m.gguf" || failed "the content"
[ -L "$path" ] || failed "a snapshot links to its blob"
[ -s "$work/cache/models--org--model/refs/main" ] || failed "refs/main"
: > "$hub/requests"
same "again" "$path" "$("$tenon" pull org/model:q4_k_m 2> /dev/null)"
grep -q '^storage' "$hub/requests" && failed "a file that is there is not asked for again"
check "another quant" 0 'model-Q8_0.gguf$' "$tenon" pull org/model:Q8_0
check "by name" 0 'model-Q8_0.gguf$' "$tenon" pull org/model -hff model-Q8_0.gguf
check "by the page's address" 0 'model-Q4_K_M.gguf$' "$tenon" pull hf.co/org/model
check "no such quant" 1 'no GGUF file for Q2_K' "$tenon" pull org/model:Q2_K
grep -q 'model-Q8_0.gguf' "$work/out" || failed "no such quant: the others are listed"
check "the only file" 0 'only-IQ3_XS.gguf$' "$tenon" pull org/only
check "without a quant: Q8_0 before others, drafts and projectors never" 0 'c-Q8_0.gguf$' "$tenon" pull org/choice
check "a quant within a word" 0 'cQ5_1.gguf$' "$tenon" pull org/choice:Q5_1
check "a quant that only a draft has" 1 'no GGUF file for Q6_K' "$tenon" pull org/choice:Q6_K
check "no GGUF files" 1 'has no GGUF files' "$tenon" pull org/none
check "no such file" 1 'has no file x.gguf' "$tenon" pull org/model -hff x.gguf
check "pages of a list" 0 'pages-Q4_K_M.gguf$' "$tenon" pull org/pages
check "a list" 0 'org/model model-Q4_K_M.gguf' "$tenon" pull --list
check "what is no name" 1 'owner/repo' "$tenon" pull nonsense
check "a name that leaves the folder" 1 'owner/repo' "$tenon" pull ../../etc:x
check "a path that leaves the folder" 0 'escape-Q4_K_M.gguf$' "$tenon" pull org/escape
find "$work" -name evil.gguf | grep -q . && failed "a path that leaves the folder was written"

# Split models.
path=$("$tenon" pull org/split 2> "$work/err") || failed "a split model: $(cat "$work/err")"
same "all parts" "$(wc -l < "$work/parts")" "$(ls "$(dirname "$path")" | wc -l)"
check "a split model runs" 0 . "$tenon" run -m "$path" -n 2

# As a model of run, chat and serve; offline.
check "run -hf" 0 . "$tenon" run -hf org/model -n 2
check "chat -hf" 0 . "$tenon" chat -hf org/model:Q8_0 -n 2 "A fox"
LLAMA_ARG_HF_REPO=org/model check "by variable" 0 . "$tenon" run -n 2
check "chat /model -hf" 0 'model-Q8_0.gguf continues' bash -c "printf '/model -hf org/model:Q8_0\n' | '$tenon' chat -hf org/model -n 1"
check "run -hfd" 0 . "$tenon" run -hf org/model -hfd org/model:Q8_0 -n 8 -ctkd q8_0
LLAMA_ARG_SPEC_DRAFT_HF_REPO=org/nothing check "a draft model that is not there" 1 'org/nothing: not found' "$tenon" run -hf org/model -n 2
check "-hfd and -md" 2 'either --model-draft or --hf-repo-draft' "$tenon" run -hf org/model -md x.gguf -hfd org/model -n 2
check "-hff does not name the draft" 0 . "$tenon" run -hf org/model -hff model-Q8_0.gguf -hfd org/only -n 2
check "-hf and -m" 2 'either' "$tenon" run -hf org/model -m x.gguf
check "--offline" 0 . "$tenon" run -hf org/model --offline -n 2
HF_HUB_OFFLINE=1 check "HF_HUB_OFFLINE" 0 'model-Q8_0.gguf$' "$tenon" pull org/model:Q8_0
check "--offline without the file" 1 'was not downloaded before' "$tenon" run -hf org/busy --offline
check "--offline with another quant" 1 'was not downloaded before' "$tenon" run -hf org/model:Q5_K_M --offline
HF_ENDPOINT=http://127.0.0.1:1 check "no connection, but a cached file" 0 'using what was downloaded before' "$tenon" pull org/model
HF_ENDPOINT=http://127.0.0.1:1 check "no connection" 1 'org/other: ' "$tenon" pull org/other

# Tokens.
check "a private model" 1 'access denied.*HF_TOKEN' "$tenon" pull org/private
check "a gated model" 1 'access denied \(status 403\).*accept' "$tenon" pull org/gated
check "a wrong token" 1 'access denied' "$tenon" pull org/private --hf-token other
: > "$hub/requests"
HF_TOKEN=secret check "a token" 0 'private-Q4_K_M.gguf$' "$tenon" pull org/private
grep -q '^storage.*secret' "$hub/requests" && failed "the token was sent to the storage"
grep -q '^storage' "$hub/requests" || failed "the storage was asked"

# Faults.
check "no such repository" 1 'not found' "$tenon" pull org/nothing
check "a busy server is asked again" 0 'busy-Q4_K_M.gguf$' "$tenon" pull org/busy
check "an overloaded server" 1 'too many requests' timeout 20 "$tenon" pull org/overloaded
check "a broken server" 1 'status 500' timeout 20 "$tenon" pull org/broken
check "an answer that is not JSON" 1 'not JSON' "$tenon" pull org/nonsense
check "a page instead of a model" 1 'no GGUF file; the file was deleted' "$tenon" pull org/page
check "a page instead of a model, by URL" 1 'no GGUF file; the file was deleted' "$tenon" pull "http://127.0.0.1:$storage/org/page/page-Q4_K_M.gguf"
find "$work/cache" "$work/xdg" -type f -name '*page-Q4_K_M.gguf' | grep -q . && failed "the page is kept"
check "cut connections are continued" 0 'cut-Q4_K_M.gguf$' timeout 30 "$tenon" pull org/cut
check "a connection that always ends" 1 'dies-Q4_K_M.gguf: ' timeout 30 "$tenon" pull org/dies
partial=$(partials)
cmp -s -n "$(stat -c %s "$partial")" "$partial" "$work/m.gguf" || failed "what stays is a beginning of the file"
mv "$hub/org/dies" "$hub/org/lives" && mv "$hub/org/lives/dies-Q4_K_M.gguf" "$hub/org/lives/lives-Q4_K_M.gguf"
mv "$work/cache/models--org--dies" "$work/cache/models--org--lives"
: > "$hub/requests"
check "it is continued later" 0 'continuing after' "$tenon" pull org/lives
grep -q '^storage GET .* bytes=[1-9]' "$hub/requests" || failed "a range was asked for"
mkdir -p "$work/cache/models--org--noranges/blobs"
head -c 1000 /dev/zero > "$work/cache/models--org--noranges/blobs/$(sha256sum < "$work/m.gguf" | cut -d' ' -f1).incomplete"
check "a server without ranges" 0 'noranges-Q4_K_M.gguf$' "$tenon" pull org/noranges
mkdir -p "$work/cache/models--org--wrong/blobs"
check "a wrong checksum" 1 'SHA-256' "$tenon" pull org/wrong
blob=$work/cache/models--org--model/blobs/$(sha256sum < "$work/m.gguf" | cut -d' ' -f1)
head -c 1000 /dev/zero > "$blob.incomplete" && rm "$blob"
check "a damaged partial file" 1 'SHA-256.*deleted' "$tenon" pull org/model
check "and once more" 0 'model-Q4_K_M.gguf$' "$tenon" pull org/model
check "fewer bytes than announced" 1 'sent [0-9]+ of [0-9]+ bytes|416|status' timeout 30 "$tenon" pull org/longer
check "more bytes than announced" 1 'bytes came instead of' "$tenon" pull org/shorter
rm -rf "$work/cache/models--org--longer"
[ -z "$(partials)" ] || failed "partial files stay: $(partials)"
wrong "after the faults"
mkdir "$work/readonly" && chmod 555 "$work/readonly"
[ "$(id -u)" = 0 ] || HF_HUB_CACHE=$work/readonly/x check "a folder that cannot be written" 1 'cannot make the folder' "$tenon" pull org/model

# A full disk.
if unshare -rm mount -t tmpfs none /mnt 2> /dev/null; then
    mkdir "$work/disk"
    full() { unshare -rm bash -c "mount -t tmpfs -o size=400k none '$work/disk' && HF_HUB_CACHE='$work/disk' '$tenon' pull $1; find '$work/disk' -name '*.gguf'"; }
    check "a full disk" 0 'needs 7.* more, but .* has room for' full org/slow
    grep -q 'gguf$' "$work/out" && failed "a full disk: there is a file"
fi

# Ctrl-C, and two processes at once.
timeout -s INT 1 "$tenon" pull org/slow > "$work/out" 2>&1
grep -q 'the same command continues' "$work/out" || failed "an interruption: $(cat "$work/out")"
[ -n "$(partials)" ] || failed "an interruption keeps what came"
: > "$hub/requests"
"$tenon" pull org/slow > "$work/one" 2> "$work/err1" &
one=$!
sleep 0.5
"$tenon" pull org/slow > "$work/two" 2> "$work/err2" || failed "the second process: $(cat "$work/err2")"
wait $one || failed "the first process: $(cat "$work/err1")"
cat "$work/err1" "$work/err2" | grep -q 'another process downloads' || failed "one process waits for the other"
cmp -s "$work/one" "$work/two" || failed "both print the path"
same "the content is asked for once" 1 "$(grep -c '^storage GET' "$hub/requests")"
wrong "after two processes"

# By URL.
url=http://127.0.0.1:$storage/org/model/model-Q8_0.gguf
check "a URL" 0 'model-Q8_0.gguf$' "$tenon" pull "$url"
cmp -s "$(tail -n 1 "$work/out")" "$hub/org/model/model-Q8_0.gguf" || failed "the content of the URL"
check "-mu" 0 . "$tenon" run -mu "$url" -n 2
check "-mu offline" 0 . "$tenon" run -mu "$url" --offline -n 2
first=http://127.0.0.1:$storage/org/split/Q4_K_M/$(basename "$(head -n 1 "$work/parts")")
check "a split model by URL" 0 . "$tenon" run -mu "$first" -n 2
check "a URL of no model" 1 'does not name a GGUF file' "$tenon" pull "http://127.0.0.1:$storage/x.html"
check "a URL of nothing" 1 'status|not found|empty reply|Server returned nothing' "$tenon" pull "http://127.0.0.1:$port/x/y/z.gguf"
url=http://127.0.0.1:$storage/org/changes/changes-Q4_K_M.gguf
check "a URL whose content changes meanwhile" 0 'changes-Q4_K_M.gguf$' "$tenon" pull "$url"
python3 -c 'import sys; sys.exit((lambda b: b[:4] + b[:3:-1])(open(sys.argv[1], "rb").read()) != open(sys.argv[2], "rb").read())' "$work/m.gguf" "$(tail -n 1 "$work/out")" ||
    failed "the content is not joined from two versions"
url=http://127.0.0.1:$storage/org/plain/plain-Q4_K_M.gguf
check "a URL whose content changes later" 0 'plain-Q4_K_M.gguf$' "$tenon" pull "$url"
path=$(tail -n 1 "$work/out")
cp "$hub/org/model/model-Q8_0.gguf" "$hub/org/plain/plain-Q4_K_M.gguf"
check "its new content" 0 'plain-Q4_K_M.gguf$' "$tenon" pull "$url"
cmp -s "$path" "$hub/org/model/model-Q8_0.gguf" || failed "the new content of a URL"
: > "$hub/requests"
check "and nothing new" 0 'plain-Q4_K_M.gguf$' "$tenon" pull "$url"
grep -q '^storage GET' "$hub/requests" && failed "a URL's content is not asked for again"
url=http://127.0.0.1:$storage/org/untagged/untagged-Q4_K_M.gguf
check "a URL without an ETag" 0 'untagged-Q4_K_M.gguf$' "$tenon" pull "$url"
path=$(tail -n 1 "$work/out")
rm "$path" "$path.etag"
head -c 1000 /dev/zero > "$path.$(sha256sum < /dev/null | cut -c1-12).incomplete"
check "a URL without an ETag is not continued" 0 'untagged-Q4_K_M.gguf$' "$tenon" pull "$url"
cmp -s "$path" "$work/m.gguf" || failed "the content of a URL without an ETag"
# A proxy from the environment: the storage, which is asked for another host's path.
http_proxy=http://127.0.0.1:$storage check "a proxy" 0 'model-Q8_0.gguf$' "$tenon" pull http://models.invalid/org/model/model-Q8_0.gguf
cmp -s "$(tail -n 1 "$work/out")" "$hub/org/model/model-Q8_0.gguf" || failed "the content by a proxy"
http_proxy=http://127.0.0.1:1 no_proxy=127.0.0.1 check "a host without the proxy" 0 'model-Q4_K_M.gguf$' "$tenon" pull org/model
http_proxy=http://127.0.0.1:1 https_proxy=http://127.0.0.1:1 HF_ENDPOINT=https://hub.invalid check "a proxy of https" 1 'onnect' timeout 20 "$tenon" pull org/plain
http_proxy=http://127.0.0.1:1 check "a proxy that is not there" 1 'onnect' timeout 20 "$tenon" pull http://192.0.2.1/m.gguf
finish
