#!/bin/bash
# run.sh BUILD [chrome] [firefox] [pictures]: tests the web UI in browsers, by default in those that are installed, or makes the
# pictures of the documentation. Drivers come from npm into BUILD/web-test. Long: about a minute per browser.
set -euo pipefail
build=$(cd "$1" && pwd)
shift
here=$(cd "$(dirname "$0")" && pwd)
work=$build/web-test
mkdir -p "$work"
cat > "$work/package.json" << 'END'
{ "private": true, "dependencies": { "axe-core": "4.14.0", "commonmark-spec": "0.31.2", "puppeteer-core": "24.43.1" } }
END
if [ ! -d "$work/node_modules/puppeteer-core" ]; then
    (cd "$work" && npm install --no-audit --no-fund --ignore-scripts > npm.log 2>&1) || { tail -n 5 "$work/npm.log"; exit 1; }
fi
# Modules are looked for beside the file that imports them.
rm -rf "$work/tests" && mkdir -p "$work/tests/web" "$work/tools/tenon"
cp "$here"/*.mjs "$work/tests/web/"
ln -sfn "$here/../../tools/tenon/web" "$work/tools/tenon/web"

if [ "${1:-}" = pictures ]; then
    exec node --no-warnings "$work/tests/web/pictures.mjs" "$build/bin/tenon" "$here/../../models/tales.gguf" "$here/../../docs/pictures"
fi
[ $# -gt 0 ] || set -- $(command -v chromium > /dev/null && echo chrome) $(command -v firefox-esr > /dev/null && echo firefox)
[ $# -gt 0 ] || { echo "neither chromium nor firefox-esr is installed"; exit 1; }
failed=0
node --no-warnings "$work/tests/web/core.mjs" || failed=1
node --no-warnings "$work/tests/web/spec.mjs" || failed=1
for browser; do
    node --no-warnings "$work/tests/web/ui.mjs" "$browser" || failed=1
    node --no-warnings "$work/tests/web/live.mjs" "$browser" "$build/bin/tenon" "$here/../../models/tales.gguf" || failed=1
done
case " $* " in *" chrome "*) node --no-warnings "$work/tests/web/speed.mjs" || failed=1 ;; esac
exit $failed
