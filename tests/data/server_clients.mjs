// A scripted conversation through the official clients: node server_clients.mjs URL
import assert from "node:assert/strict";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";

const url = process.argv[2];
const openai = new OpenAI({ baseURL: url + "/v1", apiKey: "secret", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "secret", maxRetries: 0 });
const messages = [{ role: "user", content: "Tell a story" }];
const base = { model: "any", messages, temperature: 0, max_tokens: 12 };

const models = await openai.models.list();
assert.equal(models.data[0].id, "stories15M-f16");

const plain = await openai.chat.completions.create(base);
assert.equal(plain.choices[0].finish_reason, "length");
assert.equal(plain.usage.completion_tokens, 12);
const text = plain.choices[0].message.content;
assert.ok(text.length > 10);

const stream = await openai.chat.completions.create({ ...base, stream: true, stream_options: { include_usage: true } });
let streamed = "", usage = null;
for await (const chunk of stream) {
  streamed += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(streamed, text);
assert.equal(usage.completion_tokens, 12);

const schema = { type: "object", properties: { kind: { enum: ["cat", "dog"] } }, required: ["kind"], additionalProperties: false };
const json = await openai.chat.completions.create({
  ...base, max_tokens: 120, seed: 1, response_format: { type: "json_schema", json_schema: { name: "pet", schema } } });
if (json.choices[0].finish_reason === "stop") assert.ok(["cat", "dog"].includes(JSON.parse(json.choices[0].message.content).kind));

const likely = await openai.chat.completions.create({ ...base, max_tokens: 2, logprobs: true, top_logprobs: 3 });
assert.equal(likely.choices[0].logprobs.content.length, 2);
assert.equal(likely.choices[0].logprobs.content[0].top_logprobs.length, 3);

const tools = [{ type: "function", function: { name: "look", parameters: { type: "object", properties: {}, additionalProperties: false } } }];
const call = await openai.chat.completions.create({ ...base, max_tokens: 150, tools, tool_choice: "required" });
const made = call.choices[0].message.tool_calls;
if (made) {
  assert.equal(made[0].function.name, "look");
  assert.deepEqual(JSON.parse(made[0].function.arguments), {});
  const next = await openai.chat.completions.create({
    ...base, tools, messages: [...messages, call.choices[0].message, { role: "tool", tool_call_id: made[0].id, content: "a cat" }] });
  assert.ok(next.choices[0].message);
}

const completion = await openai.completions.create({ model: "any", prompt: "Once upon a time", echo: true, logprobs: 1, max_tokens: 1, temperature: 0 });
assert.equal(completion.choices[0].text, "Once upon a time,");
assert.equal(completion.choices[0].logprobs.token_logprobs.length, 6);

const response = await openai.responses.create({ model: "any", input: "Tell a story", max_output_tokens: 12, temperature: 0 });
assert.equal(response.output_text, text);
let events = "";
for await (const event of await openai.responses.create({ model: "any", input: "Tell a story", max_output_tokens: 12, temperature: 0, stream: true }))
  if (event.type === "response.output_text.delta") events += event.delta;
assert.equal(events, text);

const vectors = await openai.embeddings.create({ model: "any", input: ["a cat", "a kitten", "seven"] });
assert.equal(vectors.data.length, 3);
assert.equal(vectors.data[2].embedding.length, Number(process.env.WIDTH));
const floats = await openai.embeddings.create({ model: "any", input: "a cat", encoding_format: "float" });
floats.data[0].embedding.forEach((x, i) => assert.ok(Math.abs(x - vectors.data[0].embedding[i]) < 1e-4));
assert.ok(Math.abs(floats.data[0].embedding.reduce((sum, x) => sum + x * x, 0) - 1) < 1e-4);
await assert.rejects(openai.embeddings.create({ model: "any", input: "" , dimensions: 3 }), (error) => error.status === 400);
await assert.rejects(openai.chat.completions.create({ ...base, messages: [] }), (error) => error.status === 400);
const stranger = new OpenAI({ baseURL: url + "/v1", apiKey: "wrong", maxRetries: 0 });
await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);

const message = await anthropic.messages.create({ model: "any", max_tokens: 12, temperature: 0, messages });
assert.equal(message.content[0].text, text);
assert.equal(message.stop_reason, "max_tokens");
const spoken = await anthropic.messages.stream({ model: "any", max_tokens: 12, temperature: 0, messages }).finalMessage();
assert.equal(spoken.content[0].text, text);
assert.equal(spoken.usage.output_tokens, 12);
const used = await anthropic.messages.create({
  model: "any", max_tokens: 150, temperature: 0, messages, tool_choice: { type: "any" },
  tools: [{ name: "look", input_schema: tools[0].function.parameters }] });
const use = used.content.find((part) => part.type === "tool_use");
if (use) assert.deepEqual(use.input, {});
console.log("server_clients: passed; tool calls", made ? "made" : "truncated", "and", use ? "made" : "truncated");
