// A server for tests of the web UI: its files from the source folder, and answers as a test wants them.
//   const stub = await startStub();   stub.url, stub.requests, stub.close()
//   stub.next = { text, reasoning, calls, rate, pieces, finish, cutAfter, status, error, delay, usage }
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { dirname, extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

const folder = join(dirname(fileURLToPath(import.meta.url)), "../../tools/tenon/web");
const types = { ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".woff2": "font/woff2", ".txt": "text/plain", ".svg": "image/svg+xml" };
export const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; worker-src 'self'; " +
  "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
// Tokens of the stub: words with the space before them.
export const tokensOf = (text) => text.match(/\s*\S{1,8}|\s+$/g) ?? [];

export const chatRequests = (stub) => stub.requests.filter(({ path }) => path === "/v1/chat/completions");

export async function startStub(options = {}) {
  const stub = { requests: [], next: {}, context: 4096, key: "", memory: null, ...options };
  const server = createServer((request, response) => answer(stub, request, response).catch(() => response.destroy()));
  await new Promise((resolve) => server.listen(stub.port ?? 0, "127.0.0.1", resolve));
  stub.port = server.address().port;
  stub.url = `http://127.0.0.1:${stub.port}/`;
  stub.close = () => new Promise((resolve) => {
    server.closeAllConnections();
    server.close(resolve);
  });
  return stub;
}

async function answer(stub, request, response) {
  const path = new URL(request.url, stub.url).pathname;
  const json = (value, status = 200) => response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(value));
  const file = path === "/" ? "/index.html" : path;
  if (request.method === "GET" && types[extname(file)]) {
    const bytes = await readFile(join(folder, normalize(file))).catch(() => null);
    if (!bytes) return response.writeHead(404).end();
    return response.writeHead(200, { "Content-Type": types[extname(file)], "Content-Security-Policy": policy }).end(bytes);
  }
  if (stub.key && request.headers.authorization !== "Bearer " + stub.key)
    return json({ error: { code: 401, type: "authentication_error", message: "missing or invalid API key" } }, 401);
  let body = "";
  for await (const chunk of request) body += chunk;
  const asked = body ? JSON.parse(body) : {};
  stub.requests.push({ path, body: asked });
  switch (path) {
  case "/v1/models": return json({ data: (stub.models ?? ["stub"]).map((id) => ({ id, status: { value: stub.unloaded?.has(id) ? "unloaded" : "loaded" }, meta: { n_params: 7.6e9, n_ctx_train: 32768, size: 4e9 } })) });
  case "/models/load": {
    await sleep(300);
    if (stub.tooLarge === asked.model) return json({ error: { code: 503, message: "the model does not fit" } }, 503);
    stub.unloaded.delete(asked.model);
    return json({ success: true });
  }
  case "/props": return stub.unloaded?.has(new URL(request.url, stub.url).searchParams.get("model")) ? json({ role: "router", build_info: "stub" }) : json({ default_generation_settings: { n_ctx: stub.context, params: { temperature: 0.800000011920929, top_k: 40, top_p: 0.95, min_p: 0.05, max_tokens: -1, seed: -1,
    repeat_penalty: 1, repeat_last_n: 64 } }, total_slots: 4, chat_template: "x", build_info: "stub" });
  case "/tokenize": await sleep(stub.slowTokenize ?? 0); return json({ tokens: tokensOf(asked.content).map((_, i) => i) });
  case "/apply-template": return json({ prompt: asked.messages.map(({ role, content }) => `<${role}>${content}`).join("\n") + "\n<assistant>" });
  case "/memory": return stub.memory ? json(stub.memory) : json({ error: { code: 503, message: "no model" } }, 503);
  case "/v1/chat/completions":
  case "/completion":
    stub.unloaded?.delete(asked.model);
    return generate(stub, path, asked, response, json);
  default: return stub.other?.(path, asked, response, json) ?? json({ error: { code: 404, message: "unknown path" } }, 404);
  }
}

async function generate(stub, path, asked, response, json) {
  const next = typeof stub.next === "function" ? stub.next(asked, path) : stub.next;
  const { text = "", reasoning = "", calls = [], rate = 2000, finish = "stop", cutAfter = Infinity, status = 200, error, delay = 0 } = next;
  if (delay) await sleep(delay);
  if (status !== 200) return json({ error: { code: status, message: error ?? "refused", type: next.type } }, status);
  if (!asked.stream) return json({ choices: [{ message: { role: "assistant", content: text }, finish_reason: finish }] });
  response.writeHead(200, { "Content-Type": "text/event-stream" });
  const native = path === "/completion";
  const send = (value) => response.write(`data: ${typeof value === "string" ? value : JSON.stringify(value)}\n\n`);
  const chat = (delta, more = {}) => send({ choices: [{ index: 0, delta, finish_reason: null, ...more }] });
  const pieces = next.pieces ?? tokensOf(text), thoughts = tokensOf(reasoning);
  const start = performance.now();
  let sent = 0;
  const pace = async () => {
    sent++;
    const due = start + sent / rate * 1000;
    if (due > performance.now() + 2) await sleep(due - performance.now());
    return response.destroyed;
  };
  if (next.progress && asked.return_progress) {
    send({ choices: [], prompt_progress: next.progress });
    await sleep(1200);
  }
  for (const piece of thoughts) { chat({ reasoning_content: piece }); if (await pace()) return; }
  for (const [i, call] of calls.entries()) {
    chat({ tool_calls: [{ index: i, id: call.id ?? "c" + i, function: { name: call.name, arguments: "" } }] });
    for (const piece of call.arguments.match(/.{1,6}/gs) ?? []) { chat({ tool_calls: [{ index: i, function: { arguments: piece } }] }); if (await pace()) return; }
  }
  for (const [i, piece] of pieces.entries()) {
    if (i >= cutAfter) {
      await sleep(200); // what was sent arrives
      return response.destroy();
    }
    if (native) send({ content: piece, stop: false });
    else chat({ content: piece });
    if (await pace()) return;
  }
  const prompt = tokensOf(JSON.stringify(asked.messages ?? asked.prompt)).length;
  const timings = { cache_n: 3, prompt_n: prompt - 3, predicted_n: pieces.length, predicted_per_second: rate, prompt_per_second: 5000, ...next.timings };
  if (native) send({ content: "", stop: true, stop_type: finish === "length" ? "limit" : "eos", timings });
  else {
    chat({}, { finish_reason: finish });
    send({ choices: [], usage: { prompt_tokens: prompt, completion_tokens: pieces.length, total_tokens: prompt + pieces.length, ...next.usage }, timings });
    send("[DONE]");
  }
  response.end();
}
