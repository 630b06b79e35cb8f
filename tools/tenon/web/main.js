// The start of the web UI, and what connects its parts.
import { $, bytesText, element, icon, toast } from "./dom.js";
import { loadLanguage, number, t } from "./i18n.js";
import { loadItem, loadTabItem, onStoreFailure, onTabMessage, openStore, removeConversation, retryWrites, runsElsewhere, saveConversation, saveItem, saveTabItem, tellTabs } from "./store.js";
import { newConversation } from "./tree.js";
import { followTabs, onAnswers, stopAnswer } from "./answer.js";
import { currentPath, drawConversation, dropMessages, initConversation, messageChanged, messageEnded, open, openConversation, showEmpty, takeMessage } from "./conversation.js";
import { drawState, initComposer, recount, roomFor, saveSoon, setText, showDraft } from "./composer.js";
import { drawList, exportAll, importFile, initSidebar, list, loadList, takeOldConversations } from "./sidebar.js";
import { drawSettings, initSettings, markSettings, openSettings } from "./settings_dialog.js";
import { loadSettings, settings } from "./settings.js";
import { chooseModel, loadModel, loadModels, loadProperties, server } from "./server.js";

let fresh = null;      // the conversation of this tab of which nothing was sent yet
let memoryView = null; // the module of the memory view, loaded when it is first shown

// ---- Conversations ----

const isStored = (conversation) => list.all.some(({ id }) => id === conversation.id);

function store(conversation) {
  if (!isStored(conversation)) {
    list.all.unshift(conversation);
    if (conversation === fresh) fresh = null;
  }
  list.all.sort((a, b) => b.updated - a.updated);
  if (conversation.id === open.conversation?.id) saveTabItem("current", conversation.id);
  drawList();
}

// What another tab says about a conversation. The branch that is open here stays.
function takeConversation(conversation) {
  const known = list.all.find(({ id }) => id === conversation.id);
  if (!known) {
    list.all.unshift(conversation);
    return;
  }
  const { title, named, updated, skip, summary, leaf } = conversation;
  Object.assign(known, { title, named, updated, skip, summary });
  if (known !== open.conversation) known.leaf = leaf;
  list.all.sort((a, b) => b.updated - a.updated);
}

async function show(conversation, target, text) {
  showView(false);
  closeMenu();
  await openConversation(conversation, target, text);
  saveTabItem("current", conversation.id);
  afterOpen();
}

// One new conversation at a time: without messages it is not in the list.
async function start() {
  showView(false);
  closeMenu();
  fresh ??= newConversation(settings.system);
  saveTabItem("current", fresh.id);
  await showEmpty(fresh);
  afterOpen();
  $("input").focus();
}

function afterOpen() {
  drawList();
  showDraft();
  drawState();
  drawSystemMark();
}

// What was typed or attached before anything was sent is stored too.
function saveDraft(conversation) {
  if (isStored(conversation)) saveConversation(conversation);
  else if (conversation.draft || conversation.draftFiles?.length) saveConversation({ ...conversation, draftOnly: true, updated: Date.now() });
  else removeConversation(conversation.id);
}

// The draft of this tab, or the newest that no other tab has open.
async function takeDraft(id) {
  for (const draft of [...list.drafts].sort((a, b) => (b.id === id) - (a.id === id))) {
    if (await runsElsewhere(draft.id)) continue;
    delete draft.draftOnly;
    fresh = draft;
    return;
  }
}

function drawSystemMark() {
  $("system-mark").hidden = !open.conversation?.system.trim();
}

// ---- The empty view ----

function drawEmpty(empty) {
  $("empty").hidden = !empty;
  $("thread").hidden = empty;
  if (!empty) return;
  const meta = server.models.find(({ id }) => id === server.model)?.meta;
  $("empty-title").textContent = server.model ? t("emptyTitle", { model: server.model }) : t("emptyNoModel");
  $("empty-model").textContent = [meta && t("parameters", { n: shortNumber(meta.n_params) }), meta?.size && bytesText(meta.size), server.context && t("contextOf", { n: number(server.context) }),
    server.model && !server.isLoaded && t("notLoaded"), !server.hasTemplate && t("noTemplate")].filter(Boolean).join(" · ");
  $("load").hidden = !server.model || server.isLoaded;
  const kind = server.hasTemplate ? "example" : "story";
  $("examples").replaceChildren(...[1, 2, 3, 4].map((i) => {
    const button = element("button", { type: "button" }, t(kind + i));
    button.addEventListener("click", () => setText(t(kind + i)));
    return button;
  }));
}
function shortNumber(n) {
  for (const [size, unit] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]]) if (n >= size) return number(n / size, n / size < 10 ? 1 : 0) + " " + unit;
  return String(n);
}

// ---- The server ----

async function connect() {
  try {
    await loadModels();
    drawModels();
    await properties();
    if ($("banner").dataset.kind === "server") banner();
  } catch (error) {
    banner("server", error.status === 401 ? t("needsKey") : t("unreachable", { why: error.message }),
      error.status === 401 ? [[t("enterKey"), () => openSettings("key")]] : [[t("tryAgain"), connect]]);
  }
  drawEmpty(!$("empty").hidden);
}
function drawModels() {
  const picker = $("model");
  picker.replaceChildren(...server.models.map(({ id, status }) => new Option(status?.value === "loaded" || server.models.length < 2 ? id : `${id} (${t("state_" + status?.value)})`, id)));
  picker.value = server.model;
  picker.disabled = server.models.length < 2;
}
async function load() {
  const note = toast(t("loadingModel", { model: server.model }), null, null, 3600);
  try {
    await loadModel(drawModels);
  } catch (error) {
    toast(error.message);
  } finally {
    note.remove();
  }
  await connect();
  memoryView?.modelChanged();
}
async function properties() {
  try {
    await loadProperties();
  } catch (error) {
    if (error.status !== 503) throw error;
    setTimeout(properties, 1000); // it is being loaded
    return;
  }
  recount();
  markSettings();
  drawEmpty(currentPath().length === 0);
}

function banner(kind = "", text = "", buttons = []) {
  const node = $("banner");
  node.dataset.kind = kind;
  node.replaceChildren(...(text ? [element("span", {}, text), ...buttons.map(([label, action]) => {
    const button = element("button", { type: "button" }, label);
    button.addEventListener("click", action);
    return button;
  })] : []));
}

// ---- Views, menu, theme ----

async function showView(memory) {
  $("chat").hidden = memory;
  $("memory").hidden = !memory;
  $("show-chat").setAttribute("aria-pressed", !memory);
  $("show-memory").setAttribute("aria-pressed", memory);
  if (memory) memoryView ??= await import("./memory/view.js");
  memoryView?.show(memory && !$("memory").hidden);
}

// The list of conversations lies over the rest on narrow screens, and beside it on others, where it can be folded away.
const narrow = matchMedia("(max-width: 48rem)");
function openMenu(opens) {
  $("side").classList.toggle("open", opens);
  markMenu();
}
const closeMenu = () => openMenu(false);
function foldSide(folded) {
  document.body.classList.toggle("folded", folded);
  saveItem("folded", folded || undefined);
  markMenu();
}
function markMenu() {
  $("menu").setAttribute("aria-expanded", narrow.matches ? $("side").classList.contains("open") : !document.body.classList.contains("folded"));
}

const dark = matchMedia("(prefers-color-scheme: dark)");
function setTheme(theme) { // "": the system's
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  saveItem("theme", theme || undefined);
  memoryView?.redraw();
}

function initFrame() {
  $("menu").append(icon("menu"));
  $("theme").append(icon("theme"));
  $("settings-open").append(icon("settings"));
  $("settings-close").append(icon("close"));
  $("menu").addEventListener("click", () => {
    if (narrow.matches) openMenu(!$("side").classList.contains("open"));
    else foldSide(!document.body.classList.contains("folded"));
    if ($("new").checkVisibility()) $("new").focus();
  });
  narrow.addEventListener("change", markMenu);
  foldSide(loadItem("folded", false));
  $("system-mark").addEventListener("click", () => openSettings("system"));
  document.querySelector("main").addEventListener("pointerdown", closeMenu); // on a phone it covers the rest
  $("show-chat").addEventListener("click", () => showView(false));
  $("show-memory").addEventListener("click", () => showView(true));
  $("load").addEventListener("click", load);
  $("theme").addEventListener("click", () => {
    const { theme } = document.documentElement.dataset;
    setTheme((theme ? theme === "dark" : dark.matches) ? "light" : "dark");
  });
  dark.addEventListener("change", () => memoryView?.redraw());
  $("model").addEventListener("change", async () => {
    chooseModel($("model").value);
    memoryView?.modelChanged();
    await connect();
    if (!server.isLoaded) load();
  });
  document.addEventListener("keydown", onKey);
}

// Keys that work everywhere: Escape stops, Ctrl+K searches, Ctrl+Shift+O starts a conversation, Ctrl+Z undoes, / goes to the field.
function onKey(event) {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName), command = event.ctrlKey || event.metaKey;
  if (event.key === "Escape" && !$("settings").open && !document.querySelector(":popover-open")) {
    if ($("side").classList.contains("open") && narrow.matches) {
      closeMenu();
      $("menu").focus();
    } else if (open.conversation) stopAnswer(open.conversation);
  } else if (command && event.key.toLowerCase() === "k") {
    event.preventDefault();
    if (narrow.matches) openMenu(true);
    else foldSide(false);
    $("search").focus();
  } else if (command && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    start();
  } else if (command && event.key.toLowerCase() === "z" && !typing && document.querySelector(".toast .action")) {
    event.preventDefault();
    [...document.querySelectorAll(".toast .action")].at(-1).click();
  } else if (event.key === "/" && !typing && !command) {
    event.preventDefault();
    $("input").focus();
  }
}

// ---- Start ----

function initParts() {
  initFrame();
  initConversation({ changed: () => { drawState(); drawList(); recount(); }, settings: openSettings, empty: drawEmpty, edited: () => saveSoon(open.conversation), room: roomFor });
  initComposer({
    sent: (conversation) => { store(conversation); drawState(); },
    draft: saveDraft,
    import: async (files) => { for (const file of [...files]) await importFile(file); },
  });
  initSidebar({ open: show, start });
  initSettings({
    key: connect,
    theme: setTheme,
    language: async (code) => {
      saveItem("language", code);
      await loadLanguage(code);
      drawSettings();
      drawSystemMark();
      drawConversation();
      memoryView?.rebuild();
      connect();
    },
    system: (text) => {
      open.conversation.system = text;
      if (isStored(open.conversation)) saveConversation(open.conversation);
      drawSystemMark();
      recount();
    },
  });
  onAnswers({ change: messageChanged, end: (message, conversation) => {
    messageEnded(message);
    store(conversation);
    drawState();
    if (!server.isLoaded) connect(); // the request has loaded it
  } });
  followTabs((id) => open.messages.get(id), (conversation, message) => {
    takeConversation(conversation);
    takeMessage(conversation, message);
    drawList();
  });
  onTabMessage(async (data) => {
    if (data.kind === "who-runs" && data.id === fresh?.id) tellTabs({ kind: "running", id: data.id });
    if (data.kind === "removed") dropMessages(data.conversation, data.ids);
    if (data.kind !== "list") return;
    await loadList();
    if (open.conversation && currentPath().length && !isStored(open.conversation)) start();
    else drawList();
  });
  onStoreFailure((error) => {
    if (error) banner("store", t("storeFull", { why: error.message || error.name }), [[t("exportAll"), exportAll], [t("tryAgain"), retryWrites]]);
    else if ($("banner").dataset.kind === "store") banner();
  });
}

async function begin() {
  await loadLanguage(loadItem("language", ""));
  loadSettings();
  initParts();
  try {
    await openStore();
    await loadList();
    await takeOldConversations();
  } catch (error) {
    banner("store", t("noStore", { why: error.message || error.name }));
  }
  connect();
  const current = loadTabItem("current", ""), last = list.all.find(({ id }) => id === current);
  await takeDraft(current);
  if (last) await show(last);
  else await start();
  document.documentElement.dataset.ready = "true";
}
begin();
