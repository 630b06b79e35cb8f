#!/bin/bash
# install.sh FOLDER: installs the npm packages of the peer tests in FOLDER/node_modules, once.
set -eu
mkdir -p "$1"
cd "$1"
[ -d node_modules/@huggingface/gguf ] && [ -d node_modules/@huggingface/tokenizers ] && [ -d node_modules/@huggingface/jinja ] && exit 0
[ -f package.json ] || echo '{"private": true}' > package.json
npm install --no-audit --no-fund --silent @huggingface/gguf@0.4 @huggingface/tokenizers@0.2 @huggingface/jinja@0.5 > /dev/null 2>&1
