// A conversation as a tree of messages, without storage and without a screen. Messages name their parent; those with the
// same parent are versions of each other. A conversation shows the path that ends at its leaf.

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
    ({ conversation, messages }) => ({ ...conversation, messages: [...messages.values()] })) }, null, 1);
}

export function toMarkdown(conversation, path, names = { user: "You", assistant: "Model" }) {
  const parts = [`# ${conversation.title || "Conversation"}`];
  if (conversation.system.trim()) parts.push(`> ${conversation.system.trim().replaceAll("\n", "\n> ")}`);
  for (const message of path) {
    parts.push(`## ${names[message.role] ?? message.role}`);
    for (const { name } of message.attachments ?? []) parts.push(`*${name}*`);
    if (message.reasoning) parts.push(`<details><summary>Reasoning</summary>\n\n${message.reasoning}\n\n</details>`);
    if (message.content) parts.push(message.content);
    for (const call of message.calls ?? []) parts.push("```json\n" + `${call.name}(${call.arguments})` + "\n```");
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
  const list = file?.kind === fileKind && Array.isArray(file.conversations) ? file.conversations : null;
  if (!list) throw new Error("not a file of conversations");
  return list.map((entry) => {
    const conversation = { ...newConversation(text(entry.system)), title: text(entry.title).slice(0, 200), named: entry.named === true,
      created: Number(entry.created) || Date.now() };
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
      if (Array.isArray(m.attachments)) message.attachments = m.attachments.map((a) => ({ name: text(a?.name), text: text(a?.text) }));
      if (Array.isArray(m.calls)) message.calls = m.calls.map((c) => ({ id: text(c?.id), name: text(c?.name), arguments: text(c?.arguments) }));
      messages.set(message.id, message);
    }
    const leaf = ids.get(entry.leaf);
    conversation.leaf = messages.has(leaf) ? leaf : newestLeaf(messages, null);
    return { conversation, messages };
  });
}

function fromMarkdown(source) {
  const conversation = newConversation(), messages = new Map();
  const parts = source.split(/^## (.+)$/m), head = /^# (.+)$/m.exec(parts[0]);
  if (parts.length < 3) throw new Error("not a file of conversations");
  conversation.title = head ? head[1].slice(0, 200) : "";
  conversation.named = !!head;
  conversation.system = [...parts[0].matchAll(/^> ?(.*)$/gm)].map((match) => match[1]).join("\n");
  for (let i = 1; i + 1 < parts.length; i += 2) {
    const role = (i - 1) / 2 % 2 ? "assistant" : "user"; // messages take turns, whatever the headings say
    const message = newMessage(conversation, conversation.leaf, role, { content: parts[i + 1].trim() });
    messages.set(message.id, message);
    conversation.leaf = message.id;
  }
  return { conversation, messages };
}
