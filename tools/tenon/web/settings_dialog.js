// The dialog of settings. Values that differ from the server's are marked and can be reset one by one.
import { $, element, iconButton, toast } from "./dom.js";
import { language, languageNames, number, t } from "./i18n.js";
import { builtInPresets, fields, saveSettings, settings, setValue } from "./settings.js";
import { server } from "./server.js";
import { loadItem, saveItem } from "./store.js";
import { open } from "./conversation.js";

let hooks = { key() {}, language() {}, system() {}, theme() {} };

export function initSettings(handlers) {
  hooks = handlers;
  $("settings-open").addEventListener("click", () => openSettings());
  $("settings-close").addEventListener("click", () => $("settings").close());
  $("settings").addEventListener("click", (event) => { if (event.target === $("settings")) $("settings").close(); });
  $("key").addEventListener("change", () => {
    saveItem("key", $("key").value || undefined);
    hooks.key();
  });
  $("system").addEventListener("input", () => hooks.system($("system").value));
  $("system-default").addEventListener("click", () => {
    settings.system = $("system").value;
    saveSettings();
    toast(t("saved"), null, null, 3);
  });
  $("format").addEventListener("change", () => {
    settings.format.kind = $("format").value;
    saveSettings();
    drawFormat();
  });
  $("format-text").addEventListener("input", () => {
    settings.format.text = $("format-text").value;
    saveSettings();
    drawFormat();
  });
  $("theme-choice").addEventListener("change", () => hooks.theme($("theme-choice").value));
  $("language").addEventListener("change", () => hooks.language($("language").value));
  $("preset").addEventListener("change", choosePreset);
  $("preset-save").addEventListener("click", savePreset);
  $("preset-delete").addEventListener("click", () => {
    delete settings.presets[$("preset").value];
    saveSettings();
    drawPresets();
  });
  $("reset").addEventListener("click", () => {
    settings.values = {};
    saveSettings();
    drawSettings();
  });
}

// Opens the dialog, at a field where one is named.
export function openSettings(field) {
  drawSettings();
  if (!$("settings").open) $("settings").showModal();
  if (!field) return;
  for (let node = $(field); node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
  $(field)?.focus();
  $(field)?.scrollIntoView({ block: "center" });
}

export function drawSettings() {
  $("key").value = loadItem("key", "");
  $("system").value = open.conversation?.system ?? settings.system;
  $("format").value = settings.format.kind;
  $("format-text").value = settings.format.text;
  $("language").replaceChildren(...Object.entries(languageNames).map(([code, name]) => new Option(name, code, false, code === language())));
  $("theme-choice").replaceChildren(...["", "light", "dark"].map((name) => new Option(t("theme_" + (name || "system")), name)));
  $("theme-choice").value = document.documentElement.dataset.theme ?? "";
  $("about").textContent = server.version;
  drawFormat();
  drawPresets();
  for (const group of ["main", "repetition", "more"])
    $("fields-" + group).replaceChildren(...fields.filter((field) => field.group === group).map(fieldNode));
  drawChanged();
}

function drawChanged() {
  const n = Object.keys(settings.values).length + (settings.format.kind !== "none" ? 1 : 0);
  $("changed").textContent = n ? t("changedSettings", { n }) : t("serverSettings");
  $("reset").hidden = !Object.keys(settings.values).length;
  $("settings-open").classList.toggle("marked", n > 0);
}
export const markSettings = drawChanged;

function fieldNode({ name, min, max, step }) {
  const id = "field-" + name, standard = server.defaults[name];
  const input = element("input", { id, type: "number", min, max, step, inputMode: min < 0 ? "text" : "decimal", placeholder: standard === undefined ? "" : String(standard), value: settings.values[name] ?? "", "aria-describedby": id + "-help" });
  const reset = iconButton("refresh", t("resetField", { name: t("name_" + name) }), () => {
    input.value = "";
    change();
    input.focus();
  });
  const node = element("div", { className: "field" });
  const change = () => {
    setValue(name, input.value);
    show();
    drawChanged();
    $("preset").value = "";
  };
  const show = () => {
    const changed = name in settings.values;
    node.classList.toggle("changed", changed);
    reset.hidden = !changed;
  };
  const problem = element("p", { className: "problem", role: "status" });
  input.addEventListener("input", () => {
    const { badInput, rangeOverflow, rangeUnderflow, stepMismatch } = input.validity; // steps are for the arrow keys; any number between them will do
    const wrong = badInput || rangeOverflow || rangeUnderflow || (stepMismatch && step === 1);
    problem.textContent = wrong ? t(step === 1 ? "wholeNumber" : "anyNumber", { min: number(min), max: number(max) }) : "";
    input.setAttribute("aria-invalid", wrong);
    if (!wrong) change();
  });
  node.append(element("label", { htmlFor: id }, t("name_" + name)), element("span", { className: "entry" }, input, reset),
    element("p", { id: id + "-help", className: "help" }, t("help_" + name)), problem);
  show();
  return node;
}

function drawFormat() {
  const { kind, text } = settings.format;
  $("format-text").hidden = $("format-label").hidden = kind !== "schema" && kind !== "grammar";
  let problem = "";
  if (kind === "schema" && text.trim()) {
    try {
      JSON.parse(text);
    } catch (error) {
      problem = t("badSchema", { why: error.message });
    }
  }
  $("format-problem").textContent = problem;
  $("format-text").setAttribute("aria-invalid", !!problem);
  drawChanged();
}

// ---- Presets ----

function drawPresets() {
  const own = Object.keys(settings.presets);
  $("preset").replaceChildren(new Option(t("presetChoose"), ""), new Option(t("presetServer"), "presetServer"),
    ...Object.keys(builtInPresets).map((name) => new Option(t(name), name)), ...own.map((name) => new Option(name, name)));
  $("preset-delete").hidden = true;
}
function choosePreset() {
  const name = $("preset").value;
  $("preset-delete").hidden = !(name in settings.presets);
  if (!name) return;
  settings.values = { ...(settings.presets[name] ?? builtInPresets[name] ?? {}) };
  saveSettings();
  drawSettings();
  $("preset").value = name;
  $("preset-delete").hidden = !(name in settings.presets);
}
function savePreset() {
  const name = $("preset-name").value.trim();
  if (!name) {
    $("preset-name").focus();
    return;
  }
  settings.presets[name] = { ...settings.values };
  saveSettings();
  $("preset-name").value = "";
  drawPresets();
  $("preset").value = name;
  $("preset-delete").hidden = false;
}
