// Texts of the web UI in the chosen language. Tables are in languages/; {name} in a text is replaced by a value. A text that is
// different for one has a second form, keyOne, which is taken when {n} is 1.
import en from "./languages/en.js";

const languages = { en: "English", de: "Deutsch" };
let table = en, code = "en";

export function t(key, values = {}) {
  const text = (String(values.n) === "1" && table[key + "One"]) || (table[key] ?? en[key] ?? key);
  return text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
}
export const languageNames = languages;
export const language = () => code;
export const number = (value, digits = 0) => Number(value).toLocaleString(code, { maximumFractionDigits: digits, minimumFractionDigits: digits });
export const percent = (share) => share.toLocaleString(code, { style: "percent" });

// The chosen language, or the first of the browser's languages that there is.
export async function loadLanguage(chosen) {
  code = [chosen, ...(navigator.languages ?? [])].map((name) => String(name ?? "").slice(0, 2)).find((name) => name in languages) ?? "en";
  table = code === "en" ? en : (await import(`./languages/${code}.js`)).default;
  document.documentElement.lang = code;
  translate(document);
}

// Fills in elements that name their text: data-text, and attributes in data-label, data-title and data-hint.
export function translate(root) {
  for (const node of root.querySelectorAll("[data-text]")) node.textContent = t(node.dataset.text);
  for (const [name, attribute] of [["label", "aria-label"], ["title", "title"], ["hint", "placeholder"]])
    for (const node of root.querySelectorAll(`[data-${name}]`)) node.setAttribute(attribute, t(node.dataset[name]));
}
