#!/bin/bash
# Nobody's file is lost: outputs never replace an input, also through links, nor an existing file without --force; they are written
# beside and renamed; links stay links. Inputs that are empty, pipes or folders end with a clear message.
. "$(dirname "$0")/../support/checks.sh"
unset TENON_FORCE
cd "$work" || exit 1
"$tenon" synth a.gguf --shape layers=1,width=64,heads=2,kv=1,head=32,ffn=64,vocab=512,ctx=128 > /dev/null || failed "synth"
sum=$(sha256sum < a.gguf)
unchanged() { # description
    [ "$(sha256sum < a.gguf)" = "$sum" ] || failed "$1: the input is lost"
    [ -z "$(find . -name '*.part' -o -name '*.tmp*')" ] || failed "$1: a partial file stays"
}
ln -s a.gguf link.gguf
ln a.gguf hard.gguf
mkdir folder
ln -s ../a.gguf folder/far.gguf
for out in a.gguf ./a.gguf link.gguf hard.gguf folder/far.gguf; do
    check "quantize over its input $out" 1 'also the input' "$tenon" quantize a.gguf $out Q8_0
    check "quantize over its input $out with --force" 1 'also the input' "$tenon" quantize a.gguf $out Q8_0 --force
    check "merge over its input $out" 1 'also the input' "$tenon" merge a.gguf $out --force
    check "logits over its input $out" 1 'also the input' "$tenon" logits a.gguf --tokens 1,2 --out $out --force
    check "inspect over its input $out" 1 'also the input' "$tenon" inspect a.gguf --tensor token_embd.weight --out $out --force
    check "plan over its input $out" 1 'also the input' "$tenon" plan a.gguf -c 64 --save $out --force
    check "a picture over the input $out" 1 'also the input' "$tenon" plan a.gguf -c 64 --svg $out --force
    check "a page over the input $out" 1 'also the input' "$tenon" plan a.gguf -c 64 --html $out --force
    unchanged $out
done
printf 'id,lower,upper,size\na,0,3,4096\n' > t.csv
check "a picture over the table" 1 'also the input' "$tenon" pack t.csv --svg t.csv --force
grep -q lower t.csv || failed "pack: the input is lost"

# Existing files.
exists() { # description, output, command…
    echo precious > "$2"
    check "$1" 1 "$2 exists; --force" "${@:3}"
    same "$1 keeps the file" precious "$(cat "$2")"
    "${@:3}" --force > "$work/out" 2>&1 || failed "$1 with --force: $(cat "$work/out")"
    head -c 8 "$2" | grep -aq precious && failed "$1 with --force: not replaced"
    rm "$2"
}
exists quantize q.gguf "$tenon" quantize a.gguf q.gguf Q8_0
exists merge m.gguf "$tenon" merge a.gguf m.gguf
exists synth s.gguf "$tenon" synth s.gguf --no-data
exists logits l.f32 "$tenon" logits a.gguf --tokens 1,2 --out l.f32
exists inspect i.f32 "$tenon" inspect a.gguf --tensor token_embd.weight --out i.f32
exists "plan --save" p.plan "$tenon" plan a.gguf -c 64 --save p.plan
exists "plan --svg" p.svg "$tenon" plan a.gguf -c 64 --svg p.svg
exists "plan --html" p.html "$tenon" plan a.gguf -c 64 --html p.html
exists "pack --svg" t.svg "$tenon" pack t.csv --svg t.svg
"$tenon" split a.gguf parts --max-size 40K > list || failed "split"
first=$(head -n 1 list)
before=$(sha256sum < "$first")
check "split again" 1 'exists; --force' "$tenon" split a.gguf parts --max-size 60K
same "split keeps the parts" "$before" "$(sha256sum < "$first")"
check "split with --force" 0 'parts-00001' "$tenon" split a.gguf parts --max-size 40K --force
: > empty.gguf
check "an empty file may be replaced" 0 empty.gguf "$tenon" quantize a.gguf empty.gguf Q8_0
echo precious > target
ln -s target to
check "a link to an existing file" 1 'to exists' "$tenon" plan a.gguf -c 64 --svg to
check "a link with --force" 0 . "$tenon" plan a.gguf -c 64 --svg to --force
[ -L to ] && grep -q svg target || failed "the link stays, its file is replaced"
check "a folder as output" 1 'is a folder' "$tenon" quantize a.gguf folder Q8_0
"$tenon" logits a.gguf --tokens 1,2 --out /dev/null || failed "a device as output"
# Devices and pipes are never replaced by a file of their name, also where the user may do so.
mkfifo fifo
for out in fifo ./fifo; do
    check "quantize to $out" 1 'not a regular file' timeout 10 "$tenon" quantize a.gguf $out Q8_0 --force
    check "synth to $out" 1 'not a regular file' timeout 10 "$tenon" synth $out --no-data --force
    check "merge to $out" 1 'not a regular file' timeout 10 "$tenon" merge a.gguf $out --force
    check "plan --save to $out" 1 'not a regular file' timeout 10 "$tenon" plan a.gguf -c 64 --save $out --force
    [ -p fifo ] || failed "$out is replaced"
done
ln -s fifo to-fifo
check "quantize to a link to a pipe" 1 'not a regular file' timeout 10 "$tenon" quantize a.gguf to-fifo Q8_0 --force
check "quantize to standard output" 1 'give the name of a file' "$tenon" quantize a.gguf - Q8_0
[ -e - ] && failed "there is a file named -"
echo precious > target
ln -sf target to-target
check "quantize through a link with --force" 0 to-target "$tenon" quantize a.gguf to-target Q8_0 --force
[ -L to-target ] && [ "$(head -c 4 target)" = GGUF ] || failed "the link stays, its file is replaced by the model"
check "a log over a model" 1 'is a model' "$tenon" version --log-file a.gguf
echo first > log
check "a log is continued" 0 . "$tenon" run a.gguf -n 1 -v --log-file log
same "what the log had" first "$(head -n 1 log)"
unchanged "all of these"

# An interruption leaves what was there.
echo precious > big.gguf
timeout -s INT 0.3 "$tenon" synth big.gguf --shape 1b --type f16 --force > /dev/null 2>&1
same "an interrupted synth keeps the old file" precious "$(cat big.gguf)"
unchanged "an interruption"

# Inputs.
: > nothing.gguf
for command in inspect run chat plan; do
    check "$command of an empty file" 1 'nothing.gguf.*is empty' timeout 10 "$tenon" $command nothing.gguf
done
check "an empty model" 1 'nothing.gguf.*is empty' timeout 10 "$tenon" run -m nothing.gguf
mkfifo pipe.gguf
check "inspect of a FIFO" 1 'not a regular file' timeout 10 "$tenon" inspect pipe.gguf
check "run of a FIFO" 1 'not a regular file' timeout 10 "$tenon" run -m pipe.gguf
check "run of a folder" 1 'folder' timeout 10 "$tenon" run -m folder
check "an address of another machine" 1 'no such address' timeout 10 "$tenon" serve a.gguf --host 192.0.2.1 --port 0
check "a host that does not exist" 1 'cannot listen at no.such.host.invalid: ' timeout 20 "$tenon" serve a.gguf --host no.such.host.invalid --port 0
finish
