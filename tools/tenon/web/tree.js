// A conversation as a tree of messages, without storage and without a screen. Messages name their parent; those with the
// same parent are versions of each other. A conversation shows the path that ends at its leaf.
import { foreignEntries } from "./foreign.js";

let lastId = 0;

// Ids sort by the time of their making, also across tabs.
export function newId() {
  const time = Date.now();
  lastId = Math.max(lastId + 1, time * 64);
  const random = Math.floor(Math.random() * 36 ** 5).toString(36).padStart(5, "0");
  return lastId.toString(36).padStart(10, "0") + random;
}

export function newConversation(system = "") {
  const now = Date.now();
  return { id: newId(), title: "", named: false, created: now, updated: now, leaf: null, system, draft: "" };
}

export function newMessage(conversation, parent, role, fields = {}) {
  return { id: newId(), conversation: conversation.id, parent: parent ?? null, role, content: "", state: "done", created: Date.now(), ...fields };
}

export function childrenOf(messages, parent) {
  return [...messages.values()].filter((message) => message.parent === (parent ?? null)).sort((a, b) => (a.id < b.id ? -1 : 1));
}

// Messages from the first to the leaf. Stored data may be damaged: parents that are missing or form a circle end the path.
export function pathTo(messages, leaf) {
  const path = [], seen = new Set();
  for (let at = messages.get(leaf); at && !seen.has(at.id); at = messages.get(at.parent)) {
    seen.add(at.id);
    path.push(at);
  }
  return path.reverse();
}

// The end of the newest branch below a message.
export function newestLeaf(messages, id) {
  for (;;) {
    const next = childrenOf(messages, id).at(-1);
    if (!next) return id;
    id = next.id;
  }
}

// A message and all that follows it, in all versions.
export function withFollowing(messages, message) {
  const list = [message];
  for (let i = 0; i < list.length; i++) list.push(...childrenOf(messages, list[i].id));
  return list;
}

export function versionsOf(messages, message) {
  const list = childrenOf(messages, message.parent);
  return { list, index: list.findIndex(({ id }) => id === message.id) };
}

export function isRunning(message) {
  return message.state === "running";
}

// What the model gets for a user's message: attached documents first, then the text.
export function messageText(message) {
  const documents = (message.attachments ?? []).map(({ name, text }) => `[${name}]\n\n${text}\n\n[end of ${name}]`);
  return [...documents, message.content].join("\n\n");
}

// The `messages` of a request. `skip` is the number of messages at the beginning that are left out; `summary` replaces them.
export function requestMessages(path, { system = "", skip = 0, summary = "" } = {}) {
  const list = [];
  const first = [system.trim(), summary && `Summary of the conversation so far:\n${summary}`].filter(Boolean).join("\n\n");
  if (first) list.push({ role: "system", content: first });
  for (const message of path.slice(skip)) {
    if (message.role === "user") list.push({ role: "user", content: messageText(message) });
    else if (message.content || message.calls?.length) {
      const entry = { role: "assistant", content: message.content };
      if (message.calls?.length)
        entry.tool_calls = message.calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
      list.push(entry);
    }
  }
  return list;
}

// How many messages at the beginning to leave out so that the rest has room for `budget` tokens; the last `keep` always stay.
// A conversation goes on with a user's message, so that answers are left out with their questions.
export function messagesToSkip(tokens, roles, budget, keep = 1) {
  let sum = tokens.reduce((total, n) => total + n, 0), skip = 0;
  while (sum > budget && skip < tokens.length - keep) {
    sum -= tokens[skip++];
    while (skip < tokens.length - keep && roles[skip] !== "user") sum -= tokens[skip++];
  }
  return skip;
}

export function titleFrom(text) {
  const line = text.replace(/[#*_`>]+/g, "").trim().split("\n")[0].trim();
  return line.length > 60 ? line.slice(0, 59).trimEnd() + "…" : line;
}

// ---- Files ----

const fileKind = "tenon-conversations", fileVersion = 1;

export function toJSON(entries) { // [{ conversation, messages }]
  return JSON.stringify({ kind: fileKind, version: fileVersion, exported: new Date().toISOString(), conversations: entries.map(
    ({ conversation: { draft, draftFiles, edits, ...conversation }, messages }) => ({ ...conversation, messages: [...messages.values()] })) }, null, 1);
}

// Markdown for people, which fromFile reads again: comments say where messages, documents and reasoning begin and end. Their mark is one that
// the texts do not contain.
export function toMarkdown(conversation, path, names = { user: "You", assistant: "Model" }) {
  const whole = JSON.stringify([conversation.system, path]);
  let mark = "tenon";
  for (let i = 2; whole.includes(`<!-- ${mark}:`); i++) mark = "tenon" + i;
  const note = (text) => `<!-- ${mark}: ${text} -->`;
  const parts = [`# ${conversation.title || "Conversation"}`, note("conversation")];
  if (conversation.system.trim()) parts.push(note("system"), `> ${conversation.system.trim().replaceAll("\n", "\n> ")}`);
  for (const message of path) {
    parts.push(`## ${names[message.role] ?? message.role}`, note(message.role));
    for (const { name, text: body } of message.attachments ?? []) {
      const fence = "`".repeat(Math.max(3, ...(body.match(/`+/g) ?? []).map((run) => run.length + 1)));
      parts.push(note("document " + JSON.stringify(name).replaceAll(">", "\\u003e")), `*${name}*`, `${fence}\n${body}\n${fence}`);
    }
    if (message.reasoning) parts.push(note("reasoning"), `<details><summary>Reasoning</summary>\n\n${message.reasoning}\n\n</details>`);
    if (message.content && (message.attachments?.length || message.reasoning)) parts.push(note("text"));
    if (message.content) parts.push(message.content);
    for (const call of message.calls ?? []) parts.push(note("call"), "```json\n" + `${call.name}(${call.arguments})` + "\n```");
  }
  return parts.join("\n\n") + "\n";
}

const text = (value) => (typeof value === "string" ? value : "");

// Reads an exported file, or text in Markdown as toMarkdown writes it. Everything gets new ids, so that importing twice
// makes copies and never replaces anything. Throws an Error when the file is neither.
export function fromFile(source) {
  let file;
  try {
    file = JSON.parse(source);
  } catch {
    return [fromMarkdown(source)];
  }
  const list = file?.kind === fileKind && Array.isArray(file.conversations) ? file.conversations : foreignEntries(file);
  if (!list) throw new Error("not a file of conversations");
  return list.map((entry) => {
    const conversation = { ...newConversation(text(entry.system)), title: text(entry.title).slice(0, 200), named: entry.named === true,
      created: Number(entry.created) || Date.now(), updated: Number(entry.updated) || Date.now() };
    if (Number.isInteger(entry.skip) && entry.skip > 0) conversation.skip = entry.skip;
    if (entry.summary) conversation.summary = text(entry.summary);
    if (/^(shift|summarise|stop)$/.test(entry.fullContext)) conversation.fullContext = entry.fullContext;
    const ids = new Map(), messages = new Map();
    const given = (Array.isArray(entry.messages) ? entry.messages : []).filter((m) => m && typeof m.id === "string")
      .sort((a, b) => (a.id < b.id ? -1 : 1));
    for (const message of given) ids.set(message.id, newId());
    for (const m of given) {
      if (m.role !== "user" && m.role !== "assistant") continue;
      const message = newMessage(conversation, ids.get(m.parent) ?? null, m.role, { id: ids.get(m.id), content: text(m.content),
        created: Number(m.created) || Date.now(), state: m.state === "running" ? "interrupted" : text(m.state) || "done" });
      if (m.reasoning) message.reasoning = text(m.reasoning);
      if (m.model) message.model = text(m.model);
      if (m.finish) message.finish = text(m.finish);
      if (m.note) message.note = text(m.note);
      if (m.error) message.error = { status: Number(m.error.status) || 0, type: text(m.error.type), text: text(m.error.text), cut: m.error.cut === true };
      if (m.stats) message.stats = Object.fromEntries(Object.entries(m.stats).filter(([, value]) => Number.isFinite(value)));
      if (Array.isArray(m.attachments)) message.attachments = m.attachments.map((a) => ({ name: text(a?.name), text: text(a?.text), ...(a?.tokens > 0 ? { tokens: Number(a.tokens) } : {}) }));
      if (Array.isArray(m.calls)) message.calls = m.calls.map((c) => ({ id: text(c?.id), name: text(c?.name), arguments: text(c?.arguments) }));
      messages.set(message.id, message);
    }
    const leaf = ids.get(entry.leaf);
    conversation.leaf = messages.has(leaf) ? leaf : newestLeaf(messages, null);
    return { conversation, messages };
  });
}

function fromMarkdown(source) {
  const conversation = newConversation(), messages = new Map(), normal = source.replaceAll("\r\n", "\n");
  const mark = /^<!-- (tenon\d*): conversation -->$/m.exec(normal)?.[1];
  const add = (role, fields) => {
    const message = newMessage(conversation, conversation.leaf, role, fields);
    messages.set(message.id, message);
    conversation.leaf = message.id;
  };
  const head = /^# (.+)$/m.exec(normal.split(/^## /m)[0]);
  conversation.title = head ? head[1].slice(0, 200) : "";
  conversation.named = !!head;
  if (mark) readMarked(normal, mark, conversation, add);
  else readHeadings(normal, conversation, add);
  if (!messages.size) throw new Error("not a file of conversations");
  return { conversation, messages };
}

// Text that was not exported from here: its second headings begin messages, which take turns.
function readHeadings(source, conversation, add) {
  const parts = source.split(/^## (.+)$/m);
  conversation.system = [...parts[0].matchAll(/^> ?(.*)$/gm)].map((match) => match[1]).join("\n");
  for (let i = 1; i + 1 < parts.length; i += 2) add((i - 1) / 2 % 2 ? "assistant" : "user", { content: parts[i + 1].trim() });
}

function readMarked(source, mark, conversation, add) {
  const parts = source.split(new RegExp(`^<!-- ${mark}: (.+) -->$`, "m"));
  let message = null;
  const end = () => message && add(message.role, message.fields);
  for (let i = 1; i + 1 < parts.length; i += 2) {
    const [, kind, rest] = /^(\w+) ?(.*)$/.exec(parts[i]) ?? [];
    const last = /^(user|assistant)$/.test(/^\w+/.exec(parts[i + 2] ?? "")?.[0] ?? "");
    const body = parts[i + 1].replace(last ? /\n\n## [^\n]*\n\n$/ : i + 2 < parts.length ? /\n\n$/ : /\n$/, "").replace(/^\n\n/, ""); // without the next heading
    if (kind === "system") conversation.system = body.replace(/^> ?/gm, "");
    else if (kind === "user" || kind === "assistant") {
      end();
      message = { role: kind, fields: { content: body } };
    } else if (!message) continue;
    else if (kind === "text") message.fields.content = body;
    else if (kind === "reasoning") message.fields.reasoning = body.replace(/^<details><summary>.*<\/summary>\n\n/, "").replace(/\n\n<\/details>$/, "");
    else if (kind === "document") (message.fields.attachments ??= []).push({ name: parsed(rest), text: body.replace(/^[^\n]*\n\n`+\n/, "").replace(/\n`+$/, "") });
    else if (kind === "call") {
      const call = /^```json\n([^(]*)\(([^]*)\)\n```$/.exec(body);
      if (call) (message.fields.calls ??= []).push({ id: "", name: call[1], arguments: call[2] });
    }
  }
  end();
}

function parsed(json) {
  try {
    return text(JSON.parse(json));
  } catch {
    return "";
  }
}
