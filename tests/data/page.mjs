// Drives the page through Chromium's debugging protocol: node page.mjs URL DEBUG-PORT FOLDER-FOR-SCREENSHOTS
import assert from "node:assert/strict";
import fs from "node:fs";

const [url, port, shots] = process.argv.slice(2);
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const pages = await (await fetch(`http://127.0.0.1:${port}/json`)).json();
const socket = new WebSocket(pages.find((page) => page.type === "page").webSocketDebuggerUrl);
await new Promise((done) => { socket.onopen = done; });
const waiting = new Map(), complaints = [];
let count = 0;
socket.onmessage = ({ data }) => {
  const message = JSON.parse(data);
  if (message.id) waiting.get(message.id)(message.result);
  else if (message.method === "Runtime.exceptionThrown" || message.params?.entry?.level === "error") complaints.push(JSON.stringify(message.params));
};
const call = (method, params = {}) => new Promise((done) => {
  waiting.set(++count, done);
  socket.send(JSON.stringify({ id: count, method, params }));
});
const evaluate = async (expression) => {
  const { result, exceptionDetails } = await call("Runtime.evaluate", { expression, returnByValue: true });
  assert.equal(exceptionDetails, undefined, expression);
  return result.value;
};
const until = async (expression, what) => {
  for (let i = 0; i < 150; i++) {
    if (await evaluate(expression)) return;
    await wait(100);
  }
  assert.fail(what);
};
const size = (width, height) => call("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 500 });
const shot = async (name) => fs.writeFileSync(`${shots}/${name}.png`, Buffer.from((await call("Page.captureScreenshot")).data, "base64"));
const open = async () => {
  await call("Page.navigate", { url });
  await until(`document.readyState === "complete" && !!document.getElementById("send")`, "the page loads");
};

await call("Runtime.enable");
await call("Log.enable");
await call("Page.enable");
await size(1100, 700);
await open();
const type = (text) => evaluate(`$("input").value = ${JSON.stringify(text)}; $("form").requestSubmit()`);

// Settings count and are kept.
await evaluate(`$("max_tokens").value = 30; $("temperature").value = 0; $("temperature").onchange()`);
await type("Tell me a **story**");
await until(`!!running`, "sending starts");
await until(`document.querySelectorAll(".message").length === 2 && document.querySelector(".message.assistant .text").textContent.length > 0`, "text streams in");
await until(`!running`, "the answer ends");
assert.match(await evaluate(`$("status").textContent`), /^30 tokens, [0-9.]+ per second$/);
assert.equal(await evaluate(`document.querySelector(".message.user strong").textContent`), "story");
const first = await evaluate(`current.messages[1].content`);
await shot("chat");

// The same settings give the same text again; it replaces the old one.
await evaluate(`$("again").click()`);
await until(`!running`, "regenerating ends");
assert.equal(await evaluate(`current.messages.length`), 2);
assert.equal(await evaluate(`current.messages[1].content`), first);

// Stop: the text so far stays, the server's slot is free.
await evaluate(`$("max_tokens").value = 3000; $("max_tokens").onchange()`);
await type("And then?");
await until(`running && current.messages.at(-1).content.length > 5`, "a long answer runs");
await evaluate(`$("stop").click()`);
await until(`!running && $("status").textContent === "Stopped"`, "stopping");
await wait(500);
const memory = await (await fetch(url + "memory")).json();
assert.ok(memory.slots.every((slot) => !slot.busy), "a stopped answer frees its slot");

// Edit takes the conversation back to the message.
await evaluate(`document.querySelectorAll(".message.user button")[1].click()`);
assert.equal(await evaluate(`$("input").value`), "And then?");
assert.equal(await evaluate(`current.messages.length`), 2);

// Markup in a text stays text.
await evaluate(`current.messages.push({ role: "assistant", content: "<img src=x onerror=alert(1)>" }); draw(); current.messages.pop()`);
assert.equal(await evaluate(`document.querySelectorAll("#messages img").length`), 0);

// A reload keeps conversation and settings; so does the theme.
await evaluate(`$("theme").click()`);
const theme = await evaluate(`document.documentElement.dataset.theme`);
await open();
assert.equal(await evaluate(`current.messages[1].content`), first);
assert.equal(await evaluate(`$("temperature").value`), "0");
assert.equal(await evaluate(`document.documentElement.dataset.theme`), theme);
await evaluate(`document.documentElement.dataset.theme = "dark"`);
assert.equal(await evaluate(`getComputedStyle(document.body).backgroundColor`), "rgb(25, 26, 28)");

// The memory view draws devices and cells.
await evaluate(`$("show-memory").click()`);
await until(`/planned .* used /.test($("devices").textContent) && /cells in use/.test($("cells-text").textContent)`, "the memory view");
assert.ok(await evaluate(`[...$("cells").getContext("2d").getImageData(0, 0, 50, 1).data].some((value) => value > 0)`), "cells are drawn");
await shot("memory");

// A phone: nothing sticks out, the menu opens.
await evaluate(`$("show-chat").click()`);
await size(360, 640);
await wait(200);
assert.ok(await evaluate(`document.documentElement.scrollWidth`) <= 360);
await evaluate(`$("menu").click()`);
assert.notEqual(await evaluate(`getComputedStyle($("side")).display`), "none");
await shot("phone");

assert.deepEqual(complaints, []);
console.log("page: all well");
process.exit(0);
