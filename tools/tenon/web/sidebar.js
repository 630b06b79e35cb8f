// The list of conversations: open, rename, delete with undo, search, export and import.
import { $, announce, download, element, icon, iconButton, toast } from "./dom.js";
import { language, t } from "./i18n.js";
import { fromFile, pathTo, titleFrom, toJSON, toMarkdown } from "./tree.js";
import { loadConversations, loadMessages, removeConversation, saveConversation, saveMessage, searchMessages, tellTabs } from "./store.js";
import { runIn, runningAs, stopAnswer } from "./answer.js";
import { open } from "./conversation.js";

export const list = { all: [], drafts: [] }; // newest first; drafts are conversations of which nothing was sent yet
let hooks = { open() {}, start() {} };
let found = null; // conversation id → message id, while searching
let searching = null;

export function initSidebar(handlers) {
  hooks = handlers;
  $("new").prepend(icon("plus"));
  $("new").addEventListener("click", () => hooks.start());
  let timer = 0;
  $("search").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, 200);
  });
  $("import").addEventListener("click", () => $("import-file").click());
  $("import-file").addEventListener("change", async () => {
    for (const file of $("import-file").files) await importFile(file);
    $("import-file").value = "";
  });
  $("export-all").addEventListener("click", exportAll);
}

export async function loadList() {
  const all = await loadConversations();
  const age = (time) => (time ? Date.now() - time : 0), isOld = ({ deleted, draftOnly, updated }) => age(deleted) > 10 * 60e3 || (draftOnly && age(updated) > 30 * 86400e3);
  for (const { id } of all.filter(isOld)) removeConversation(id);
  const kept = all.filter((conversation) => !conversation.deleted && !isOld(conversation)).map(known);
  list.all = kept.filter(({ draftOnly }) => !draftOnly);
  list.drafts = kept.filter(({ draftOnly }) => draftOnly);
}

// What another tab changed goes into the object that this tab uses already; its branch and what is typed stay this tab's.
function known(loaded) {
  const mine = open.conversation?.id === loaded.id ? open.conversation : runningAs(loaded.id) ?? list.all.find(({ id }) => id === loaded.id);
  if (!mine) return loaded;
  for (const name of ["title", "named", "updated", "system", "skip", "summary", "fullContext", "deleted"]) mine[name] = loaded[name];
  return mine;
}

// Other tabs read what is stored.
async function tellWhenWritten(written) {
  await written;
  tellTabs({ kind: "list" });
}

async function search() {
  searching?.abort();
  searching = new AbortController();
  const text = $("search").value.trim(), { signal } = searching;
  const hits = text ? await searchMessages(text, signal) : null;
  if (signal.aborted) return;
  found = hits;
  drawn = drawnAtOnce;
  drawList();
  if (found) announce(t("found", { n: shown().length }));
}

function shown() {
  if (!found) return list.all;
  const text = $("search").value.trim().toLowerCase();
  return list.all.filter(({ id, title }) => found.has(id) || title.toLowerCase().includes(text));
}

// Entries of a long list are drawn when their turn comes near.
const drawnAtOnce = 150;
let drawn = drawnAtOnce;
const more = new IntersectionObserver(([{ isIntersecting }]) => {
  if (!isIntersecting) return;
  drawn += drawnAtOnce;
  const { scrollTop } = $("list");
  drawList();
  $("list").scrollTop = scrollTop;
}, { rootMargin: "600px" });

export function drawList() {
  document.title = open.conversation?.title ? `${open.conversation.title} – Tenon` : "Tenon";
  if (document.activeElement?.matches?.("#list input, #list .menu *")) return; // a title is being typed, a menu is open
  const focused = document.activeElement?.closest?.("#list li")?.dataset.id;
  let group = "";
  const all = shown();
  $("list").replaceChildren(...all.slice(0, drawn).map((conversation) => {
    const node = entryNode(conversation), name = groupOf(conversation);
    if (name !== group) node.dataset.group = group = name;
    return node;
  }));
  more.disconnect();
  if (all.length > drawn) more.observe($("list").lastChild);
  $("no-conversations").hidden = list.all.length > 0;
  $("nothing-found").hidden = !found || shown().length > 0;
  if (focused) document.querySelector(`#list li[data-id="${CSS.escape(focused)}"] button`)?.focus();
}

// Conversations of one day, week or month are together.
function groupOf({ updated }) {
  const days = Math.round((new Date().setHours(0, 0, 0, 0) - new Date(updated).setHours(0, 0, 0, 0)) / 86400e3);
  if (days < 7) return t(days <= 0 ? "today" : days === 1 ? "yesterday" : "lastWeek");
  return days < 30 ? t("lastMonth") : new Date(updated).toLocaleDateString(language(), { month: "long", year: "numeric" });
}

const titleOf = (conversation) => conversation.title || t("untitled");

function entryNode(conversation) {
  const openButton = element("button", { type: "button", className: "title", title: titleOf(conversation), dir: "auto" },
    element("span", {}, titleOf(conversation)));
  if (runIn(conversation)) openButton.append(element("span", { className: "busy", role: "img", "aria-label": t("generating") }));
  openButton.setAttribute("aria-current", conversation.id === open.conversation?.id);
  openButton.addEventListener("click", () => hooks.open(conversation, found?.get(conversation.id), $("search").value.trim()));
  openButton.addEventListener("dblclick", () => rename(conversation, item));
  openButton.addEventListener("keydown", (event) => {
    if (event.key === "F2") rename(conversation, item);
    else if (event.key === "Delete") remove(conversation);
  });
  const more = iconButton("more", t("actionsOf", { title: titleOf(conversation) }), () => showMenu(conversation, item, more), { "aria-haspopup": "true" });
  const item = element("li", { "data-id": conversation.id }, openButton, more);
  return item;
}

// What can be done with a conversation. The browser closes the menu by Escape and by clicks elsewhere.
function showMenu(conversation, item, button) {
  const menu = element("div", { className: "menu", popover: "auto" });
  const choice = (image, label, action) => {
    const node = element("button", { type: "button" }, icon(image), element("span", {}, label));
    node.addEventListener("click", () => {
      menu.hidePopover();
      action();
    });
    menu.append(node);
  };
  const save = (extension, type, make) => async () => download(fileName(conversation) + extension, make(await messagesOf(conversation)), type);
  choice("edit", t("rename"), () => rename(conversation, document.querySelector(`#list li[data-id="${CSS.escape(conversation.id)}"]`) ?? item));
  choice("download", t("exportMarkdown"), save(".md", "text/markdown", (messages) => toMarkdown(conversation, pathTo(messages, conversation.leaf), { user: t("you"), assistant: t("model") })));
  choice("download", t("exportJSON"), save(".json", "application/json", (messages) => toJSON([{ conversation, messages }])));
  choice("trash", t("delete"), () => remove(conversation));
  menu.addEventListener("toggle", ({ newState }) => { if (newState === "closed") menu.remove(); });
  menu.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], all = [...menu.children];
    if (!step) return;
    event.preventDefault();
    all.at((all.indexOf(document.activeElement) + step) % all.length).focus();
  });
  button.after(menu);
  menu.showPopover();
  const { left, right, bottom, top } = button.getBoundingClientRect(), { offsetWidth, offsetHeight } = menu;
  menu.style.left = Math.max(4, Math.min(innerWidth - offsetWidth - 4, document.dir === "rtl" ? left : right - offsetWidth)) + "px";
  menu.style.top = (bottom + offsetHeight + 4 < innerHeight ? bottom + 2 : top - offsetHeight - 2) + "px";
  menu.firstChild.focus();
}

function rename(conversation, item) {
  const field = element("input", { value: conversation.title, "aria-label": t("newTitle"), maxLength: 200, dir: "auto" });
  let done = false;
  const end = (save) => {
    if (done) return;
    done = true;
    field.remove();
    const title = field.value.trim();
    if (save && title && title !== conversation.title) {
      Object.assign(conversation, { title, named: true });
      tellWhenWritten(saveConversation(conversation));
    }
    drawList();
    document.querySelector(`#list li[data-id="${CSS.escape(conversation.id)}"] button`)?.focus();
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") end(true);
    else if (event.key === "Escape") {
      event.stopPropagation();
      end(false);
    }
  });
  field.addEventListener("blur", () => end(true));
  item.replaceChildren(field);
  field.select();
  field.focus();
}

// Deleted conversations stay in the store until the undo is over.
export function remove(conversation) {
  stopAnswer(conversation);
  conversation.deleted = Date.now();
  tellWhenWritten(saveConversation(conversation));
  list.all = list.all.filter(({ id }) => id !== conversation.id);
  if (open.conversation?.id === conversation.id) hooks.start();
  drawList();
  toast(t("deleted", { title: titleOf(conversation) }), t("undo"), () => {
    delete conversation.deleted;
    tellWhenWritten(saveConversation(conversation));
    list.all = [conversation, ...list.all].sort((a, b) => b.updated - a.updated);
    hooks.open(conversation);
  });
}

// ---- Files ----

const fileName = (conversation) => (titleOf(conversation).replace(/[^\p{L}\p{N} _-]+/gu, "").trim().slice(0, 60) || "conversation").replaceAll(" ", "-");
const messagesOf = (conversation) => (open.conversation?.id === conversation.id ? open.messages : loadMessages(conversation.id));

export async function exportAll() {
  const entries = [];
  for (const conversation of list.all) entries.push({ conversation, messages: await messagesOf(conversation) });
  download("conversations.json", toJSON(entries), "application/json");
}

export async function importFile(file) {
  let entries;
  try {
    entries = fromFile(await file.text());
  } catch (error) {
    toast(t("importFailed", { name: file.name, why: error.message }));
    return;
  }
  await addEntries(entries);
  toast(t("imported", { n: entries.length }));
  if (entries[0]) hooks.open(entries[0].conversation);
}

async function addEntries(entries) {
  let written = null;
  for (const { conversation, messages } of entries) {
    const first = [...messages.values()].find(({ role }) => role === "user");
    conversation.title ||= titleFrom(first?.content ?? "");
    written = saveConversation(conversation);
    for (const message of messages.values()) written = saveMessage(message);
    list.all.unshift(conversation);
  }
  list.all.sort((a, b) => b.updated - a.updated);
  tellWhenWritten(written);
  drawList();
}

// Conversations that the first version of the web UI kept in localStorage.
export async function takeOldConversations() {
  const stored = localStorage.getItem("tenon.conversations");
  if (!stored) return;
  try {
    const entries = JSON.parse(stored).filter(({ messages }) => messages.length).reverse().map(({ messages }) => {
      const source = messages.filter(({ role }) => role === "user" || role === "assistant");
      const [entry] = fromFile(JSON.stringify({ kind: "tenon-conversations", conversations: [{ messages: source.map((message, i) =>
        ({ ...message, id: String(i).padStart(6, "0"), parent: i ? String(i - 1).padStart(6, "0") : null })) }] }));
      return entry;
    });
    await addEntries(entries);
  } catch { /* not what we wrote */ }
  localStorage.removeItem("tenon.conversations");
  localStorage.removeItem("tenon.current");
}
