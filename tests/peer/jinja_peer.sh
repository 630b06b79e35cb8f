#!/bin/bash
# Renders random dialogs with the templates in tests/data/templates and every golden one and compares with another Jinja engine, @huggingface/jinja, if that
# supports the template. Needs npm and, the first time, the network.
set -u
build=$1
golden=${TENON_GOLDEN:-${TENON_GOLDEN_DEFAULT:-}}
here=$(cd "$(dirname "$0")/.." && pwd)
tenon=$build/bin/tenon
skip() { echo "skipped: $1"; exit 77; }

[ -x "$tenon" ] || skip "the tenon program is not built"
command -v node > /dev/null && command -v npm > /dev/null || skip "node and npm are not installed"
"$here/peer/install.sh" "$build/npm" || skip "npm cannot install @huggingface/jinja (no network?)"
[ ! -d "$golden/chat" ] || golden=$(cd "$golden" && pwd)
tenon=$(cd "$(dirname "$tenon")" && pwd)/tenon
cd "$build/npm" && cp "$here/peer/jinja.mjs" . && node jinja.mjs "$tenon" "$here/data/templates" 100 || exit 1
[ -d "$golden/chat" ] || { echo "note: no golden templates (set TENON_GOLDEN)"; exit 0; }
node jinja.mjs "$tenon" "$golden/chat" 30
