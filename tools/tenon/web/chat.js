// The web UI of tenon serve: conversations, chat and settings. It uses no libraries and no other servers; conversations
// are stored in the browser only.
"use strict";
const $ = (id) => document.getElementById(id);
const samplingFields = ["temperature", "top_k", "top_p", "min_p", "max_tokens", "seed"];
const settings = ["system", ...samplingFields, "key"];
let conversations = []; // newest first: { id, messages: [{ role, content, reasoning, error }] }
let current = null;     // the conversation on the screen
let running = null;     // AbortController of the request that is being answered

// ---- Storage in the browser ----

function loadItem(name, fallback) {
  try {
    return JSON.parse(localStorage.getItem("tenon." + name)) ?? fallback;
  } catch {
    return fallback;
  }
}
function saveItem(name, value) {
  try {
    localStorage.setItem("tenon." + name, JSON.stringify(value));
  } catch {
    $("status").textContent = "Cannot save: the browser's storage is full or disabled.";
  }
}
function saveConversations() {
  saveItem("conversations", conversations);
}
function saveSettings() {
  saveItem("settings", Object.fromEntries(settings.map((name) => [name, $(name).value])));
}

// ---- Conversations ----

function startConversation() {
  const conversation = { id: Date.now(), messages: [] };
  conversations.unshift(conversation);
  saveItem("current", conversation.id);
  return conversation;
}
function openConversation(conversation) {
  if (running) return;
  current = conversation;
  saveItem("current", conversation.id);
  closeMenu();
  draw();
}
function deleteConversation(conversation) {
  if (running) return;
  conversations = conversations.filter((other) => other !== conversation);
  if (current === conversation) current = conversations[0] || startConversation();
  saveConversations();
  draw();
}
// Takes the conversation back to a message, whose text can then be edited and sent again.
function editMessage(index) {
  if (running) return;
  $("input").value = current.messages[index].content;
  current.messages.length = index;
  saveConversations();
  draw();
  $("input").focus();
}

// ---- Drawing ----

function messageNode(message, index) {
  const isUser = message.role === "user";
  const header = element("div", { className: "who" }, isUser ? "You" : "Model");
  const text = element("div", { className: "text" });
  const node = element("article", { className: "message " + message.role + (message.error ? " error" : "") }, header);
  if (isUser) header.append(element("button", { onclick: () => editMessage(index) }, "Edit"));
  if (message.reasoning) node.append(element("div", { className: "thought" }, message.reasoning));
  node.append(text);
  showMarkdown(text, message.error || message.content || "");
  return node;
}
function conversationNode(conversation) {
  const title = conversation.messages[0]?.content.slice(0, 60) || "New conversation";
  const open = element("button", { onclick: () => openConversation(conversation) }, title);
  const remove = element("button", { onclick: () => deleteConversation(conversation) }, "×");
  open.setAttribute("aria-current", conversation === current);
  remove.setAttribute("aria-label", "Delete this conversation");
  return element("li", {}, open, remove);
}
function draw() {
  const log = $("messages");
  $("list").replaceChildren(...conversations.map(conversationNode));
  log.replaceChildren(...current.messages.map(messageNode));
  log.scrollTop = log.scrollHeight;
  $("send").disabled = !!running;
  $("stop").disabled = !running;
  $("again").disabled = !!running || !current.messages.some((message) => message.role === "user");
}
// Redraws the message that is being generated; scrolls along unless the user has scrolled up.
function drawLastMessage() {
  const log = $("messages"), atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  const index = current.messages.length - 1;
  log.lastElementChild?.replaceWith(messageNode(current.messages[index], index));
  if (atEnd) log.scrollTop = log.scrollHeight;
}

// ---- Requests ----

function requestHeaders() {
  const headers = { "Content-Type": "application/json" };
  if ($("key").value) headers.Authorization = "Bearer " + $("key").value;
  return headers;
}
function requestBody() {
  const messages = current.messages.filter((message) => !message.error).map(({ role, content }) => ({ role, content }));
  if (messages.at(-1)?.role === "assistant") messages.pop(); // the reply that is about to be generated
  if ($("system").value.trim()) messages.unshift({ role: "system", content: $("system").value });
  const body = { model: $("model").value, messages, stream: true, stream_options: { include_usage: true } };
  for (const name of samplingFields)
    if ($(name).value !== "") body[name] = Number($(name).value);
  return body;
}
// The JSON of the events of an event stream.
async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part === "data: [DONE]") return;
      if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
    }
  }
}
async function streamReply(reply, redraw) {
  const response = await fetch("v1/chat/completions", {
    method: "POST", headers: requestHeaders(), body: JSON.stringify(requestBody()), signal: running.signal,
  });
  if (!response.ok) throw new Error((await response.json()).error?.message || response.statusText);
  for await (const event of readEvents(response)) {
    if (event.error) throw new Error(event.error.message);
    const delta = event.choices[0]?.delta;
    if (delta?.content) reply.content += delta.content;
    if (delta?.reasoning_content) reply.reasoning = (reply.reasoning || "") + delta.reasoning_content;
    if (event.timings) {
      const speed = event.timings.predicted_per_second.toFixed(1);
      $("status").textContent = `${event.usage.completion_tokens} tokens, ${speed} per second`;
    }
    redraw();
  }
}
async function generateReply() {
  const reply = { role: "assistant", content: "" };
  current.messages.push(reply);
  running = new AbortController();
  draw();
  $("status").textContent = "…";
  let frame = 0; // at most one redraw per screen refresh
  const redraw = () => { frame ||= requestAnimationFrame(() => { frame = 0; drawLastMessage(); }); };
  try {
    await streamReply(reply, redraw);
  } catch (error) {
    if (error.name !== "AbortError") reply.error = error.message;
    $("status").textContent = reply.error ? "Failed" : "Stopped";
  }
  running = null;
  cancelAnimationFrame(frame);
  saveConversations();
  draw();
  $("input").focus();
}

// ---- Buttons and keys ----

$("form").onsubmit = (event) => {
  event.preventDefault();
  const text = $("input").value.trim();
  if (!text || running) return;
  current.messages.push({ role: "user", content: text });
  $("input").value = "";
  saveConversations();
  generateReply();
};
$("input").onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("form").requestSubmit();
};
$("stop").onclick = () => running?.abort();
$("again").onclick = () => {
  if (running) return;
  while (current.messages.at(-1)?.role === "assistant") current.messages.pop();
  if (current.messages.length) generateReply();
};
$("new").onclick = () => {
  if (running) return;
  current = startConversation();
  saveConversations();
  closeMenu();
  draw();
  $("input").focus();
};
function closeMenu() {
  $("side").classList.remove("open");
  $("menu").setAttribute("aria-expanded", "false");
}
$("menu").onclick = () => $("menu").setAttribute("aria-expanded", $("side").classList.toggle("open"));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (running) running.abort();
  closeMenu();
});
$("theme").onclick = () => {
  const root = document.documentElement.dataset;
  const isDark = root.theme ? root.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.theme = isDark ? "light" : "dark";
  saveItem("theme", root.theme);
};

// ---- Start ----

const savedTheme = loadItem("theme", "");
if (savedTheme) document.documentElement.dataset.theme = savedTheme;
const savedSettings = loadItem("settings", {});
for (const name of settings) {
  if (name in savedSettings) $(name).value = savedSettings[name];
  $(name).onchange = saveSettings;
}
conversations = loadItem("conversations", []);
current = conversations.find(({ id }) => id === loadItem("current", 0)) || conversations[0] || startConversation();
draw();

async function listModels() {
  try {
    const response = await fetch("v1/models", { headers: requestHeaders() });
    const models = (await response.json()).data ?? [];
    const chosen = loadItem("model", "");
    $("model").replaceChildren(...models.map(({ id }) => new Option(id, id)));
    $("model").disabled = models.length < 2;
    if (models.some(({ id }) => id === chosen)) $("model").value = chosen;
  } catch { /* the first message shows the error */ }
}
$("model").addEventListener("change", () => saveItem("model", $("model").value));
$("key").addEventListener("change", listModels);
listModels();
