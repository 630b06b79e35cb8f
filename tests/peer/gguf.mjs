// Compares what @huggingface/gguf reads from GGUF files with what tenon inspect --json prints.
// Usage: node gguf.mjs TENON FILE...   (run in a folder whose node_modules has the package)
import { createRequire } from "node:module";
import { execFileSync } from "node:child_process";
import { pathToFileURL } from "node:url";

const require = createRequire(pathToFileURL(process.cwd() + "/"));
const { gguf } = require("@huggingface/gguf");
const [tenon, ...files] = process.argv.slice(2);
const typeNames = ["u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "arr", "u64", "i64", "f64"];

// JSON has no 64-bit integers, infinities or invalid UTF-8: converts both sides to the same form.
function plain(value) {
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value === "bigint") return value > 9007199254740991n || value < -9007199254740991n ? String(value) : Number(value);
  if (typeof value === "number" && !Number.isFinite(value)) return String(value);
  if (typeof value === "string" && value.startsWith("\uFEFF")) return value.slice(1); // their decoder drops it
  return value;
}
function same(a, b) {
  if (Array.isArray(a)) return Array.isArray(b) && a.length === b.length && a.every((x, i) => same(x, b[i]));
  if (typeof a === "number" && typeof b === "number") return a === b || Math.fround(a) === Math.fround(b);
  return a === b;
}
let failures = 0;
function fail(file, text) {
  failures++;
  console.error(`${file}: ${text}`);
}

for (const file of files) {
  const ours = JSON.parse(execFileSync(tenon, ["inspect", file, "--json", "--part"], { maxBuffer: 1 << 30 }));
  const { typedMetadata, tensorInfos, tensorDataOffset } = await gguf(file, { allowLocalFile: true, typedMetadata: true });
  const keys = Object.keys(typedMetadata).filter((k) => !["version", "tensor_count", "kv_count"].includes(k));
  if (Number(typedMetadata.version.value) !== ours.version) fail(file, "version differs");
  if (keys.length !== Object.keys(ours.metadata).length) fail(file, `${keys.length} keys there, ${Object.keys(ours.metadata).length} here`);
  for (const key of keys) {
    const { value, type, subType } = typedMetadata[key];
    // The element type of an empty array is not reported.
    const name = typeNames[type] === "arr" ? (value.length ? `${typeNames[subType]}[]` : ours.metadata_types[key]) : typeNames[type];
    if (name !== ours.metadata_types[key]) fail(file, `${key}: type ${name} there, ${ours.metadata_types[key]} here`);
    if (!same(plain(value), plain(ours.metadata[key]))) fail(file, `${key}: values differ`);
  }
  if (tensorInfos.length !== ours.tensors.length) fail(file, `${tensorInfos.length} tensors there, ${ours.tensors.length} here`);
  tensorInfos.forEach((t, i) => {
    const o = ours.tensors[i];
    const offset = Number(t.offset) + Number(tensorDataOffset);
    if (!o || t.name !== o.name || t.dtype !== o.type_id || offset !== o.offset || !same(t.shape.map(Number), o.shape))
      fail(file, `tensor ${i}: ${t.name} [${t.shape}] type ${t.dtype} at ${offset} there, ${JSON.stringify(o)} here`);
  });
}
console.log(`${files.length} files compared, ${failures} differences`);
process.exit(failures ? 1 : 0);
