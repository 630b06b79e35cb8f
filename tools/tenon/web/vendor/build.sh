#!/bin/bash
# Builds the files of this folder from the npm packages that package.json names. Run it after changing a version there.
# It needs node, npm and the npm registry; building the program needs none of them.
set -euo pipefail
cd "$(dirname "$0")"
vendor=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$vendor/package.json" "$work/"
cd "$work"
npm install --no-audit --no-fund --ignore-scripts > npm.log 2>&1
node node_modules/esbuild/install.js

# The languages that answers contain most often; others are shown without colours.
languages="bash c cmake cpp csharp css dart diff dockerfile elixir erlang fortran glsl go graphql haskell http ini java javascript json julia kotlin \
latex less lisp lua makefile markdown matlab nginx nix objectivec ocaml perl php plaintext powershell prolog protobuf python r ruby rust scala scheme scss \
shell sql swift typescript vim wasm x86asm xml yaml"
{
    echo 'import core from "highlight.js/lib/core";'
    for name in $languages; do
        echo "import $name from \"highlight.js/lib/languages/$name\";"
        echo "core.registerLanguage(\"$name\", $name);"
    done
    echo 'export default core;'
} > highlight.mjs
echo 'export { default } from "markdown-it";' > markdown-it.mjs
echo 'export { default } from "katex";' > katex.mjs
echo 'export { getDocument, GlobalWorkerOptions } from "pdfjs-dist/build/pdf.mjs";' > pdf.mjs
echo 'export { WorkerMessageHandler } from "pdfjs-dist/build/pdf.worker.mjs";' > pdf-worker.mjs
for name in highlight markdown-it katex pdf pdf-worker; do
    node_modules/.bin/esbuild "$name.mjs" --bundle --format=esm --minify --target=es2022 --legal-comments=none --charset=utf8 \
        --log-level=warning --outfile="$vendor/$name.js"
done

# Fonts: woff2 only, which every browser that runs modules can read.
mkdir -p "$vendor/fonts"
rm -f "$vendor"/fonts/*
cp node_modules/katex/dist/fonts/*.woff2 "$vendor/fonts/"
sed -E 's/,url\([^)]*\) format\("(woff|truetype)"\)//g' node_modules/katex/dist/katex.min.css > "$vendor/katex.css"

{
    echo "The web UI of Tenon contains built files of the following libraries."
    for name in highlight.js katex markdown-it argparse entities linkify-it mdurl punycode.js uc.micro pdfjs-dist; do
        [ -d "node_modules/$name" ] || continue
        [ "$name" = argparse ] && continue # of markdown-it's command only
        node -p "const p = JSON.parse(fs.readFileSync('node_modules/$name/package.json')); \`\n==== \${p.name} \${p.version} (\${p.license}) ====\n\`"
        cat "node_modules/$name"/LICENSE*
    done
} > "$vendor/licenses.txt"
du -cb "$vendor"/* "$vendor"/fonts/* | tail -n 1
