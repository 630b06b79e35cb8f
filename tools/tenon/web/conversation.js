// The conversation on the screen: its messages, versions, and the end of the text while it grows.
import { $, announce, icon, toast } from "./dom.js";
import { t } from "./i18n.js";
import { childrenOf, isRunning, newMessage, newestLeaf, pathTo, versionsOf, withFollowing } from "./tree.js";
import { loadMessages, removeMessages, runsElsewhere, saveConversation, saveMessage, tellTabs } from "./store.js";
import { continueAnswer, runIn, runOf, startAnswer } from "./answer.js";
import { buildNow, expectedHeight, forgetWaiting, loadMarkdown, MessageView, observe } from "./message.js";

export const open = { conversation: null, messages: new Map() };
const views = new Map(); // message id → MessageView
let hooks = { changed() {}, settings() {}, empty() {}, edited() {}, room: async () => true };
let makeView = null;
let follows = true; // the end of the text stays in view
let lastTop = 0;    // where the view was scrolled to
let leftUntil = 0;  // a scroll upwards has just begun
let held = false;   // a finger or the mouse is on the text or its scroll bar
let loading = 0;
let usesKeys = false; // the last action was by key

export function initConversation(handlers) {
  hooks = { ...hooks, ...handlers };
  const log = $("messages");
  // Only a scroll upwards leaves the end: text may arrive between a scroll and its event. A clamped position is at the end.
  log.addEventListener("scroll", () => {
    const below = log.scrollHeight - log.scrollTop - log.clientHeight, up = log.scrollTop < lastTop - 1;
    lastTop = log.scrollTop;
    if (up && below > 1) follows = false;
    else if (!up && below < 48 && performance.now() > leftUntil) follows = true;
    $("to-end").hidden = follows || below < 48;
  }, { passive: true });
  // New text must not fight a scroll that has begun.
  const leave = () => {
    if (log.scrollHeight <= log.clientHeight) return;
    follows = false;
    leftUntil = performance.now() + 300;
  };
  log.addEventListener("wheel", (event) => { if (event.deltaY < 0) leave(); }, { passive: true });
  log.addEventListener("keydown", (event) => { if (/^(PageUp|ArrowUp|Home)$/.test(event.key) && event.target === log) leave(); });
  for (const name of ["mousedown", "touchstart"]) log.addEventListener(name, () => { held = true; }, { passive: true });
  for (const name of ["mouseup", "touchend", "touchcancel"]) addEventListener(name, () => { held = false; }, { passive: true });
  addEventListener("keydown", () => { usesKeys = true; }, { capture: true });
  addEventListener("pointerdown", () => { usesKeys = false; }, { capture: true });
  setInterval(settleAll, 5000); // the tab that received an answer may have been closed
  const sizes = new ResizeObserver(followEnd);
  sizes.observe($("thread")); // formulas and code come later
  sizes.observe(log);         // the field below grows
  $("to-end").append(icon("down"));
  $("to-end").addEventListener("click", scrollToEnd);
}

export const currentPath = () => (open.conversation ? pathTo(open.messages, open.conversation.leaf) : []);

export function scrollToEnd() {
  const log = $("messages");
  follows = true;
  log.scrollTop = log.scrollHeight;
  lastTop = log.scrollTop;
  $("to-end").hidden = true;
}

function followEnd() {
  if (follows && !held) scrollToEnd();
}

// Opens a conversation; `target` is a message to show, else its end is shown.
export async function openConversation(conversation, target, text) {
  const turn = ++loading;
  const [messages, make] = await Promise.all([loadMessages(conversation.id), loadMarkdown()]);
  if (turn !== loading) return;
  makeView = make;
  const run = runIn(conversation);
  if (run) messages.set(run.message.id, run.message); // its text is newer than what is stored
  Object.assign(open, { conversation, messages });
  if (target && messages.has(target)) conversation.leaf = newestLeaf(messages, target);
  conversation.leaf = newestLeaf(messages, messages.has(conversation.leaf) ? conversation.leaf : null); // another tab may have gone on
  drawConversation(target);
  if (target && text) showText(views.get(target)?.node, text);
  settleAll();
}

// Marks where a message contains a text that was searched for, and shows the first of them.
function showText(node, text) {
  globalThis.CSS?.highlights?.delete("searched");
  if (!node || !globalThis.Highlight) return;
  for (const part of node.querySelectorAll(".part")) buildNow(part);
  const walk = document.createTreeWalker(node, NodeFilter.SHOW_TEXT), wanted = text.toLowerCase(), ranges = [];
  while (walk.nextNode() && ranges.length < 1000) {
    const { data } = walk.currentNode, lower = data.toLowerCase();
    if (lower.length !== data.length) continue; // a few letters grow
    for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, at + wanted.length)) {
      const range = document.createRange();
      range.setStart(walk.currentNode, at);
      range.setEnd(walk.currentNode, at + wanted.length);
      ranges.push(range);
    }
  }
  if (!ranges.length) return;
  CSS.highlights.set("searched", new Highlight(...ranges));
  ranges[0].startContainer.parentElement.scrollIntoView({ block: "center" });
}

function settleAll() {
  for (const message of open.messages.values()) if (isRunning(message) && !runOf(message.id)) settle(message);
}

// A new conversation is stored with its first message.
export async function showEmpty(conversation) {
  loading++;
  Object.assign(open, { conversation, messages: new Map() });
  drawConversation();
  makeView = await loadMarkdown();
}

// A stored answer that nobody receives any more was interrupted.
async function settle(message) {
  if (await runsElsewhere(message.id)) return;
  if (!isRunning(message) || runOf(message.id)) return;
  message.state = "interrupted";
  saveMessage(message);
  views.get(message.id)?.update();
}

export function drawConversation(target) {
  const path = currentPath(), log = $("messages");
  forgetWaiting();
  views.clear();
  hooks.empty(path.length === 0);
  const nodes = path.map((message) => {
    const view = new MessageView(message, open.messages, makeView, actions);
    views.set(message.id, view);
    view.node.style.minHeight = expectedHeight(message) + "px";
    return view.node;
  });
  $("thread").replaceChildren(...nodes);
  markForgotten();
  let height = 0; // what the screen shows is built at once, from the end
  for (const node of nodes.toReversed()) {
    const view = views.get(node.dataset.id);
    if (height < log.clientHeight * 1.5 && !target) {
      view.build();
      height += expectedHeight(view.message);
    } else observe(node, () => view.build());
  }
  const wanted = target && views.get(target)?.node;
  if (wanted) {
    follows = false;
    buildNow(wanted);
    wanted.scrollIntoView({ block: "start" });
    wanted.classList.add("found");
  } else scrollToEnd();
  hooks.changed();
}

// Messages at the beginning that requests leave out.
export function markForgotten() {
  const skip = open.conversation?.skip ?? 0;
  currentPath().forEach((message, i) => {
    const view = views.get(message.id);
    if (view && view.node.classList.toggle("forgotten", i < skip) !== undefined) view.update();
  });
}

function appendView(message) {
  const view = new MessageView(message, open.messages, makeView, actions);
  views.set(message.id, view);
  $("thread").append(view.node);
  view.build();
  hooks.empty(false);
  return view;
}

// ---- Growth ----

const dirty = new Set();
let frame = 0, lastCost = 0, lastTime = 0;

// Redraws at most once per frame, and less often where building takes long, so that typing and scrolling stay smooth.
export function messageChanged(message) {
  if (!views.has(message.id)) return;
  dirty.add(message.id);
  frame ||= requestAnimationFrame(redraw);
}
function redraw(now) {
  frame = 0;
  if (now - lastTime < Math.min(500, 3 * lastCost)) {
    frame = requestAnimationFrame(redraw);
    return;
  }
  const start = performance.now();
  for (const id of dirty) views.get(id)?.update();
  dirty.clear();
  followEnd();
  lastCost = performance.now() - start;
  lastTime = now;
}
export function messageEnded(message) {
  dirty.delete(message.id);
  views.get(message.id)?.update();
  followEnd();
  if (views.has(message.id)) announce(message.content.length < 600 ? message.content : t("answerComplete"));
  hooks.changed();
}

// ---- Actions ----

function addAnswer(parent) {
  return startAnswer(open.conversation, open.messages, parent);
}

// Redraws the messages. The focus stays on the action that was chosen by key, or goes to the field where that is gone.
function redrawAll() {
  const focused = document.activeElement, article = focused?.closest?.("#thread > article"), byKey = article && usesKeys;
  const index = byKey ? [...$("thread").children].indexOf(article) : -1, label = byKey ? focused.getAttribute("aria-label") : null;
  drawConversation();
  if (!byKey) return;
  const buttons = [...$("thread").children[index]?.querySelectorAll("footer button:not(:disabled)") ?? []];
  (buttons.find((button) => label && button.getAttribute("aria-label") === label) ?? buttons.find((button) => button.closest(".versions")) ?? $("input")).focus();
}

function branchFrom(parentId, then) {
  const { conversation } = open;
  if (runIn(conversation)) return false;
  conversation.leaf = parentId;
  then();
  redrawAll();
  return true;
}

export function sendMessage(text, attachments) {
  const { conversation, messages } = open;
  const message = newMessage(conversation, conversation.leaf, "user", { content: text });
  if (attachments.length) message.attachments = attachments;
  messages.set(message.id, message);
  conversation.leaf = message.id;
  saveMessage(message);
  tellTabs({ kind: "message", conversation, message });
  appendView(message);
  const answer = addAnswer(message.id);
  appendView(answer);
  scrollToEnd();
  hooks.changed();
  return message;
}

// Whether a request that ends with `path` has room; the last `keep` messages stay. Where the user must choose what to forget,
// `again` is called after the choice.
async function hasRoom(path, keep, again) {
  const { conversation } = open;
  if (runIn(conversation)) toast(t("stopFirst"), null, null, 5);
  return !runIn(conversation) && await hooks.room(path, keep, again) && open.conversation === conversation && !runIn(conversation);
}

const actions = {
  // A text that is being changed is kept with the conversation until it is sent or given up.
  edited: (message) => open.conversation?.edits?.[message.id],
  keepEdit(message, text) {
    const { [message.id]: _, ...others } = open.conversation.edits ?? {};
    open.conversation.edits = text === undefined ? others : { ...others, [message.id]: text };
    hooks.edited();
  },
  // A changed text becomes a new version of the message: a user's gets a new answer, an answer stays as it was written.
  async edit(message, text) {
    if (message.role !== "user" && runIn(open.conversation)) {
      toast(t("stopFirst"), null, null, 5);
      return;
    }
    const copy = newMessage(open.conversation, message.parent, message.role, { content: text, attachments: message.attachments, model: message.model });
    if (message.role === "user" && !await hasRoom([...pathTo(open.messages, message.parent), copy], 1, () => actions.edit(message, text))) return;
    branchFrom(message.parent, () => {
      actions.keepEdit(message, undefined);
      open.messages.set(copy.id, copy);
      saveMessage(copy);
      if (message.role === "user") addAnswer(copy.id);
      else {
        open.conversation.leaf = copy.id;
        saveConversation(open.conversation);
      }
    });
  },
  // Another answer: to this message, or in the stead of this answer.
  async answer(message) {
    const parent = message.role === "user" ? message.id : message.parent;
    if (!await hasRoom(pathTo(open.messages, parent), 1, () => actions.answer(message))) return;
    const failed = message.state === "failed" && !childrenOf(open.messages, message.id).length ? message : null;
    branchFrom(parent, () => startAnswer(open.conversation, open.messages, parent, failed));
  },
  // Goes on with an answer. Where messages follow it, a copy is continued, so that they keep what they answered.
  async go(message) {
    const { conversation, messages } = open;
    if (!await hasRoom(pathTo(messages, message.id), 2, () => actions.go(message))) return;
    let target = message;
    if ([...messages.values()].some(({ parent }) => parent === message.id)) {
      target = newMessage(conversation, message.parent, "assistant", { content: message.content, reasoning: message.reasoning, model: message.model });
      messages.set(target.id, target);
      conversation.leaf = target.id;
      continueAnswer(conversation, messages, target);
      redrawAll();
    } else {
      continueAnswer(conversation, messages, target);
      views.get(target.id)?.update();
      hooks.changed();
    }
  },
  // Takes away this version of a message and all that follows it.
  remove(message) {
    const { conversation, messages } = open, gone = withFollowing(messages, message), { leaf } = conversation, others = versionsOf(messages, message).list.filter((other) => other !== message);
    if (gone.some(isRunning)) {
      toast(t("stopFirst"), null, null, 5);
      return;
    }
    for (const { id } of gone) messages.delete(id);
    conversation.leaf = newestLeaf(messages, others.at(-1)?.id ?? message.parent);
    removeMessages(gone.map(({ id }) => id));
    saveConversation(conversation);
    tellTabs({ kind: "removed", conversation: conversation.id, ids: gone.map(({ id }) => id) });
    redrawAll();
    toast(t("messagesDeleted", { n: gone.length }), t("undo"), () => {
      for (const one of gone) {
        saveMessage(one);
        if (open.conversation?.id === conversation.id) open.messages.set(one.id, one);
        tellTabs({ kind: "message", conversation, message: one });
      }
      conversation.leaf = leaf;
      saveConversation(conversation);
      if (open.conversation?.id === conversation.id) drawConversation();
    });
  },
  select(message) {
    open.conversation.leaf = newestLeaf(open.messages, message.id);
    saveConversation(open.conversation);
    redrawAll();
    views.get(message.id)?.node.scrollIntoView({ block: "nearest" });
  },
  settings: (field) => hooks.settings(field),
};

// Edits the last message of the user. Returns whether there is one.
export function editLast() {
  const view = views.get(currentPath().findLast(({ role }) => role === "user")?.id);
  if (!view) return false;
  buildNow(view.node);
  view.edit();
  view.node.scrollIntoView({ block: "nearest" });
  return true;
}

// Messages that another tab took away.
export function dropMessages(conversationId, ids) {
  if (open.conversation?.id !== conversationId) return;
  for (const id of ids) open.messages.delete(id);
  const { conversation, messages } = open;
  if (!messages.has(conversation.leaf)) conversation.leaf = newestLeaf(messages, null);
  drawConversation();
}

// A message from another tab.
export function takeMessage(conversation, message) {
  if (open.conversation?.id !== conversation.id) return;
  const known = open.messages.get(message.id);
  if (known) {
    Object.assign(known, message);
    messageChanged(known);
    return;
  }
  const follow = message.parent === open.conversation.leaf;
  open.messages.set(message.id, message);
  if (follow) {
    open.conversation.leaf = message.id;
    appendView(message);
    markForgotten();
  }
  hooks.changed();
}
