// The page of tenon serve: chat and memory view. No libraries, nothing from elsewhere; conversations stay in the browser.
"use strict";
const $ = (id) => document.getElementById(id);
const settings = ["system", "temperature", "top_k", "top_p", "min_p", "max_tokens", "seed", "key"];
let conversations = [], current = null, running = null;

// ---- What the browser keeps ---------------------------------------------------------------------------------------

function load(name, fallback) {
  try { return JSON.parse(localStorage.getItem("tenon." + name)) ?? fallback; } catch { return fallback; }
}
function keep(name, value) {
  try { localStorage.setItem("tenon." + name, JSON.stringify(value)); } catch { $("status").textContent = "The browser keeps nothing: its storage is full or off."; }
}
function keepConversations() { keep("conversations", conversations); }

// ---- Text with a little markdown, built from nodes: no text ever becomes markup -----------------------------------

function inline(parent, text) {
  for (const part of text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/)) {
    let node = document.createTextNode(part);
    if (/^`.+`$/.test(part)) { node = document.createElement("code"); node.textContent = part.slice(1, -1); }
    else if (/^\*\*.+\*\*$/.test(part)) { node = document.createElement("strong"); node.textContent = part.slice(2, -2); }
    parent.append(node);
  }
}
function block(parent, text) {
  for (const part of text.split(/\n{2,}/)) {
    if (!part.trim()) continue;
    const lines = part.split("\n");
    const heading = /^(#{1,4}) (.*)$/.exec(lines[0]);
    if (heading && lines.length === 1) {
      const h = document.createElement("h" + Math.min(6, heading[1].length + 2));
      inline(h, heading[2]);
      parent.append(h);
    } else if (lines.every((line) => /^\s*([-*]|\d+\.) /.test(line))) {
      const list = document.createElement(/^\s*\d/.test(lines[0]) ? "ol" : "ul");
      for (const line of lines) {
        const item = document.createElement("li");
        inline(item, line.replace(/^\s*([-*]|\d+\.) /, ""));
        list.append(item);
      }
      parent.append(list);
    } else {
      const p = document.createElement("p");
      inline(p, part);
      parent.append(p);
    }
  }
}
function markdown(parent, text) {
  parent.replaceChildren();
  text.split(/^```.*\n?/m).forEach((part, i) => {
    if (i % 2 === 0) { block(parent, part); return; }
    const pre = document.createElement("pre"), code = document.createElement("code");
    code.textContent = part.replace(/\n$/, "");
    pre.append(code);
    parent.append(pre);
  });
}

// ---- Drawing ------------------------------------------------------------------------------------------------------

function messageNode(message, index) {
  const node = document.createElement("article"), who = document.createElement("div"), text = document.createElement("div");
  node.className = "message " + message.role + (message.error ? " error" : "");
  who.className = "who";
  who.append(message.role === "user" ? "You" : "Model");
  if (message.role === "user") {
    const edit = document.createElement("button");
    edit.textContent = "Edit";
    edit.onclick = () => {
      if (running) return;
      $("input").value = message.content;
      current.messages.length = index;
      keepConversations();
      draw();
      $("input").focus();
    };
    who.append(edit);
  }
  text.className = "text";
  node.append(who);
  if (message.reasoning) {
    const thought = document.createElement("div");
    thought.className = "thought";
    thought.textContent = message.reasoning;
    node.append(thought);
  }
  node.append(text);
  markdown(text, message.error || message.content || "");
  return node;
}
function draw() {
  const list = $("list"), log = $("messages");
  list.replaceChildren(...conversations.map((one) => {
    const item = document.createElement("li"), open = document.createElement("button"), remove = document.createElement("button");
    open.textContent = one.messages[0]?.content.slice(0, 60) || "New conversation";
    open.setAttribute("aria-current", one === current);
    open.onclick = () => { if (!running) { current = one; keep("current", one.id); closeMenu(); draw(); } };
    remove.textContent = "×";
    remove.setAttribute("aria-label", "Delete this conversation");
    remove.onclick = () => {
      if (running) return;
      conversations = conversations.filter((other) => other !== one);
      if (current === one) current = conversations[0] || begin();
      keepConversations();
      draw();
    };
    item.append(open, remove);
    return item;
  }));
  log.replaceChildren(...current.messages.map(messageNode));
  log.scrollTop = log.scrollHeight;
  $("send").disabled = !!running;
  $("stop").disabled = !running;
  $("again").disabled = !!running || !current.messages.some((m) => m.role === "user");
}
function drawLast() {
  const log = $("messages"), end = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  const index = current.messages.length - 1;
  log.lastElementChild?.replaceWith(messageNode(current.messages[index], index));
  if (end) log.scrollTop = log.scrollHeight;
}
function begin() {
  const one = { id: Date.now(), messages: [] };
  conversations.unshift(one);
  keep("current", one.id);
  return one;
}

// ---- Talking ------------------------------------------------------------------------------------------------------

function headers() {
  const key = $("key").value;
  return key ? { "Content-Type": "application/json", Authorization: "Bearer " + key } : { "Content-Type": "application/json" };
}
function requestBody() {
  const messages = current.messages.filter((m) => !m.error).map((m) => ({ role: m.role, content: m.content }));
  if (messages.at(-1)?.role === "assistant") messages.pop();
  if ($("system").value.trim()) messages.unshift({ role: "system", content: $("system").value });
  const body = { model: $("model").value, messages, stream: true, stream_options: { include_usage: true } };
  for (const name of ["temperature", "top_k", "top_p", "min_p", "max_tokens", "seed"])
    if ($(name).value !== "") body[name] = Number($(name).value);
  return body;
}
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ")) continue;
      if (part === "data: [DONE]") return;
      yield JSON.parse(part.slice(6));
    }
  }
}
async function answer() {
  const reply = { role: "assistant", content: "" };
  current.messages.push(reply);
  running = new AbortController();
  draw();
  $("status").textContent = "…";
  let frame = 0;
  const redraw = () => { frame ||= requestAnimationFrame(() => { frame = 0; drawLast(); }); };
  try {
    const response = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(requestBody()), signal: running.signal });
    if (!response.ok) throw new Error((await response.json()).error?.message || response.statusText);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      const delta = event.choices[0]?.delta;
      if (delta?.content) reply.content += delta.content;
      if (delta?.reasoning_content) reply.reasoning = (reply.reasoning || "") + delta.reasoning_content;
      if (event.timings) $("status").textContent = `${event.usage.completion_tokens} tokens, ${event.timings.predicted_per_second.toFixed(1)} per second`;
      redraw();
    }
  } catch (error) {
    if (error.name === "AbortError") $("status").textContent = "Stopped";
    else { reply.error = error.message; $("status").textContent = "Failed"; }
  }
  running = null;
  cancelAnimationFrame(frame); // what is drawn after the end belongs to others
  keepConversations();
  draw();
  $("input").focus();
}

$("form").onsubmit = (event) => {
  event.preventDefault();
  const text = $("input").value.trim();
  if (!text || running) return;
  current.messages.push({ role: "user", content: text });
  $("input").value = "";
  keepConversations();
  answer();
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
  if (current.messages.length) answer();
};
$("new").onclick = () => {
  if (running) return;
  current = begin();
  keepConversations();
  closeMenu();
  draw();
  $("input").focus();
};

// ---- Frame --------------------------------------------------------------------------------------------------------

function closeMenu() { $("side").classList.remove("open"); $("menu").setAttribute("aria-expanded", "false"); }
$("menu").onclick = () => $("menu").setAttribute("aria-expanded", $("side").classList.toggle("open"));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (running) running.abort();
  closeMenu();
});
$("theme").onclick = () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  keep("theme", document.documentElement.dataset.theme);
};
function show(memory) {
  $("chat").hidden = memory;
  $("memory").hidden = !memory;
  $("show-chat").setAttribute("aria-pressed", !memory);
  $("show-memory").setAttribute("aria-pressed", memory);
  if (memory) { drawMemory(); drawPlan(); }
}
$("show-chat").onclick = () => show(false);
$("show-memory").onclick = () => show(true);

// ---- Memory -------------------------------------------------------------------------------------------------------

const colours = { weights: "#4878a8", mapped: "#a9bfd6", cache: "#cf8e3f", compute: "#6a9a5b", scratch: "#9a6aa0" };
const slotColour = (i) => `hsl(${(i * 137 + 205) % 360} 55% 52%)`;
const bytes = (n) => n >= 2 ** 30 ? (n / 2 ** 30).toFixed(2) + " GiB" : (n / 2 ** 20).toFixed(1) + " MiB";
const ofModel = () => $("model").value ? "?model=" + encodeURIComponent($("model").value) : "";
let before = null, planOf = null;

// Colours go in through the style object, which the page's content security policy allows; markup could not.
function swatch(colour, text) {
  const node = document.createElement("span"), mark = document.createElement("i");
  mark.style.background = colour;
  node.append(mark, text);
  return node;
}
function deviceNode(device) {
  const node = document.createElement("div"), title = document.createElement("div"), bar = document.createElement("div"), key = document.createElement("div");
  const whole = Math.max(1, device.used + device.mapped);
  title.textContent = `${device.name}: planned ${bytes(device.planned)}, used ${bytes(device.used)}, free ${bytes(device.free)} of ${bytes(device.total)}, ${device.layers} layers`;
  bar.className = "bar";
  key.className = "key";
  for (const [part, colour] of Object.entries(colours)) {
    const span = document.createElement("span");
    span.style.background = colour;
    span.style.width = (100 * device[part] / whole) + "%";
    bar.append(span);
    key.append(swatch(colour, `${part} ${bytes(device[part])}`));
  }
  node.append(title, bar, key);
  return node;
}
function drawCells(cells) {
  const canvas = $("cells"), context = canvas.getContext("2d");
  const side = Math.max(1, Math.floor(Math.sqrt(canvas.width * 192 / Math.max(1, cells.total))));
  const columns = Math.floor(canvas.width / side);
  canvas.height = Math.ceil(cells.total / columns) * side;
  context.clearRect(0, 0, canvas.width, canvas.height);
  let i = 0;
  for (const [owner, count] of cells.runs) {
    context.fillStyle = owner < 0 ? "#8883" : slotColour(owner);
    for (const end = i + count; i < end; i++)
      context.fillRect((i % columns) * side, Math.floor(i / columns) * side, Math.max(1, side - 1), Math.max(1, side - 1));
  }
}
async function drawMemory() {
  if ($("memory").hidden || document.hidden) return;
  try {
    const response = await fetch("memory" + ofModel(), { headers: headers() });
    const now = await response.json();
    if (!response.ok) throw new Error(now.error.message);
    $("devices").replaceChildren(...now.devices.map(deviceNode));
    $("cells-text").textContent = `${now.cells.used} of ${now.cells.total} cells in use, ${now.cells.peak} at most so far`;
    drawCells(now.cells);
    const key = document.createElement("div");
    key.className = "key";
    key.append(...now.slots.map((slot, i) => swatch(slotColour(i), `slot ${i}: ${slot.busy ? "writing" : "idle"}, ${slot.cells} cells`)));
    $("slots").replaceChildren(key);
    const time = performance.now();
    const rate = before ? (now.generated_tokens - before.tokens) / (time - before.time) * 1000 : 0;
    before = { tokens: now.generated_tokens, time };
    $("speed").textContent = `${rate.toFixed(1)} tokens per second, ${now.slots.filter((slot) => slot.busy).length} of ${now.slots.length} slots at work, ${now.waiting} waiting`;
  } catch (error) {
    $("speed").textContent = error.message;
  }
}
// Fetched rather than named as the picture's source, because a key goes in a header.
async function drawPlan() {
  const of = ofModel();
  if (planOf === of) return;
  try {
    const response = await fetch("plan.svg" + of, { headers: headers() });
    if (!response.ok) throw new Error((await response.json()).error.message);
    const source = await response.text();
    URL.revokeObjectURL($("plan").src);
    $("plan").src = $("plan-link").href = URL.createObjectURL(new Blob([source], { type: "image/svg+xml" }));
    $("plan-link").hidden = false;
    $("plan-text").textContent = /<title>([^<]*)/.exec(source)?.[1] ?? "";
    planOf = of;
  } catch (error) {
    $("plan-link").hidden = true;
    $("plan-text").textContent = error.message;
  }
}
setInterval(drawMemory, 500);

// ---- Start --------------------------------------------------------------------------------------------------------

const theme = load("theme", "");
if (theme) document.documentElement.dataset.theme = theme;
const kept = load("settings", {});
for (const name of settings) {
  if (name in kept) $(name).value = kept[name];
  $(name).onchange = () => keep("settings", Object.fromEntries(settings.map((one) => [one, $(one).value])));
}
conversations = load("conversations", []);
current = conversations.find((one) => one.id === load("current", 0)) || conversations[0] || begin();
draw();
async function listModels() {
  try {
    const models = (await (await fetch("v1/models", { headers: headers() })).json()).data ?? [];
    $("model").replaceChildren(...models.map((model) => new Option(model.id, model.id)));
    $("model").disabled = models.length < 2;
    const chosen = load("model", "");
    if (models.some((model) => model.id === chosen)) $("model").value = chosen;
  } catch { /* the first message will say what is wrong */ }
}
$("model").onchange = () => { keep("model", $("model").value); before = null; drawMemory(); if (!$("memory").hidden) drawPlan(); };
$("key").addEventListener("change", listModels);
listModels();
