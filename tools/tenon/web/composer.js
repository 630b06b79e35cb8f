// The field for the next message: text, documents, what they cost, and what to do when they do not fit.
import { $, announce, element, icon, iconButton, toast } from "./dom.js";
import { number, t } from "./i18n.js";
import { currentPath, editLast, markForgotten, open, sendMessage } from "./conversation.js";
import { answerRoom, planContext, summarise } from "./context.js";
import { runIn, stopAnswer } from "./answer.js";
import { readDocument } from "./attachments.js";
import { countTokens, server } from "./server.js";
import { saveConversation } from "./store.js";
import { saveSettings, settings } from "./settings.js";
import { titleFrom } from "./tree.js";

let pending = null; // what waits for the choice of what to forget, besides sending
let files = []; // { name, text, note, tokens }
let plan = null; // of planContext
let counting = null, countTimer = 0, saveTimer = 0;
let unsaved = null; // the conversation whose draft is stored soon
let hooks = { sent() {} };

const touch = matchMedia("(hover: none) and (pointer: coarse)");

export function initComposer(handlers) {
  hooks = handlers;
  const input = $("input");
  $("attach").append(icon("attach"));
  $("send").append(icon("send"));
  $("stop").append(icon("stop"));
  input.addEventListener("input", () => { grow(); keepDraft(); countLater(); });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowUp" && !input.value && editLast()) event.preventDefault();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || (touch.matches && !event.ctrlKey)) return; // keyboards on a screen have no Shift+Enter
    event.preventDefault();
    $("form").requestSubmit();
  });
  input.addEventListener("paste", (event) => {
    if (!event.clipboardData?.files.length) return;
    event.preventDefault();
    addFiles(event.clipboardData.files);
  });
  addEventListener("pagehide", saveNow); // what was typed in the last moment
  $("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  $("stop").addEventListener("click", () => stopAnswer(open.conversation));
  $("attach").addEventListener("click", () => $("files").click());
  $("files").addEventListener("change", () => { addFiles($("files").files); $("files").value = ""; });
  initDrop();
}

function initDrop() {
  const area = document.body, holdsFiles = (event) => event.dataTransfer?.types.includes("Files");
  let depth = 0;
  area.addEventListener("dragenter", (event) => { if (holdsFiles(event)) { depth++; area.classList.add("drop"); } });
  area.addEventListener("dragleave", (event) => { if (holdsFiles(event) && --depth <= 0) area.classList.remove("drop"); });
  area.addEventListener("dragover", (event) => { if (holdsFiles(event)) event.preventDefault(); });
  area.addEventListener("drop", (event) => {
    depth = 0;
    area.classList.remove("drop");
    if (!holdsFiles(event)) return;
    event.preventDefault();
    if (event.target.closest("#side")) hooks.import(event.dataTransfer.files);
    else if (!$("chat").hidden && !$("settings").open) addFiles(event.dataTransfer.files);
  });
}

// Browsers without field-sizing need the height set.
const sizesItself = globalThis.CSS?.supports?.("field-sizing", "content");
function grow() {
  if (sizesItself) return;
  const input = $("input");
  input.style.height = "auto";
  input.style.height = Math.min(input.scrollHeight + 2, 0.4 * innerHeight) + "px";
}

// ---- Documents ----

export async function addFiles(list) {
  for (const file of [...list]) { // the list of a field changes with it
    try {
      const added = await readDocument(file);
      files = [...files, added];
      drawFiles();
      added.tokens = await countTokens(added.text).catch(() => 0);
    } catch (error) {
      toast(error.message);
    }
  }
  drawFiles();
  keepDraft();
  countLater(0);
}

// What fits of each document: those that are short enough stay whole, the others share the rest of the context equally.
function roomOfFiles() {
  const rooms = new Map(), counted = files.filter(({ tokens }) => tokens).sort((a, b) => a.tokens - b.tokens);
  let left = server.context - answerRoom() - Math.ceil(((open.conversation?.system.length ?? 0) + $("input").value.length) / 3) - 64;
  counted.forEach((file, i) => {
    const share = Math.max(0, Math.floor(left / (counted.length - i)) - 16); // 16 for its name
    rooms.set(file, server.context ? share : Infinity);
    left -= Math.min(file.tokens, share) + 16;
  });
  return rooms;
}

function drawFiles() {
  const rooms = roomOfFiles(), long = files.filter((file) => file.tokens > rooms.get(file));
  const all = element("button", { type: "button" }, t("shortenAll"));
  all.addEventListener("click", () => Promise.all(long.map((file) => shortenFile(file, rooms.get(file)))));
  $("attached").replaceChildren(...files.map((file) => {
    const text = [file.name, file.note, file.tokens && t("tokens", { n: number(file.tokens) })].filter(Boolean).join(" · ");
    const chip = element("span", { className: "chip" }, icon("attach"), element("span", {}, text));
    const room = rooms.get(file);
    if (file.tokens > room) {
      const shorten = element("button", { type: "button" }, t("keepFitting", { n: number(room) }));
      shorten.addEventListener("click", () => shortenFile(file, room));
      chip.classList.add("warn");
      chip.append(shorten);
    }
    chip.append(iconButton("close", t("removeFile", { name: file.name }), () => {
      files = files.filter((other) => other !== file);
      drawFiles();
      keepDraft();
      countLater(0);
    }));
    return chip;
  }), ...(long.length > 1 ? [all] : []));
}

// Keeps the beginning of a document, up to a number of tokens.
async function shortenFile(file, room) {
  for (let tries = 0; tries < 5 && file.tokens > room; tries++) {
    file.text = file.text.slice(0, Math.floor(file.text.length * room / file.tokens * 0.98));
    file.tokens = await countTokens(file.text);
  }
  file.note = t("shortened");
  drawFiles();
  keepDraft();
  countLater(0);
}

// ---- Drafts ----

function keepDraft() {
  const { conversation } = open;
  if (!conversation) return;
  conversation.draft = $("input").value;
  conversation.draftFiles = files;
  saveSoon(conversation);
}
export function saveSoon(conversation) {
  if (unsaved !== conversation) saveNow();
  unsaved = conversation;
  clearTimeout(saveTimer);
  saveTimer = setTimeout(saveNow, 300);
}
function saveNow() {
  clearTimeout(saveTimer);
  const conversation = unsaved;
  unsaved = null;
  if (conversation) hooks.draft(conversation);
}
export function showDraft() {
  $("input").value = open.conversation?.draft ?? "";
  files = open.conversation?.draftFiles ?? [];
  pending = null;
  drawFiles();
  grow();
  countLater(0);
}
export function setText(text) {
  $("input").value = text;
  grow();
  keepDraft();
  countLater();
  $("input").focus();
}

// ---- The context meter ----

function countLater(delay = 350) {
  clearTimeout(countTimer);
  countTimer = setTimeout(count, delay);
}
export const recount = () => countLater(0);

async function count() {
  counting?.abort();
  const mine = (counting = new AbortController()), { conversation } = open;
  if (!conversation || !server.context || runIn(conversation)) return;
  try {
    const made = await planContext(conversation, currentPath(), $("input").value, files, mine.signal);
    if (mine.signal.aborted || open.conversation !== conversation) return;
    plan = made;
    drawMeter();
  } catch { /* the server is busy loading or gone; sending says so */ }
}

function drawMeter() {
  const meter = $("meter"), { used, next, added, limit, fits, skip } = plan;
  meter.hidden = false;
  meter.querySelector("meter").max = limit;
  meter.querySelector("meter").value = Math.min(limit, next);
  meter.querySelector("meter").high = limit - answerRoom();
  const text = added ? t("meterNext", { used: number(next), limit: number(limit), added: number(added) }) : t("meter", { used: number(used), limit: number(limit) });
  meter.querySelector("span").textContent = fits ? text : text + "; " + t("meterRoom", { room: number(answerRoom()) });
  meter.classList.toggle("over", !fits);
  if (fits || added) pending = null;
  $("full").hidden = fits || !(added || pending); // there is nothing to decide before there is a message
  if (!$("full").hidden) drawChoice();
}

function drawChoice() {
  const panel = $("full"), { skip } = plan, forgotten = Math.max(0, skip - (open.conversation.skip ?? 0));
  const choice = open.conversation.fullContext ?? settings.fullContext;
  const options = plan.alone ? [] : ["shift", "summarise", "stop"];
  const key = [open.conversation.id, forgotten, choice, plan.alone, !!pending].join(); // what is shown keeps the focus
  if (panel.dataset.key === key && panel.childElementCount) return;
  panel.dataset.key = key;
  const radios = options.map((kind) => {
    const radio = element("input", { type: "radio", name: "full", value: kind, checked: kind === choice });
    radio.addEventListener("change", () => {
      open.conversation.fullContext = kind;
      panel.dataset.key = [open.conversation.id, forgotten, kind, plan.alone, !!pending].join();
      hooks.draft(open.conversation);
    });
    return element("label", {}, radio, element("span", {}, t("full_" + kind, { n: forgotten })));
  });
  const go = pending && !plan.alone && element("button", { type: "button" }, t("goOn"));
  if (go) go.addEventListener("click", () => {
    const again = pending;
    pending = null;
    panel.hidden = true;
    if (!/ask|stop/.test(open.conversation.fullContext ?? settings.fullContext)) again();
  });
  const always = element("button", { type: "button", className: "link" }, t("fullAlways"));
  always.addEventListener("click", () => {
    settings.fullContext = open.conversation.fullContext ?? settings.fullContext;
    saveSettings();
    announce(t("saved"));
  });
  panel.replaceChildren(element("fieldset", {}, element("legend", {}, plan.alone ? t("fullAlone") : t("fullTitle")), ...radios, go ?? "", plan.alone ? "" : always));
}

// Room for another answer, or for more of one: see hasRoom in conversation.js.
export async function roomFor(path, keep, again) {
  const { conversation } = open;
  const made = await planContext(conversation, path, "", [], undefined, keep).catch(() => null);
  if (!made || made.fits) return true;
  plan = made;
  return takeRoom(conversation, path, again);
}

// ---- Sending ----

async function makeRoom(conversation, text) {
  const made = await planContext(conversation, currentPath(), text, files).catch(() => null);
  if (!made) return true;
  plan = made;
  if (made.fits) return true;
  return takeRoom(conversation, currentPath(), null);
}

// Makes room as chosen. Returns false where the request must not be sent.
async function takeRoom(conversation, path, again) {
  const choice = conversation.fullContext ?? settings.fullContext;
  if (plan.alone || choice === "ask" || choice === "stop") {
    pending = again;
    drawMeter();
    announce(t("fullTitle"));
    $("full").querySelector("input")?.focus();
    return false;
  }
  if (choice === "summarise" && plan.skip > (conversation.skip ?? 0)) {
    const note = toast(t("summarising"), null, null, 600);
    try {
      conversation.summary = await summarise(conversation, path, plan.skip);
    } catch (error) {
      toast(t("summaryFailed", { why: error.message }));
      return false;
    } finally {
      note.remove();
    }
  }
  conversation.skip = plan.skip;
  markForgotten();
  return true;
}

let sending = false;
async function send() {
  const { conversation } = open, typed = $("input").value, text = typed.trim(), sent = files;
  if (!conversation || sending || runIn(conversation) || (!text && !files.length)) return;
  sending = true;
  drawState();
  try {
    if (!(await makeRoom(conversation, text)) || open.conversation !== conversation) return;
    if (!conversation.title) conversation.title = titleFrom(text || sent[0].name);
    const attached = sent.map(({ name, text: body, tokens }) => ({ name, text: body, tokens }));
    files = files.filter((file) => !sent.includes(file)); // what came since the key was pressed stays
    const now = $("input").value;
    $("input").value = now.startsWith(typed) ? now.slice(typed.length) : now;
    Object.assign(conversation, { draft: $("input").value, draftFiles: files });
    clearTimeout(saveTimer);
    unsaved = null;
    $("full").hidden = true;
    drawFiles();
    grow();
    sendMessage(text, attached);
    if (plan?.fits) { // what was counted as the next message is part of the conversation now
      plan = { ...plan, used: plan.next, added: 0 };
      drawMeter();
    }
    saveConversation(conversation);
    hooks.sent(conversation);
  } finally {
    sending = false;
    drawState();
  }
}

export function drawState() {
  const running = !!(open.conversation && runIn(open.conversation));
  $("send").hidden = running;
  $("send").disabled = sending;
  $("stop").hidden = !running;
}
