// Compares the ids of random texts by @huggingface/tokenizers with those of converted files, for every way of splitting
// text that released models use.
// Usage: node pretokenizers.mjs TENON WORK COUNT   (run in a folder whose node_modules has the package)
// The vocabulary is trained here on texts that are not split, so that its merges cross every boundary between words:
// a boundary at another place gives other ids.
import { createRequire } from "node:module";
import { execFileSync } from "node:child_process";
import { pathToFileURL } from "node:url";
import fs from "node:fs";
import path from "node:path";
import { randomTexts, withUnicodeDigits } from "./texts.mjs";

const require = createRequire(pathToFileURL(process.cwd() + "/"));
const { Tokenizer } = require("@huggingface/tokenizers");
const [tenon, work, countText] = process.argv.slice(2);
const count = Number(countText);

// ---- A byte-level vocabulary ----
const alphabet = [];
for (let b = 0, n = 0; b < 256; b++) alphabet.push(String.fromCharCode((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? b : 256 + n++));
function train(merges) {
  const make = randomTexts(0x1234567), texts = [];
  for (let i = 0; i < 500; i++) texts.push(Uint16Array.from(Buffer.from(make().normalize("NFC"))));
  const parts = Array.from({ length: 256 }, (_, b) => Buffer.from([b])), list = [], known = new Set(parts.map((p) => p.toString("latin1")));
  for (let before = -1; list.length < merges && list.length > before; ) {
    before = list.length;
    const counts = new Map();
    for (const t of texts) for (let i = 0; i + 1 < t.length; i++) counts.set(t[i] * 65536 + t[i + 1], (counts.get(t[i] * 65536 + t[i + 1]) ?? 0) + 1);
    // Several pairs per round; those that a merge of the same round has consumed are simply rarer.
    const best = [...counts].sort((a, b) => b[1] - a[1]).filter((x) => x[1] > 1).slice(0, 400);
    for (const [pair] of best) {
      const a = Math.floor(pair / 65536), b = pair % 65536, joined = Buffer.concat([parts[a], parts[b]]);
      if (list.length >= before + 40) break;
      if (joined.length > 24 || known.has(joined.toString("latin1"))) continue;
      known.add(joined.toString("latin1"));
      const id = parts.push(joined) - 1;
      list.push([a, b]);
      for (let k = 0; k < texts.length; k++) {
        const t = texts[k], out = [];
        for (let i = 0; i < t.length; i++) out.push(t[i] === a && t[i + 1] === b ? (i++, id) : t[i]);
        texts[k] = Uint16Array.from(out);
      }
    }
  }
  return { parts, merges: list };
}
const { parts, merges } = train(1500);
const spell = (bytes) => [...bytes].map((b) => alphabet[b]).join("");
const vocab = Object.fromEntries(parts.map((p, i) => [spell(p), i]));
const added = ["<|endoftext|>", "<think>"].map((content, i) => ({ id: parts.length + i, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: i === 0 }));

// ---- Ways of splitting ----
const nfc = { type: "NFC" };
const split = (regex, behavior = "Isolated", invert = false) => ({ type: "Split", pattern: { Regex: regex }, behavior, invert });
const bytes = { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false };
const gpt2 = { ...bytes, use_regex: true };
const digits = { type: "Digits", individual_digits: true };
const sequence = (...pretokenizers) => ({ type: "Sequence", pretokenizers });
const short = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const spaces = "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const words = (n) => `${short}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|${n}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|${spaces}`;
const upper = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]", lower = "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]";
const cases = (ending, n) => `[^\\r\\n\\p{L}\\p{N}]?${upper}*${lower}+${ending}|[^\\r\\n\\p{L}\\p{N}]?${upper}+${lower}*${ending}|${n}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|${spaces}`;
const deepseek = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
const bloom = " ?[^(\\s|[.,!?…。，、।۔،])]+";

// name → { pre, normalizer, ignore, name of the GGUF's pre-tokenizer }
const families = {
  "gpt-2": { pre: gpt2 },
  "gpt-2, split": { pre: sequence(split("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"), bytes), is: "gpt-2" },
  olmo: { pre: gpt2, normalizer: nfc },
  starcoder: { pre: sequence(digits, gpt2), arch: "Qwen3ForCausalLM" },
  smollm: { pre: sequence(digits, gpt2) },
  "command-r": { pre: sequence(digits, gpt2), normalizer: nfc },
  "llama-bpe": { pre: sequence(split(words("\\p{N}{1,3}")), bytes), ignore: true },
  dbrx: { pre: sequence(split(words("\\p{N}{1,3}"), "Removed", true), bytes) },
  "dbrx, possessive": { pre: sequence(split(words("\\p{N}{1,3}").replace(short, "'(?i:[sdmt]|ll|ve|re)")), bytes), is: "dbrx" },
  "llama-bpe, classes": { pre: sequence(split(words("\\p{N}{1,3}").replace(short, "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])")), bytes), ignore: true, is: "llama-bpe" },
  qwen2: { pre: sequence(split(words("\\p{N}")), bytes), normalizer: nfc },
  hunyuan: { pre: sequence(split(words("\\p{N}")), bytes) },
  qwen35: { pre: sequence(split(`${short}|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|${spaces}`), bytes), normalizer: nfc },
  laguna: { pre: sequence(split("[^\\n]+|[\\n]+"), split(words("\\p{N}")), bytes) },
  "gpt-4o": { pre: sequence(split(cases(`${short}?`, "\\p{N}{1,3}"), "Removed", true), bytes) },
  "granite-embed-multi-97m": { pre: sequence(split(cases(`${short}?`, "\\p{N}{1,3}")), bytes), ignore: true },
  tekken: { pre: sequence(split(cases("", "\\p{N}")), bytes), ignore: true },
  tiny_aya: { pre: sequence(split("\\d{1,3}(?=(?:\\d{3})*\\b)"), split(cases(`${short}?`, "\\p{N}{1,3}")), bytes), normalizer: nfc },
  youtu: { pre: sequence(split("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"), split(cases(`${short}?`, "\\p{N}")), bytes), ignore: true },
  "deepseek-v3": { pre: sequence(split("\\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(deepseek), bytes) },
  "deepseek-coder": { pre: sequence(split("[\r\n]"), split("\\s?\\p{L}+"), split("\\s?\\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"), digits, bytes) },
  "seed-coder": { pre: sequence(split(`${short}|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|\\s+(?!\\S)|\\s+`), bytes) },
  bailingmoe: { pre: sequence(split(`${short}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+`), bytes) },
  "exaone-moe": { pre: sequence(split(`${short}|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+`), bytes) },
  "jais-2": { pre: sequence(split(`${short}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}`), bytes) },
  minicpm5: { pre: sequence(split("\\p{N}{1,3}"), split(words("\\p{N}+")), bytes), ignore: true },
  superbpe: { pre: sequence(split("\\p{N}+"), split("(?=(\\d{3})+(?!\\d))"), bytes) },
  bloom: { pre: sequence(split(bloom), bytes) },
  viking: { pre: sequence(split(bloom), digits, bytes) },
};

// ---- Comparison ----
let failures = 0, compared = 0;
const only = process.env.TENON_FAMILY;
function run(folder, texts, expected, name, is) {
  const out = folder + ".gguf", lines = texts.map((t) => JSON.stringify(t)).join("\n") + "\n";
  try {
    execFileSync(tenon, ["convert", folder, out, "--vocab-only"], { stdio: "pipe" });
  } catch (error) {
    failures++;
    return console.error(`${name}: ${error.stderr}`);
  }
  const pre = execFileSync(tenon, ["inspect", out, "--key", "tokenizer.ggml.pre"]).toString().trim();
  if (is && pre !== is) failures++, console.error(`${name}: the pre-tokenizer is called ${pre}, not ${is}`);
  const got = execFileSync(tenon, ["tokenize", out, "--parse-special", "--lines"], { input: lines, maxBuffer: 1 << 28 }).toString().split("\n");
  let bad = 0;
  texts.forEach((text, i) => {
    compared++;
    if (got[i] === expected[i]) return;
    if (bad++ < 2) console.error(`${name}: ${JSON.stringify(text)}\n  theirs ${expected[i]}\n  ours   ${got[i]}`);
  });
  // The ids of all texts, one after the other, are all texts.
  const back = execFileSync(tenon, ["detokenize", out, "--special"], { input: got.join(" "), maxBuffer: 1 << 28 });
  const whole = Buffer.from(texts.map((t) => (expected.normalized ? t.normalize("NFC") : t)).join(""));
  if (!back.equals(whole)) failures++, console.error(`${name}: the text does not come back`);
  if (bad) failures++, console.error(`${name}: ${bad} of ${texts.length} texts differ`);
}
const config = (arch, size) => ({ architectures: [arch], vocab_size: size, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 1, num_attention_heads: 4,
  num_key_value_heads: 4, head_dim: 16, max_position_embeddings: 512, rms_norm_eps: 1e-6, rope_theta: 10000, tie_word_embeddings: true, hidden_act: "silu" });
function folderOf(name, arch, files) {
  const dir = path.join(work, name.replace(/[^a-z0-9]+/g, "_"));
  fs.rmSync(dir, { recursive: true, force: true });
  fs.mkdirSync(dir);
  for (const [file, content] of Object.entries({ "config.json": config(arch, parts.length + 8), ...files }))
    fs.writeFileSync(path.join(dir, file), typeof content === "string" ? content : JSON.stringify(content));
  return dir;
}
for (const [name, family] of Object.entries(families)) {
  if (only && name !== only) continue;
  const json = { version: "1.0", truncation: null, padding: null, added_tokens: added, normalizer: family.normalizer ?? null, pre_tokenizer: family.pre, post_processor: null, decoder: bytes,
    model: { type: "BPE", dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: false, byte_fallback: false, ignore_merges: !!family.ignore,
      vocab, merges: merges.map(([a, b]) => [spell(parts[a]), spell(parts[b])]) } };
  const tokenizer = new Tokenizer(withUnicodeDigits(json), {});
  const make = randomTexts(0x2545f491, added.map((t) => t.content)), texts = Array.from({ length: count }, make);
  const expected = texts.map((t) => tokenizer.encode(t, { add_special_tokens: false }).ids.join(" "));
  expected.normalized = !!family.normalizer;
  run(folderOf(name, family.arch ?? "LlamaForCausalLM", { "tokenizer.json": json, "tokenizer_config.json": { eos_token: "<|endoftext|>" } }), texts, expected, name, family.is ?? name.split(",")[0]);
}

// ---- Ranks without merges, as Kimi's ----
// Any two adjacent parts whose bytes are a token join, the lowest rank first; a word that is a token is that token.
if (!only || only === "kimi-k2") {
  const han = (set) => `[${set}&&[^\\p{Script=Han}]]`;
  const up = han("[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"), low = han("[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"), end = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?";
  const pattern = new RegExp(`\\p{Script=Han}+|[^\\r\\n\\p{L}\\p{N}]?${up}*${low}+${end}|[^\\r\\n\\p{L}\\p{N}]?${up}+${low}*${end}|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|${spaces}`, "gv");
  const ranks = new Map(parts.map((p, i) => [p.toString("latin1"), i]));
  const encodeWord = (word) => {
    if (ranks.has(word)) return [ranks.get(word)];
    let list = [...word];
    for (;;) {
      let best = Infinity, at = -1;
      for (let i = 0; i + 1 < list.length; i++) {
        const rank = ranks.get(list[i] + list[i + 1]);
        if (rank !== undefined && rank < best) (best = rank), (at = i);
      }
      if (at < 0) return list.map((x) => ranks.get(x));
      list.splice(at, 2, list[at] + list[at + 1]);
    }
  };
  const mark = /<\|endoftext\|>|<think>/g;
  const encode = (text) => {
    const ids = [];
    let from = 0;
    const plain = (t) => { for (const [word] of t.matchAll(pattern)) ids.push(...encodeWord(Buffer.from(word).toString("latin1"))); };
    for (const m of text.matchAll(mark)) plain(text.slice(from, m.index)), ids.push(m[0] === "<think>" ? added[1].id : added[0].id), (from = m.index + m[0].length);
    plain(text.slice(from));
    return ids.join(" ");
  };
  const decoder = Object.fromEntries(added.map((t) => [t.id, { content: t.content, special: t.special }]));
  const make = randomTexts(0x2545f491, added.map((t) => t.content)), texts = Array.from({ length: count }, make);
  run(folderOf("kimi-k2", "LlamaForCausalLM", { "tiktoken.model": parts.map((p, i) => `${p.toString("base64")} ${i}\n`).join(""),
    "tokenizer_config.json": { tokenizer_class: "TikTokenTokenizer", added_tokens_decoder: decoder, eos_token: "<|endoftext|>" } }), texts, texts.map(encode), "kimi-k2", "kimi-k2");
}
console.log(`${compared} texts compared, ${failures} failures`);
process.exit(failures ? 1 : 0);
