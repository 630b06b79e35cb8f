// schema.mjs FILE: checks documents against their schemas with ajv; the file has a schema, then a document as a JSON
// string, on a line each. Prints their number; fails if one is not valid.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(process.cwd() + "/");
const Ajv = require("ajv/dist/2020").default;
const formats = require("ajv-formats").default;

const lines = readFileSync(process.argv[2], "utf8").split("\n").slice(0, -1);
const compiled = new Map();
let wrong = 0;
for (let i = 0; i + 1 < lines.length; i += 2) {
  const [schema, text] = [lines[i], JSON.parse(lines[i + 1])];
  if (!compiled.has(schema)) {
    // Random schemas may name a property twice, which tenon allows.
    const ajv = new Ajv({ strict: false, logger: false, validateSchema: false });
    formats(ajv);
    compiled.set(schema, ajv.compile(JSON.parse(schema)));
  }
  const validate = compiled.get(schema);
  if (validate(JSON.parse(text))) continue;
  if (wrong++ < 5) console.log(`${text}\nis not valid for\n${schema}\n${JSON.stringify(validate.errors)}\n`);
}
console.log(`${compiled.size} schemas, ${lines.length / 2} documents, ${wrong} not valid`);
process.exit(wrong || compiled.size < 1000 ? 1 : 0);
