// Writes strings and their ids by @huggingface/tokenizers:
//     node tokenizer_peer.mjs FOLDER-OF-tokenizer.json COUNT STRINGS-OUT IDS-OUT
// STRINGS has one JSON string per line, IDS the ids of each, separated by spaces. The strings are always the same.
import { createRequire } from "node:module";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { randomTexts, withUnicodeDigits } from "./texts.mjs";

const [folder, count, stringsOut, idsOut] = process.argv.slice(2);
const require = createRequire(join(process.cwd(), "package.json"));
const { Tokenizer } = require("@huggingface/tokenizers");

const json = JSON.parse(readFileSync(join(folder, "tokenizer.json"), "utf8"));
let config = {};
try {
  config = JSON.parse(readFileSync(join(folder, "tokenizer_config.json"), "utf8"));
} catch {}
const added = json.added_tokens.map((token) => token.content);
const tokenizer = new Tokenizer(withUnicodeDigits(json), config);

const make = randomTexts(0x2545f491, added);
const strings = [];
const ids = [];
for (let i = 0; i < Number(count); i++) {
  const text = make();
  strings.push(JSON.stringify(text));
  ids.push(tokenizer.encode(text, { add_special_tokens: false }).ids.join(" "));
}
writeFileSync(stringsOut, strings.join("\n") + "\n");
writeFileSync(idsOut, ids.join("\n") + "\n");
