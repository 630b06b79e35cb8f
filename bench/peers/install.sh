#!/bin/bash
# install.sh FOLDER: puts the peer's shared objects into FOLDER/node_modules, once. The version is fixed, because what
# is compared with must not change by itself.
set -eu
version=3.22.1
mkdir -p "$1"
cd "$1"
grep -qs "\"version\": \"$version\"" node_modules/@node-llama-cpp/linux-x64/package.json && exit 0
command -v npm > /dev/null || { echo "npm is needed to install the peer (Debian: apt-get install npm)" >&2; exit 1; }
[ -f package.json ] || echo '{"private": true}' > package.json
npm install --no-audit --no-fund --ignore-scripts --omit=optional "@node-llama-cpp/linux-x64@$version" > npm.log 2>&1 ||
    { tail -n 20 npm.log >&2; exit 1; }
