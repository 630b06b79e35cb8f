#!/bin/bash
# Checks documents generated for over a thousand random schemas with another validator, ajv. Needs node, npm and, the first time,
# the network.
set -u
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")/.." && pwd)
skip() { echo "skipped: $1"; exit 77; }

[ -x "$build/tests/test_schema_random" ] || skip "test_schema_random is not built"
command -v node > /dev/null && command -v npm > /dev/null || skip "node and npm are not installed"
mkdir -p "$build/ajv" && cd "$build/ajv" || exit 1
if [ ! -d node_modules/ajv-formats ]; then
    echo '{"private": true}' > package.json
    npm install --no-audit --no-fund --silent --fetch-retries=1 --fetch-timeout=30000 ajv@8.17.1 ajv-formats@3.0.1 > npm.log 2>&1 ||
        skip "npm cannot install ajv (no network?)"
fi
TENON_SCHEMA_PEER=$PWD/documents "$build/tests/test_schema_random" > test.log 2>&1 || { cat test.log; exit 1; }
node "$here/peer/schema.mjs" "$PWD/documents"
