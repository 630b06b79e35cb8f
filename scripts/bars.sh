#!/bin/bash
# bars.sh [--gpu] BUILD [NAME…|PART]: checks what the project promises (scripts/bars.tsv) and prints a table.
set -u
cd "$(dirname "$0")/.." || exit 1
where=cpu
if [ "${1:-}" = --gpu ]; then
    shift
    where=gpu${2:?which part?}
    set -- "$1"
fi
export BUILD=$(cd "$1" && pwd)
shift
wanted=" $* " failed=0 table=
while IFS=$'\t' read -r row_where name bar command; do
    case $row_where in '#'* | '') continue ;; esac
    [ "$row_where" = "$where" ] || continue
    [ "$wanted" = "  " ] || case $wanted in *" $name "*) ;; *) continue ;; esac
    echo "== $name: $bar"
    start=$SECONDS
    # Failures inside a pipeline count. Standard input is the list of bars: no command may read it.
    if figure=$(bash -o pipefail -c "$command" < /dev/null 2>&1); then verdict=holds; else verdict=MISSED failed=1; fi
    [ $verdict = holds ] || printf '%s\n' "$figure" | tail -n 20
    table+=$(printf '%-12s %-7s %5d s  %s' "$name" "$verdict" $((SECONDS - start)) "$(printf '%s\n' "$figure" | tail -n 1)")$'\n'
done < scripts/bars.tsv
printf '\n%-12s %-7s %7s  %s\n%s' bar verdict time figure "$table"
exit $failed
