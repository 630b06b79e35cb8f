#!/bin/bash
# Parts of the web UI that need no browser, in node: conversations, event streams, Markdown, languages. `make test-web` tests the
# rest in browsers.
. "$(dirname "$0")/../support/checks.sh"
command -v node > /dev/null || skip "node is not installed"
[ "$(node -p 'parseInt(process.versions.node)')" -ge 18 ] || skip "node is older than 18"
exec node --no-warnings "$(dirname "$0")/../web/core.mjs"
