// Compares the ids of random texts by @huggingface/tokenizers with those of the converted GGUF file.
// Usage: node tokenizers.mjs TENON FOLDER WORK   (run in a folder whose node_modules has the package)
// FOLDER is a Hugging Face folder with a byte-level tokenizer; variants of other kinds are made from it in WORK.
import { createRequire } from "node:module";
import { execFileSync, spawnSync } from "node:child_process";
import { pathToFileURL } from "node:url";
import fs from "node:fs";
import path from "node:path";

const require = createRequire(pathToFileURL(process.cwd() + "/"));
const { Tokenizer } = require("@huggingface/tokenizers");
const [tenon, folder, work] = process.argv.slice(2);
const count = Number(process.env.TENON_LONG ? 2000 : 60);

let state = 20261115n;
function random(n) {
  state = (state * 6364136223846793005n + 1442695040888963407n) & 0xffffffffffffffffn;
  return Number((state >> 33n) % BigInt(n));
}
const fragments = ["the", "Hello", "world", "in", "or", "er", "ing", "function", "return", " ", "  ", "   ", "\n", "\n\n", "\t", ".", ",", "!", "?", "'s", "'ll",
  "'T", "don't", "12", "345", "6789", "0", "3.14", "x", "Z", "é", "ü", "ß", "naïve", "日本", "語", "한국어", "Привет", "🙂", "👩‍👩‍👧", "(", ")", "{", "}", "==", "->",
  "_", "-", "/", "\\", "\"", "a1b2", "ÀÉ", "ﬁ", "½", "…", "—"];
function text(marks) {
  let s = "";
  for (let n = 1 + random(14); n > 0; n--) s += marks.length && random(12) === 0 ? marks[random(marks.length)] : fragments[random(fragments.length)] + (random(3) ? " " : "");
  return s;
}

const base = JSON.parse(fs.readFileSync(path.join(folder, "tokenizer.json")));
const copy = (x) => JSON.parse(JSON.stringify(x));
const split = (regex) => ({ type: "Sequence", pretokenizers: [{ type: "Split", pattern: { Regex: regex }, behavior: "Isolated", invert: false },
  { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false }] });
const words = (digits) => `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|${digits}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`;

// Characters with "▁" for spaces, merged by rank; unknown characters as bytes.
function characters(normalizer, pre) {
  const vocab = { "<unk>": 0, "<s>": 1, "</s>": 2 }, merges = [];
  let id = 3;
  for (let b = 0; b < 256; b++) vocab[`<0x${b.toString(16).toUpperCase().padStart(2, "0")}>`] = id++;
  const letters = [..."▁ etaoinshrdlucmfwypvbgkjxqz"].filter((c) => c !== " ");
  for (const c of [...letters, ..."THEW0123456789.,!?'-éü"]) vocab[c] = id++;
  for (const [a, b] of ["▁ t", "h e", "▁t he", "i n", "e r", "▁ a", "o r", "in g", "l l", "o n", "▁ w", "▁w or", "l d", "▁wor ld", "r e", "▁ ▁", "▁▁ ▁▁", "▁ H", "e ll",
    "▁H ell", "▁Hell o", "1 2", "3 4", "34 5"].map((m) => m.split(" "))) {
    if (!(a + b in vocab)) vocab[a + b] = id++;
    merges.push([a, b]);
  }
  return { ...copy(base), added_tokens: [0, 1, 2].map((i) => ({ ...base.added_tokens[0], id: i, content: ["<unk>", "<s>", "</s>"][i] })), normalizer, pre_tokenizer: pre,
    decoder: { type: "Sequence", decoders: [{ type: "Replace", pattern: { String: "▁" }, content: " " }, { type: "ByteFallback" }, { type: "Fuse" }] },
    model: { type: "BPE", dropout: null, unk_token: "<unk>", continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: true, byte_fallback: true, ignore_merges: false, vocab, merges } };
}
const metaspace = (scheme) => ({ type: "Metaspace", replacement: "▁", prepend_scheme: scheme, split: false });
function unigram() {
  const list = [["<pad>", 0], ["</s>", 0], ["<unk>", -2]];
  const pieces = ["▁", "▁the", "▁Hello", "▁world", "▁in", "ing", "▁fun", "ction", "er", "or", "▁a", "re", "turn", "he", "ll", "o", "▁w", "12", "345", "▁日本", "Привет", "."];
  for (const p of [...pieces, ..."abcdefghijklmnopqrstuvwxyzHTWZ0123456789,!?'-_é語"]) if (!list.some(([q]) => q === p)) list.push([p, -(3 + random(900) / 100 + (p.length < 2 ? 6 : 0))]);
  return { ...copy(base), added_tokens: [0, 1, 2].map((i) => ({ ...base.added_tokens[0], id: i, content: list[i][0] })), normalizer: null, pre_tokenizer: metaspace("always"),
    decoder: metaspace("always"), model: { type: "Unigram", unk_id: 2, vocab: list, byte_fallback: false } };
}
function wordPiece() {
  const vocab = {};
  const add = (t) => (t in vocab ? 0 : (vocab[t] = Object.keys(vocab).length));
  ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "hello", "world", "fun", "##ction", "return", "##ing", "##er", "don", "日", "本", "naive", ".", ",", "!", "?", "'", "(", ")", "-", "/", "=", "_"].forEach(add);
  for (const c of "abcdefghijklmnopqrstuvwxyz0123456789") add(c), add("##" + c);
  return { ...copy(base), added_tokens: [0, 1, 2, 3, 4].map((i) => ({ ...base.added_tokens[0], id: i, content: ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"][i] })),
    normalizer: { type: "BertNormalizer", clean_text: true, handle_chinese_chars: true, strip_accents: null, lowercase: true }, pre_tokenizer: { type: "BertPreTokenizer" },
    decoder: { type: "WordPiece", prefix: "##", cleanup: true }, model: { type: "WordPiece", unk_token: "[UNK]", continuing_subword_prefix: "##", max_input_chars_per_word: 100, vocab } };
}

const nfc = { type: "NFC" };
const variants = {
  "as it is": base,
  "llama 3 words": { ...copy(base), pre_tokenizer: split(words("\\p{N}{1,3}")), model: { ...copy(base.model), ignore_merges: true } },
  "cl100k words": { ...copy(base), pre_tokenizer: split(words("\\p{N}{1,3}")) },
  "qwen words": { ...copy(base), normalizer: nfc, pre_tokenizer: split(words("\\p{N}")) },
  "single digits": { ...copy(base), pre_tokenizer: { type: "Sequence", pretokenizers: [{ type: "Digits", individual_digits: true }, base.pre_tokenizer] } },
  "composed": { ...copy(base), normalizer: nfc },
  "pairs of texts": { ...copy(base), model: { ...copy(base.model), merges: base.model.merges.map((m) => (Array.isArray(m) ? m : m.split(" "))) } },
  "a token added": { ...copy(base), added_tokens: [...copy(base.added_tokens).filter((t) => t.id !== 511), { ...base.added_tokens[0], id: 511, content: "<think>", special: false }] },
  "characters, Metaspace": characters(null, metaspace("first")),
  "characters, no prefix": characters({ type: "Replace", pattern: { String: " " }, content: "▁" }, null),
  "characters, Prepend": characters({ type: "Sequence", normalizers: [{ type: "Prepend", prepend: "▁" }, { type: "Replace", pattern: { String: " " }, content: "▁" }] }, null),
  "unigram": unigram(),
  "word pieces": wordPiece(),
};

let failures = 0, compared = 0, number = 0;
const only = process.env.TENON_VARIANT;
for (const [name, json] of Object.entries(variants)) {
  if (only && name !== only) continue;
  const dir = path.join(work, `variant${number++}`), out = dir + ".gguf";
  fs.mkdirSync(dir);
  for (const file of ["config.json", "model.safetensors"]) fs.copyFileSync(path.join(folder, file), path.join(dir, file));
  const config = { bos_token: json.added_tokens[0].content, eos_token: json.added_tokens[1].content };
  fs.writeFileSync(path.join(dir, "tokenizer.json"), JSON.stringify(json));
  fs.writeFileSync(path.join(dir, "tokenizer_config.json"), JSON.stringify(config));
  execFileSync(tenon, ["convert", dir, out]);
  const tokenizer = new Tokenizer(copy(json), config);
  const marks = json.added_tokens.filter((t) => t.id > 2 || json.model.type === "BPE").map((t) => t.content).filter((t) => t !== "<unk>");
  let bad = 0;
  for (let i = 0; i < count; i++) {
    // Metaspace inserts no "▁" before a text that begins with a space or follows a control token; SentencePiece, which
    // GGUF uses, does. Texts in which they differ are skipped.
    let input = text(json.model.type === "BPE" && !/Metaspace/.test(name) ? marks : []);
    if (/Metaspace|unigram/.test(name)) input = input.trimStart() || "x";
    const theirs = tokenizer.encode(input, { add_special_tokens: false }).ids.map(Number).join(" ");
    const run = spawnSync(tenon, ["tokenize", out, "--parse-special", "-"], { input, maxBuffer: 1 << 24 });
    const ours = run.stdout.toString().trim();
    compared++;
    if (ours === theirs) continue;
    failures++;
    if (bad++ < 3) console.error(`${name}: ${JSON.stringify(input)}\n  theirs ${theirs}\n  ours   ${ours} ${run.stderr}`);
  }
  if (bad) console.error(`${name}: ${bad} of ${count} texts differ`);
}
console.log(`${compared} texts compared, ${failures} differences`);
process.exit(failures ? 1 : 0);
