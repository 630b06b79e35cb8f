#!/bin/sh
# check_includes.sh: every #include "…" between folders is allowed by scripts/include_rules.txt.
cd "$(dirname "$0")/.."
scripts/sources.sh src tools examples | xargs grep -nE '^ *# *include *"' | awk -F: '
    FILENAME == rules {
        if ($0 !~ /^#/ && NF > 1) { allowed[$1] = " " $2 " " }
        next
    }
    {
        file = $1; line = $2
        included = $0; sub(/^[^"]*"/, "", included); sub(/".*/, "", included)
        folder = file; sub(/\/[^\/]*$/, "", folder)
        directory = folder
        while (!(folder in allowed) && folder ~ /\//) sub(/\/[^\/]*$/, "", folder)
        if (!(folder in allowed)) { print file ": no rule for its folder in " rules; bad = 1; next }
        if (included == "tenon/backend_impl.h" && folder !~ /^src\/(backend|runtime)(\/|$)/) {
            print file ":" line ": backend_impl.h is for authors of backends; only src/backend and src/runtime may include it"
            bad = 1
        }
        if (included ~ /^tenon\// || included ~ /^generated\//) next
        if (included ~ /^\.\.?\// && folder !~ /^src/ && system("test -f " folder "/" substr(included, index(included, "/") + 1)) == 0) next
        if (included ~ /^\.\.?\//) { print file ":" line ": write \"" included "\" from the root of src/"; bad = 1; next }
        if (included !~ /\//) next # a header beside the file
        # Paths start at src/ in the libraries and at tools/tenon/ in the program.
        root = file ~ /^tools\/tenon\// ? "tools/tenon/" : "src/"
        target = root included; sub(/\/[^\/]*$/, "", target)
        while (target != folder && !(target in allowed) && target ~ /\//) sub(/\/[^\/]*$/, "", target)
        name = substr(target, length(root) + 1)
        if (target == folder || (name != "" && index(allowed[folder], " " name " "))) next
        print file ":" line ": " folder " may not include \"" included "\" (" rules ")"
        bad = 1
    }
    END { exit bad }' rules=scripts/include_rules.txt scripts/include_rules.txt -
