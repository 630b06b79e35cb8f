#!/bin/bash
# Documents keep their word: links lead somewhere, the program in the embedding guide is the one in examples/ and runs,
# commands and options that are mentioned exist, and what the quick start does without network and root works.
set -u
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
failures=0
complain() {
    echo "FAILED: $1"
    failures=$((failures + 1))
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for file in README.md CONTRIBUTING.md SECURITY.md docs/*.md models/README.md bench/README.md; do
    grep -oE '\]\([^)]+\)' "$file" | sed 's/^](//; s/)$//' | grep -vE '^(https?:|#)' > "$work/links"
    while read -r link; do
        [ -e "$(dirname "$file")/${link%%#*}" ] || complain "$file links to $link, which is not there"
    done < "$work/links"
done

awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' docs/embedding.md > "$work/story.c"
diff "$work/story.c" examples/story.c > "$work/diff" || { complain "docs/embedding.md is not examples/story.c"; cat "$work/diff"; }
[ "$(wc -l < examples/story.c)" -le 60 ] || complain "the example has more than 60 lines"
"$build/examples/story" models/tales.gguf "One day" > "$work/out" 2>&1 || complain "examples/story"
grep -qE 'planned ([0-9]+) bytes, used \1$' "$work/out" || { complain "examples/story: planned is not used"; cat "$work/out"; }
"$build/examples/story" nowhere.gguf > "$work/out" 2>&1 && complain "examples/story without a model"
grep -q 'nowhere.gguf: No such file' "$work/out" || complain "examples/story does not say what is wrong"

# Every `tenon …` line in a code block names a command and options that there are.
for file in README.md docs/quick-start.md docs/troubleshooting.md docs/embedding.md docs/server.md docs/chat.md docs/gguf.md \
    docs/engine.md docs/adding-a-model.md models/README.md; do
    awk '/^```/ { inside = !inside; next } inside || /^    / ' "$file" | grep -oE '(^|[|&;] *|^    )(build/bin/)?tenon [a-z]+ [^|>]*' |
        sed -E 's/^[|&; ]*//; s/^build\/bin\///; s/ +#.*//' > "$work/lines"
    while read -r _ command rest; do
        "$build/bin/tenon" "$command" --help > "$work/help" 2>&1 || { complain "$file: tenon $command"; continue; }
        for word in $(sed -E "s/'[^']*'//g; s/\"[^\"]*\"//g" <<< "$rest"); do
            case $word in
            -[0-9]*) ;;
            --no-*) grep -qE -- "(--\[no-\]${word#--no-}|$word)\b" "$work/help" || complain "$file: tenon $command $word" ;;
            -?*) grep -qE -- "(^|[ ,])${word%%=*}\b" "$work/help" || complain "$file: tenon $command $word" ;;
            esac
        done
    done < "$work/lines"
done

# The quick start's own lines.
export PATH=$build/bin:$PATH
quick() { # expected pattern, command line
    bash -c "$2" > "$work/out" 2>&1 || { complain "$2"; cat "$work/out"; }
    grep -qE -- "$1" "$work/out" || { complain "$2 gives no $1"; cat "$work/out"; }
    grep -qF -- "${2%% #*}" docs/quick-start.md || complain "docs/quick-start.md does not have: $2"
}
quick 'The fox and the bear were friends\.' 'tenon run -p "The fox and the bear were friends." -n 100'
quick 'Once upon a time' 'tenon run -p "Once upon a time" --temp 0 -n 50'
quick '^ (yes|no)$' "tenon run -p \"Is a fox an animal? Answer:\" --grammar 'root ::= \" yes\" | \" no\"' --no-echo"
quick '"generated_tokens": 20' 'echo "Tom had a big red" | tenon run - -n 20 --json'
quick '^cpu' 'tenon devices'
exit $((failures > 0))
