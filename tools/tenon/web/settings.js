// Settings: sampling, the format of answers, presets. The server's values are the defaults; only changed ones are sent.
import { loadItem, saveItem } from "./store.js";

// Sampling fields of requests by group; texts about them are in the language tables (help_NAME).
export const fields = [
  { name: "temperature", group: "main", min: 0, max: 5, step: 0.05 },
  { name: "top_p", group: "main", min: 0, max: 1, step: 0.01 },
  { name: "top_k", group: "main", min: 0, max: 100000, step: 1 },
  { name: "min_p", group: "main", min: 0, max: 1, step: 0.01 },
  { name: "max_tokens", group: "main", min: -1, max: 1000000, step: 1 },
  { name: "seed", group: "main", min: -1, max: 2 ** 53 - 1, step: 1 },
  { name: "repeat_penalty", group: "repetition", min: 0, max: 10, step: 0.05 },
  { name: "repeat_last_n", group: "repetition", min: -1, max: 1000000, step: 1 },
  { name: "presence_penalty", group: "repetition", min: -2, max: 2, step: 0.05 },
  { name: "frequency_penalty", group: "repetition", min: -2, max: 2, step: 0.05 },
  { name: "dry_multiplier", group: "repetition", min: 0, max: 10, step: 0.05 },
  { name: "dry_base", group: "repetition", min: 1, max: 10, step: 0.05 },
  { name: "dry_allowed_length", group: "repetition", min: 0, max: 1000, step: 1 },
  { name: "typical_p", group: "more", min: 0, max: 1, step: 0.01 },
  { name: "top_n_sigma", group: "more", min: 0, max: 10, step: 0.1 },
  { name: "xtc_probability", group: "more", min: 0, max: 1, step: 0.01 },
  { name: "xtc_threshold", group: "more", min: 0, max: 1, step: 0.01 },
  { name: "dynatemp_range", group: "more", min: 0, max: 5, step: 0.05 },
  { name: "dynatemp_exponent", group: "more", min: 0, max: 10, step: 0.1 },
  { name: "mirostat", group: "more", min: 0, max: 2, step: 1 },
  { name: "mirostat_tau", group: "more", min: 0, max: 20, step: 0.1 },
  { name: "mirostat_eta", group: "more", min: 0, max: 1, step: 0.01 },
];
export const builtInPresets = {
  presetPrecise: { temperature: 0.2, top_p: 0.9 },
  presetCreative: { temperature: 1.2, min_p: 0.08 },
  presetExact: { temperature: 0, seed: 1 },
};

export const settings = { values: {}, format: { kind: "none", text: "" }, presets: {}, system: "", fullContext: "ask" };

export function loadSettings() {
  const { system, ...rest } = loadItem("web", {});
  Object.assign(settings, rest, { system: system ?? "" });
}
export function saveSettings() {
  saveItem("web", settings);
}
export function setValue(name, value) {
  if (value === undefined || value === "" || Number.isNaN(Number(value))) delete settings.values[name];
  else settings.values[name] = Number(value);
  saveSettings();
}

// The fields of a request that differ from the server's settings. Throws an Error for a schema that is not JSON.
export function requestFields() {
  const body = { ...settings.values }, { kind, text } = settings.format;
  if (kind === "json") body.response_format = { type: "json_object" };
  else if (kind === "schema" && text.trim()) body.json_schema = JSON.parse(text);
  else if (kind === "grammar" && text.trim()) body.grammar = text;
  return body;
}
