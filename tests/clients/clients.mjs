// Clients from npm talk to a server: node clients.mjs URL. Prints a table of what each of them did; fails when one could not.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { InferenceClient } from "@huggingface/inference";
import { ChatOpenAI, OpenAIEmbeddings } from "@langchain/openai";
import { OpenAI as LlamaOpenAI } from "@llamaindex/openai";
import { embedMany, generateObject, generateText, streamText, tool } from "ai";
import { Ollama } from "ollama";
import OpenAI from "openai";
import { z } from "zod";

const url = process.argv[2], apiKey = "secret", model = "any";
const user = [{ role: "user", content: "Tell a story" }];
const results = [];
async function seen(client, what, run) {
  try {
    const note = await run();
    results.push([client, what, "yes", note ?? ""]);
  } catch (error) {
    results.push([client, what, "NO", String(error?.stack ?? error).split("\n").slice(0, 3).join(" ")]);
  }
}
async function joined(stream, pick) {
  let text = "";
  for await (const part of stream) text += pick(part) ?? "";
  assert.ok(text.length > 0);
  return text;
}
const schema = { type: "object", properties: { kind: { enum: ["cat", "dog"] } }, required: ["kind"], additionalProperties: false };
const look = { type: "function", function: { name: "look", parameters: { type: "object", properties: {}, additionalProperties: false } } };

const openai = new OpenAI({ baseURL: url + "/v1", apiKey, maxRetries: 0 });
const base = { model, messages: user, temperature: 0, max_tokens: 12 };
await seen("openai", "chat", async () => assert.ok((await openai.chat.completions.create(base)).choices[0].message.content));
await seen("openai", "streaming", async () => { await joined(await openai.chat.completions.create({ ...base, stream: true }), c => c.choices[0]?.delta.content); });
await seen("openai", "schema", async () => {
  const r = await openai.chat.completions.create({ ...base, max_tokens: 60, response_format: { type: "json_schema", json_schema: { name: "pet", schema } } });
  if (r.choices[0].finish_reason === "stop") assert.ok(["cat", "dog"].includes(JSON.parse(r.choices[0].message.content).kind));
});
await seen("openai", "streamed tool call", async () => {
  let name = "", text = "";
  for await (const c of await openai.chat.completions.create({ ...base, max_tokens: 150, tools: [look], tool_choice: "required", stream: true })) {
    const d = c.choices[0]?.delta.tool_calls?.[0];
    name += d?.function?.name ?? "";
    text += d?.function?.arguments ?? "";
  }
  if (name) assert.equal(name, "look");
  return name ? "complete: " + text : "cut off before the call";
});
await seen("openai", "cut-off tool call", async () => {
  const r = await openai.chat.completions.create({ ...base, max_tokens: 4, tools: [look], tool_choice: "required" });
  assert.equal(r.choices[0].finish_reason, "length");
});
await seen("openai", "embeddings", async () => assert.equal((await openai.embeddings.create({ model, input: ["a", "b"] })).data[1].embedding.length, 288));
await seen("openai", "responses", async () => assert.ok((await openai.responses.create({ model, input: "Tell", max_output_tokens: 8 })).output_text));
await seen("openai", "model", async () => assert.ok((await openai.models.retrieve((await openai.models.list()).data[0].id)).id));
await seen("openai", "error", async () => {
  await assert.rejects(openai.chat.completions.create({ model, messages: [] }), e => e.status === 400);
  await assert.rejects(openai.models.retrieve("zzz"), e => e.status === 404 && e.code === "model_not_found");
});

const anthropic = new Anthropic({ baseURL: url, apiKey, maxRetries: 0 });
const told = { model, max_tokens: 12, messages: user };
await seen("@anthropic-ai/sdk", "chat", async () => assert.equal((await anthropic.messages.create(told)).content[0].type, "text"));
await seen("@anthropic-ai/sdk", "streaming", async () => assert.equal((await anthropic.messages.stream(told).finalMessage()).stop_reason, "max_tokens"));
await seen("@anthropic-ai/sdk", "counting", async () => assert.ok((await anthropic.messages.countTokens({ model, messages: user })).input_tokens > 3));
await seen("@anthropic-ai/sdk", "tools", async () => {
  const r = await anthropic.messages.create({ ...told, max_tokens: 150, tools: [{ name: "look", input_schema: { type: "object", properties: {} } }], tool_choice: { type: "any" } });
  return r.stop_reason;
});
await seen("@anthropic-ai/sdk", "error", async () => {
  await assert.rejects(anthropic.messages.create({ ...told, messages: [{ role: "user", content: [{ type: "image", source: { type: "base64", media_type: "image/png", data: "eA==" } }] }] }),
    e => e.status === 400 && e.error.type === "error" && e.error.error.type === "invalid_request_error");
});

for (const [name, chat] of [
  ["ai, openai", createOpenAI({ baseURL: url + "/v1", apiKey }).chat(model)],
  ["ai, openai responses", createOpenAI({ baseURL: url + "/v1", apiKey }).responses(model)],
  ["ai, anthropic", createAnthropic({ baseURL: url + "/v1", apiKey })(model)],
  ["ai, openai-compatible", createOpenAICompatible({ name: "tenon", baseURL: url + "/v1", apiKey, supportsStructuredOutputs: true }).chatModel(model)],
]) {
  const ask = { model: chat, messages: user, maxOutputTokens: 12, maxRetries: 0 };
  await seen(name, "chat", async () => assert.ok((await generateText(ask)).text));
  await seen(name, "streaming", async () => { await joined(streamText(ask).textStream, t => t); });
  await seen(name, "tools", async () => { await generateText({ ...ask, maxOutputTokens: 60, tools: { look: tool({ inputSchema: z.object({}) }) } }); });
  if (name !== "ai, anthropic")
    await seen(name, "schema", async () => {
      try { await generateObject({ ...ask, maxOutputTokens: 80, schema: z.object({ kind: z.enum(["cat", "dog"]) }) }); } catch (error) { if (!/parse|No object/.test(String(error))) throw error; return "cut off"; }
    });
}
await seen("ai, openai", "embeddings", async () => {
  const r = await embedMany({ model: createOpenAI({ baseURL: url + "/v1", apiKey }).embedding(model), values: ["a", "b"], maxRetries: 0 });
  assert.equal(r.embeddings.length, 2);
});

const configuration = { baseURL: url + "/v1" };
const langchain = new ChatOpenAI({ model, apiKey, configuration, maxTokens: 12, maxRetries: 0 });
await seen("@langchain/openai", "chat", async () => assert.ok((await langchain.invoke("Tell")).content));
await seen("@langchain/openai", "streaming", async () => { await joined(await langchain.stream("Tell"), c => c.content); });
await seen("@langchain/openai", "tools", async () => { await langchain.bindTools([look]).invoke("Tell"); });
await seen("@langchain/openai", "embeddings", async () => assert.equal((await new OpenAIEmbeddings({ model, apiKey, configuration, maxRetries: 0 }).embedQuery("a")).length, 288));

const llama = new LlamaOpenAI({ model: "gpt-4o-mini", apiKey, baseURL: url + "/v1", maxTokens: 12, maxRetries: 0 });
await seen("llamaindex", "chat", async () => assert.ok((await llama.chat({ messages: user })).message.content));
await seen("llamaindex", "streaming", async () => { await joined(await llama.chat({ messages: user, stream: true }), c => c.delta); });

const hf = new InferenceClient(apiKey, { endpointUrl: url });
await seen("@huggingface/inference", "chat", async () => assert.ok((await hf.chatCompletion({ model, messages: user, max_tokens: 8 })).choices[0].message.content));
await seen("@huggingface/inference", "streaming", async () => { await joined(hf.chatCompletionStream({ model, messages: user, max_tokens: 8 }), c => c.choices[0]?.delta.content); });

const ollama = new Ollama({ host: url, headers: { Authorization: "Bearer " + apiKey } });
const options = { num_predict: 12, temperature: 0 };
await seen("ollama", "chat", async () => assert.ok((await ollama.chat({ model, messages: user, options })).message.content));
await seen("ollama", "streaming", async () => { await joined(await ollama.chat({ model, messages: user, options, stream: true }), c => c.message.content); });
await seen("ollama", "generate", async () => assert.ok((await ollama.generate({ model, prompt: "Once", options })).response));
await seen("ollama", "tools", async () => { await ollama.chat({ model, messages: user, options, tools: [look] }); });
await seen("ollama", "schema", async () => { await ollama.chat({ model, messages: user, options, format: schema }); });
await seen("ollama", "embeddings", async () => assert.equal((await ollama.embed({ model, input: ["a", "b"] })).embeddings.length, 2));
await seen("ollama", "models", async () => {
  assert.equal((await ollama.list()).models.length, 1);
  assert.ok((await ollama.show({ model })).capabilities.includes("completion"));
  assert.equal((await ollama.ps()).models.length, 1);
});
await seen("ollama", "error", async () => { await assert.rejects(ollama.chat({ model, messages: [] }), e => e.status_code === 400 && /messages/.test(e.error)); });

for (const [client, what, yes, note] of results) console.log(`${client.padEnd(24)} ${what.padEnd(20)} ${yes.padEnd(4)} ${note}`);
process.exit(results.some(r => r[2] !== "yes") ? 1 : 0);
