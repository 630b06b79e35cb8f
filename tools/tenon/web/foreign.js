// Conversations that other programs exported, as entries of our own files: Open WebUI, llama.cpp's web UI, ChatGPT.

const milliseconds = (time) => (time > 1e11 ? Number(time) : Number(time) * 1000) || 0; // some count seconds
const joined = (parts) => (typeof parts === "string" ? parts : Array.isArray(parts) ? parts.map((part) => (typeof part === "string" ? part : part?.text ?? "")).join("\n") : "");

// { title, updated, leaf, nodes: [{ id, parent, role, content, reasoning, model, created }] } of what is in the file, or null.
function ofOpenWebUI({ title, updated_at: updated, chat }) {
  const history = chat?.history;
  if (!history?.messages) return null;
  return { title: title ?? chat.title, updated, leaf: history.currentId, nodes: Object.values(history.messages).map(
    ({ id, parentId, role, content, model, timestamp }) => ({ id, parent: parentId, role, content, model, created: timestamp })) };
}
function ofLlamaCpp({ conv, messages }) {
  if (!conv || !Array.isArray(messages)) return null;
  return { title: conv.name, updated: conv.lastModified, leaf: String(conv.currNode), nodes: messages.filter(({ type }) => type !== "root").map(
    ({ id, parent, role, content, thinking, reasoningContent, model, timestamp }) => ({ id: String(id), parent: String(parent), role, content, reasoning: thinking ?? reasoningContent, model, created: timestamp })) };
}
function ofChatGPT({ title, update_time: updated, current_node: leaf, mapping }) {
  if (!mapping) return null;
  return { title, updated, leaf, nodes: Object.entries(mapping).map(([id, { parent, message }]) => ({ id, parent, role: message?.author?.role,
    content: message?.content?.parts ?? message?.content?.text ?? "", model: message?.metadata?.model_slug, created: message?.create_time })) };
}

// Entries without the messages that are no user's and no model's; what follows those hangs on the message before. The versions of a message
// are in the order of their time, which our ids show.
function entryOf({ title, updated, leaf, nodes }) {
  const all = new Map(nodes.map((node) => [node.id, { ...node, content: joined(node.content) }]));
  const isKept = ({ role, content }) => (role === "user" || role === "assistant") && content.trim() !== "";
  const kept = [...all.values()].filter(isKept).sort((a, b) => milliseconds(a.created) - milliseconds(b.created));
  const ids = new Map(kept.map(({ id }, i) => [id, String(i).padStart(7, "0")]));
  const above = (id) => {
    for (let seen = new Set(), at = all.get(id); at && !seen.has(at.id); at = all.get(at.parent)) {
      if (isKept(at)) return ids.get(at.id);
      seen.add(at.id);
    }
    return null;
  };
  return { title, updated: milliseconds(updated), leaf: above(leaf), system: [...all.values()].find(({ role }) => role === "system")?.content ?? "",
    messages: kept.map(({ id, parent, role, content, reasoning, model, created }) => ({ id: ids.get(id), parent: above(parent), role, content, reasoning, model, created: milliseconds(created) })) };
}

// The conversations of a file that was parsed as JSON, or null where it is of none of these programs.
export function foreignEntries(file) {
  const found = [file].flat().filter((entry) => entry && typeof entry === "object").map((entry) => ofOpenWebUI(entry) ?? ofLlamaCpp(entry) ?? ofChatGPT(entry)).filter(Boolean);
  const entries = found.map(entryOf).filter(({ messages }) => messages.length);
  return entries.length ? entries : null;
}
