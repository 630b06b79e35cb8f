#!/bin/bash
# The web UI of tenon serve in a headless Chromium, driven by playwright: send, stream, stop, regenerate, edit, settings,
# reload, memory view, dark mode and the width of a phone. TENON_SHOTS=FOLDER keeps the screenshots.
. "$(dirname "$0")/../support/checks.sh"
. "$(dirname "$0")/../support/server.sh"
here=$(cd "$(dirname "$0")/.." && pwd)
command -v chromium > /dev/null || skip "chromium is not installed"
command -v npm > /dev/null && command -v node > /dev/null || skip "npm is not installed"
cp "$here/data/web_ui.mjs" "$work/"
(cd "$work" && timeout 100 npm install --no-audit --no-fund --ignore-scripts playwright-core@1.49.1) > "$work/npm.log" 2>&1 ||
    { tail -n 3 "$work/npm.log"; skip "playwright-core could not be installed from npm"; }
timeout 10 chromium --headless=new --no-sandbox --disable-gpu --dump-dom about:blank > /dev/null 2> "$work/chromium" ||
    { tail -n 3 "$work/chromium"; skip "chromium does not start here"; }
serve -c 4096 --context-shift
timeout 200 node "$work/web_ui.mjs" "$url/" "$(command -v chromium)" "${TENON_SHOTS:-$work}"
