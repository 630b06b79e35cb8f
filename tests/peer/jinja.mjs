// jinja.mjs TENON FOLDER COUNT: renders random dialogs with every template of a folder, by tenon and by
// @huggingface/jinja, and compares the output if the peer supports the template.
import { Template } from "@huggingface/jinja";
import { spawnSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";

const [tenon, folder, count] = process.argv.slice(2);
// Both use the same time.
const RealDate = Date;
globalThis.Date = class extends RealDate {
  constructor(...args) {
    if (args.length) super(...args);
    else super(2026, 10, 15, 12, 0, 0);
  }
};
process.env.TENON_NOW = "2026-11-15T12:00:00";

// Known differences of the peer from jinja2, with which tenon agrees: it does not escape text added to safe strings, its
// lstrip and rstrip ignore their argument, and it compares dicts by identity.
const differs = new Set([
  "meetkai-functionary-medium-v3.1.jinja",
  "HuggingFaceTB-SmolLM3-3B.jinja",
  "Qwen-QwQ-32B.jinja",
  "Mistral-Small-3.2-24B-Instruct-2506.jinja",
  "mistralai-Mistral-Nemo-Instruct-2407.jinja",
]);

let seed = 12345;
const random = () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
const pick = (list) => list[Math.floor(random() * list.length)];
const texts = ["Hi", "  padded \n", "ünï «x» 日本 😀", "a\nb\n\nc", "it's \"quoted\" \\ <b>&</b>\t", "<think>hm</think>answer"];

function dialog() {
  const messages = random() < 0.5 ? [{ role: "system", content: pick(texts) }] : [];
  const turns = 1 + Math.floor(random() * 3);
  for (let i = 0; i < turns; i++) {
    messages.push({ role: "user", content: pick(texts) });
    if (i + 1 < turns) messages.push({ role: "assistant", content: pick(texts) });
  }
  const tool = { type: "function", function: { name: "f", description: pick(texts), parameters: { type: "object",
    properties: { x: { type: "string", description: pick(texts) }, n: { type: "integer" } }, required: ["x"] } } };
  if (random() < 0.3) {
    messages.push({ role: "assistant", content: "", tool_calls: [{ id: "call00001", type: "function",
      function: { name: "f", arguments: { x: pick(texts), n: 3 } } }] });
    messages.push({ role: "tool", tool_call_id: "call00001", name: "f", content: pick(texts) });
  }
  return { messages, bos_token: "<s>", eos_token: "</s>", add_generation_prompt: random() < 0.7, ...(random() < 0.5 ? { tools: [tool] } : {}) };
}

let same = 0, unsupported = 0, different = 0;
const dialogs = Array.from({ length: Number(count) }, dialog);
const files = readdirSync(folder).filter((name) => name.endsWith(".jinja") && !differs.has(name));
for (const file of files) {
  const source = readFileSync(`${folder}/${file}`, "utf8");
  for (const variables of dialogs) {
    let expected;
    try {
      expected = new Template(source).render(structuredClone(variables));
    } catch {
      unsupported++;
      continue;
    }
    const run = spawnSync(tenon, ["render", `${folder}/${file}`, "-"], { input: JSON.stringify(variables), encoding: "utf8" });
    if (run.status === 0 && run.stdout === expected) same++;
    else if (run.status !== 0 && /unsafe|not JSON serializable|undefined|can only concatenate/.test(run.stderr)) unsupported++; // stricter, like jinja2
    else if (different++ < 5) console.log(`${file}: ${JSON.stringify(variables)}\n  peer:  ${JSON.stringify(expected)}\n  tenon: ${run.status === 0 ? JSON.stringify(run.stdout) : run.stderr}`);
  }
}
console.log(`${same} renders identical, ${unsupported} not supported by one of the two, ${different} different`);
process.exit(different || same < (dialogs.length * files.length) / 2 ? 1 : 0);
