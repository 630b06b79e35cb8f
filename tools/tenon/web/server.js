// The server's other answers: models, settings, token counts.
import { checkedResponse } from "./stream.js";
import { loadItem, saveItem } from "./store.js";

export const server = {
  models: [],        // of /v1/models
  model: "",         // the chosen one
  defaults: {},      // sampling settings that the server uses when a request names none
  isLoaded: false,   // requests load the chosen model, if it is not
  context: 0,        // tokens that one conversation can have
  hasTemplate: true,
  slots: 0,
  version: "",
};

export function requestHeaders() {
  const headers = { "Content-Type": "application/json" }, key = loadItem("key", "");
  if (key) headers.Authorization = "Bearer " + key;
  return headers;
}

export const modelQuery = () => (server.model ? "?model=" + encodeURIComponent(server.model) : "");

export async function getJSON(path, signal) {
  return (await checkedResponse(await fetch(path + modelQuery(), { headers: requestHeaders(), signal }))).json();
}

export async function postJSON(path, body, signal) {
  const response = await fetch(path, { method: "POST", headers: requestHeaders(), body: JSON.stringify({ model: server.model, ...body }), signal });
  return (await checkedResponse(response)).json();
}

export async function loadModels() {
  server.models = (await getJSON("v1/models")).data ?? [];
  const chosen = loadItem("model", ""), loaded = server.models.find(({ status }) => status?.value === "loaded");
  server.model = (server.models.find(({ id }) => id === chosen) ?? loaded ?? server.models[0])?.id ?? "";
}

export function chooseModel(id) {
  server.model = id;
  saveItem("model", id);
}

// A server of several models says nothing about one that is not loaded.
export async function loadProperties() {
  const { default_generation_settings: given, chat_template: template, total_slots: slots, build_info: version } = await getJSON("props");
  Object.assign(server, { isLoaded: !!given, context: given?.n_ctx ?? 0, defaults: roundFloats(given?.params ?? {}), hasTemplate: !given || !!template, slots: slots ?? 0, version: version ?? "" });
}

// Loads the chosen model, which takes as long as it takes. Throws when it cannot be loaded.
export async function loadModel(changed) {
  const id = server.model, state = () => server.models.find((model) => model.id === id)?.status?.value;
  await postJSON("models/load", {});
  for (;;) {
    await loadModels();
    changed();
    if (state() !== "loading" || server.model !== id) break;
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

// The server's numbers are 32-bit floats: 0.8 arrives as 0.80000001192092896.
function roundFloats(values) {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, typeof value === "number" ? Number(value.toPrecision(7)) : value]));
}

const counted = new Map(); // text → tokens, of the last texts
export async function countTokens(text, signal) {
  if (!text) return 0;
  const key = server.model + "\n" + text;
  if (!counted.has(key)) {
    const { tokens } = await postJSON("tokenize", { content: text, add_special: false }, signal);
    if (counted.size > 50) counted.delete(counted.keys().next().value);
    counted.set(key, tokens.length);
  }
  return counted.get(key);
}

export async function countPrompt(messages, signal) {
  const { prompt } = await postJSON("apply-template", { messages }, signal);
  return countTokens(prompt, signal);
}
