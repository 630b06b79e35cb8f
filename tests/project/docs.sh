#!/bin/bash
# The documents agree with the tree: links and anchors exist, names and paths they mention exist, the table of modules is that of
# the include rules, code in them compiles and runs, and so do the commands of the quick start.
set -u
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.." || exit 1
failures=0
complain() {
    echo "FAILED: $1"
    failures=$((failures + 1))
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pages="README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md $(echo docs/*.md) $(echo models/*.md) bench/README.md $(echo bench/results/*.md)"

# The anchors of a page's headings, as GitHub makes them.
anchors() {
    awk '/^```/ { inside = !inside } !inside && /^#+ / { sub(/^#+ /, ""); print tolower($0) }' "$1" |
        sed -E 's/\[([^]]*)\]\([^)]*\)/\1/g; s/[^[:alnum:] _-]//g; s/ /-/g'
}
for file in $pages; do
    grep -oE '\]\([^)]+\)' "$file" | sed 's/^](//; s/)$//' | grep -vE '^https?:' > "$work/links"
    while read -r link; do
        target=$(dirname "$file")/${link%%#*}
        case $link in '#'*) target=$file ;; esac
        [ -e "$target" ] || { complain "$file links to $link, which is not there"; continue; }
        case $link in
        *.md#* | '#'*) anchors "$target" | grep -qxF -- "${link#*#}" || complain "$file links to $link, a heading that is not there" ;;
        esac
    done < "$work/links"
done

# Names of the API and paths. The migration page and the changelog name what was removed; results name what was measured.
find include/tenon -name "*.h" -exec cat {} + > "$work/public"
find src -name '*.[ch]' -exec cat {} + > "$work/internal"
for file in $pages; do
    case $file in docs/migration.md | CHANGELOG.md | bench/results/*) continue ;; esac
    for name in $(grep -oE '\b(tn|TN)_[A-Za-z0-9_]+' "$file" | sort -u); do
        case $name in
        *[a-z]_[A-Z]*) ;; # tn__arch_NAME
        tn__* | TN__*) grep -qE "\b$name" "$work/internal" || complain "$file names $name, which is not in src/" ;;
        TN_OP_TABLE) ;;
        TN_OP_*) grep -qE "\bX\(${name#TN_OP_}," "$work/public" || complain "$file names $name, which is not in TN_OP_TABLE" ;;
        TN_SPEC_*) grep -qE "\bX\(${name#TN_SPEC_}," "$work/public" || complain "$file names $name, which is not in TN_SPEC_TABLE" ;;
        *) grep -qE "\b$name" "$work/public" || complain "$file names $name, which is not in include/" ;;
        esac
    done
    # Words in capitals stand for names: tests/unit/MODULE/test_NAME.c.
    for path in $(grep -oE '(^|[^A-Za-z0-9_./-])(src|tests|tools|scripts|bench|cmake|examples|include|models)/[A-Za-z0-9_./-]*[A-Za-z0-9_]' "$file" |
        sed -E 's/^[^a-z]//' | grep -vE '[A-Z]{4}' | sort -u); do
        [ -e "$path" ] || [ -e "$path.c" ] || complain "$file names $path, which is not there"
    done
done
# The new names of the migration table exist.
for name in $(awk -F'|' '/^\|/ { print $3 }' docs/migration.md | grep -oE '\btn_[a-z0-9_]+' | sort -u); do
    grep -qE "\b$name" "$work/public" || complain "docs/migration.md leads to $name, which is not in include/"
done

# docs/architecture.md has a row for every include rule, with the same modules and a subject.
scripts/module_doc.sh > "$work/modules.md" && diff docs/architecture.md "$work/modules.md" > "$work/diff" ||
    { complain "docs/architecture.md (<) is not what scripts/include_rules.txt says (>): make docs"; cat "$work/diff"; }
grep -nE '^\| `[^`]*` \| \|' docs/architecture.md && complain "docs/architecture.md: a module without a subject"

# Code: the embedding guide's is an example, which is built and run; the README's is part of one; CONTRIBUTING's compiles.
c_blocks() { awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$1"; }
c_blocks docs/embedding.md > "$work/story.c"
diff "$work/story.c" examples/story.c > "$work/diff" || { complain "docs/embedding.md is not examples/story.c"; cat "$work/diff"; }
[ "$(wc -l < examples/story.c)" -le 60 ] || complain "the example has more than 60 lines"
"$build/examples/story" models/tales.gguf "One day" > "$work/out" 2>&1 || complain "examples/story"
grep -qE 'planned ([0-9]+) bytes, used \1$' "$work/out" || { complain "examples/story: planned is not used"; cat "$work/out"; }
"$build/examples/story" nowhere.gguf > "$work/out" 2>&1 && complain "examples/story without a model"
grep -q 'nowhere.gguf: No such file' "$work/out" || complain "examples/story does not say what is wrong"

# Without comments and space; the README forwards errors with TN_TRY, the example frees its objects first.
code_lines() { sed -E 's,/\*.*\*/,,; s/TN_TRY_GOTO\((.*), status, out\);/TN_TRY(\1);/; s/[[:space:]]+//g; /^$/d'; }
code_lines < examples/matmul.c > "$work/matmul"
c_blocks README.md | code_lines | while read -r line; do
    grep -qxF -- "$line" "$work/matmul" || echo "$line"
done > "$work/missing"
[ ! -s "$work/missing" ] || { complain "README.md has code that is not in examples/matmul.c"; cat "$work/missing"; }
c_blocks CONTRIBUTING.md > "$work/command.c"
[ -s "$work/command.c" ] && cc -std=gnu17 -Wall -Wextra -Wno-unused-parameter -Werror -fsyntax-only -Itools/tenon -Iinclude "$work/command.c" ||
    complain "the command in CONTRIBUTING.md does not compile"

# What the README says about llama.cpp's options is what their table shows.
read -r honoured noted < <("$build/bin/tenon" help --flags | tr '\n' ' ' | sed -nE 's/.*rows ([0-9]+) are honoured.*command, ([0-9]+) are accepted.*/\1 \2/p')
said=$(tr '\n' ' ' < README.md | sed -nE 's/.*about ([0-9]+) work the same way, about ([0-9]+) are accepted.*/\1 \2/p')
read -r said_honoured said_noted <<< "$said"
{ [ $((said_honoured - honoured)) -le 10 ] && [ $((honoured - said_honoured)) -le 10 ] && [ $((said_noted - noted)) -le 10 ] &&
    [ $((noted - said_noted)) -le 10 ]; } ||
    complain "README.md says $said options, the table $honoured and $noted"
for option in --jinja -fa -cb; do
    "$build/bin/tenon" serve $option --help 2>&1 > /dev/null | grep -q "note: $option" || complain "README.md: serve $option has no note"
done

# Every `tenon …` line in a code block names a command and options that there are.
for file in $pages; do
    case $file in docs/cli.md) continue ;; esac # generated from the same table
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
