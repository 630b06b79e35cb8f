#!/bin/bash
# The program behind `make mutate`: it makes each kind of change and none in comments or texts, and a test notices changes of the function that
# it tests.
. "$(dirname "$0")/../support/checks.sh"
command -v python3 > /dev/null || skip "python3 is not installed"
build=$(cd "$build" && pwd)
cd "$(dirname "$0")/../.." || exit 1
cat > "$work/changes.py" << 'EOF'
import sys

sys.path.insert(0, 'tests/mutate')
from changes import changes

TEXT = '''/* a < b */
int limit = 1 + 2;
static int f(int a, int b) {
    if (a < b) return 3;
    puts("a < b && true"); // a < b
    a += g(a, b);
    h(a);
    TN_TRY(k(a));
    return a - b;
}
'''
made = {(kind, TEXT.count('\n', 0, at) + 1, TEXT[at:end], new) for kind, at, end, new in changes(TEXT)}
for wanted in [('comparison', 4, ' < ', ' <= '), ('comparison', 4, ' < ', ' > '), ('error path', 4, 'a < b', '0'), ('logic', 4, '(a < b)', '(!(a < b))'),
               ('constant', 4, '3', '4'), ('constant', 4, '3', '2'), ('arithmetic', 6, ' += ', ' -= '), ('arguments', 6, 'a, b', 'b, a'),
               ('statement', 7, 'h(a)', '(void)0'), ('error path', 8, 'TN_TRY(', '(void)('), ('arithmetic', 9, ' - ', ' + ')]:
    if wanted not in made:
        print('not made:', wanted)
for change in made:
    if change[1] < 4 or (change[1] == 5 and change[0] != 'statement'):
        print('made in a comment, a text or outside of functions:', change)
EOF
same "changes" "" "$(python3 "$work/changes.py" 2>&1)"
if [ -n "$(find "$build" -name hash.c.o -path '*core_objects*')" ]; then # as everywhere but in installed trees
    check "a run" 0 '^3 changes, [123] noticed' \
        python3 tests/mutate/mutate.py --build "$build" --folder "$work/mutate" --no-reach --only '^test_base$' --count 3 -j 1 --seed 1 src/base/hash.c
    [ "$(grep -c . "$work/mutate/results.tsv")" -ge 3 ] || failed "results are not remembered"
fi
finish
