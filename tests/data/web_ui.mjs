// Drives the web UI with playwright: node web_ui.mjs URL CHROMIUM FOLDER-FOR-SCREENSHOTS
import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const [url, executablePath, shots] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
const context = await browser.newContext({ viewport: { width: 1100, height: 720 }, colorScheme: "light" });
const page = await context.newPage();
const errors = [], otherServers = [];
page.on("pageerror", (error) => errors.push(error.message));
page.on("console", (message) => { if (message.type() === "error") errors.push(message.text()); });
page.on("request", (request) => { if (!request.url().startsWith(url) && !/^(data|blob):/.test(request.url())) otherServers.push(request.url()); });
const shot = (name) => page.screenshot({ path: `${shots}/${name}.png` });
const set = (label, value) => page.getByLabel(label, { exact: false }).fill(String(value));
// playwright's own waiting evaluates strings, which the content security policy forbids.
const until = async (condition, what, every = 25) => {
  for (const end = Date.now() + 30000; Date.now() < end; await page.waitForTimeout(every)) if (await page.evaluate(condition)) return;
  assert.fail(what);
};
const finished = () => until(() => !document.getElementById("send").disabled, "the answer ends");
const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
const answers = page.locator(".message.assistant .text");
const status = page.locator("#status");

// Replies run to their limit instead of ending where the model ends them.
await page.route("**/v1/chat/completions", (route) =>
  route.continue({ postData: JSON.stringify({ ...route.request().postDataJSON(), ignore_eos: true }) }));
await page.goto(url);
await until(() => document.getElementById("model").options.length === 1, "the model is listed");

// Settings take effect.
await page.getByText("Settings").click();
await set("Temperature", 0);
await set("Max tokens", 150);
await set("System prompt", "You tell stories.");

// Send with the keyboard alone; the text is streamed.
await page.evaluate(() => {
  window.lengths = new Set();
  new MutationObserver(() => window.lengths.add(document.querySelector(".message.assistant .text")?.textContent.length))
    .observe(document.getElementById("messages"), { childList: true, subtree: true });
});
await page.getByLabel("Message", { exact: true }).fill("Once upon a time there was a **fox**");
await page.keyboard.press("Enter");
await until(() => document.getElementById("status").textContent.includes("per second"), "an answer");
assert.ok(await page.evaluate(() => window.lengths.size) >= 3, "the text is streamed");
await finished();
assert.match(await status.textContent(), /^150 tokens, [0-9.]+ per second$/);
assert.equal(await page.locator(".message.user strong").textContent(), "fox");
const first = await answers.textContent();
assert.ok(first.length > 40);
await shot("chat");

// The same settings give the same text again; it replaces the old one.
await page.getByRole("button", { name: "Regenerate" }).click();
await finished();
assert.equal(await page.locator(".message").count(), 2);
assert.equal(await answers.textContent(), first);

// Stop keeps the text so far and frees the slot.
await set("Max tokens", 3000);
await page.getByLabel("Message", { exact: true }).fill("And then?");
await page.getByRole("button", { name: "Send" }).click();
await until(() => (document.querySelectorAll(".message.assistant .text")[1]?.textContent.length ?? 0) > 5, "a long answer runs", 5);
await page.getByRole("button", { name: "Stop" }).click();
await finished();
assert.equal(await status.textContent(), "Stopped");
assert.ok((await answers.nth(1).textContent()).length > 5);
let busy = true;
for (let i = 0; i < 100 && busy; i++) {
  await page.waitForTimeout(50);
  busy = (await (await fetch(url + "memory")).json()).slots.some((slot) => slot.busy);
}
assert.ok(!busy, "a stopped answer frees its slot");

// Edit takes the conversation back to the message; sending continues from there.
await page.getByRole("button", { name: "Edit" }).nth(1).click();
assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), "And then?");
assert.equal(await page.locator(".message").count(), 2);
await set("Max tokens", 20);
await page.getByLabel("Message", { exact: true }).fill("And the **bear**?");
await page.keyboard.press("Enter");
await until(() => document.querySelectorAll(".message").length === 4, "sending after editing");
await finished();
assert.equal(await page.locator(".message.user strong").nth(1).textContent(), "bear");

// Markdown is rendered, and HTML stays text.
await page.evaluate(() => {
  current.messages.push({ role: "assistant", content: "# Head\n\n- one\n- two\n\n```c\nint x;\n```\n\n<img src=x onerror=alert(1)>" });
  draw();
  current.messages.pop();
});
assert.equal(await page.locator("#messages li").count(), 2);
assert.equal(await page.locator("#messages pre code").last().textContent(), "int x;");
assert.equal(await page.locator("#messages img").count(), 0);

// A reload keeps conversation and settings; a second conversation keeps the first.
await page.reload();
assert.equal(await answers.first().textContent(), first);
assert.equal(await page.locator("#temperature").inputValue(), "0");
assert.equal(await page.locator("#system").inputValue(), "You tell stories.");
await page.getByRole("button", { name: "New conversation" }).first().click();
assert.equal(await page.locator(".message").count(), 0);
await page.locator("#list li button").nth(2).click();
assert.equal(await answers.first().textContent(), first);

// Dark follows the system; a choice overrides it and is kept.
assert.equal(await background(), "rgb(251, 250, 248)");
await page.emulateMedia({ colorScheme: "dark" });
assert.equal(await background(), "rgb(25, 26, 28)");
await shot("dark");
await page.getByRole("button", { name: "Switch between light and dark" }).click();
assert.equal(await background(), "rgb(251, 250, 248)");
await page.reload();
assert.equal(await background(), "rgb(251, 250, 248)");

// The memory view draws devices, cells and the plan, live during generation.
const generating = [1, 2, 3].map((seed) => fetch(url + "completion", { method: "POST",
  body: JSON.stringify({ prompt: "Once upon a time", n_predict: 300 * seed, ignore_eos: true, seed }) }));
await page.getByRole("button", { name: "Memory" }).click();
await until(() => /[1-9]\d*\.\d tokens per second, [1-4] of 4 slots busy/.test(document.getElementById("speed").textContent), "tokens per second");
assert.match(await page.locator("#devices").textContent(), /cpu: planned .* used .*weights .*cache .*compute/);
assert.match(await page.locator("#cells-text").textContent(), /^\d+ of \d+ cells in use/);
await until(() => {
  const canvas = document.getElementById("cells"), data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Set();
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) colours.add(`${data[i]},${data[i + 1]},${data[i + 2]}`);
  return colours.size >= 2;
}, "cells of several sequences");
assert.match(await page.locator("#pages-text").textContent(), /^\d+ of \d+ pages in use/);
await until(() => document.querySelectorAll("#tree rect").length >= 3, "the prefix tree");
assert.match(await page.locator("#prefixes-text").textContent(), /\d+ prompts began with cached tokens, \d+ did not/);
await until(() => document.getElementById("plan").naturalWidth > 500, "the plan's picture");
assert.match(await page.locator("#plan-text").textContent(), /cpu: .* above the lower bound/);
await page.setViewportSize({ width: 1100, height: 1110 });
await until(() => +/^\d+/.exec(document.getElementById("cells-text").textContent)[0] > 300, "cells fill");
await shot("memory");
await Promise.all(generating);

// Memory against speed is planned on demand. Where the CPU was not measured, the message says so.
await page.getByRole("button", { name: "Compare choices" }).click();
await until(() => !document.getElementById("compare").disabled, "the picture of memory and speed", 200);
if (await page.locator("#frontier svg").count())
  assert.match(await page.locator("#frontier").textContent(), /best: .*this server|this server.*best: /s);
else
  assert.match(await page.locator("#frontier-text").textContent(), /not measured/);
errors.splice(0, errors.length, ...errors.filter((text) => !/frontier|501/.test(text)));
await shot("frontier");

// On a phone nothing overflows, and the menu opens and closes.
await page.setViewportSize({ width: 360, height: 640 });
const width = () => page.evaluate(() => document.documentElement.scrollWidth);
assert.ok(await width() <= 360, "the memory view overflows");
await page.getByRole("button", { name: "Chat", exact: true }).click();
assert.ok(await width() <= 360, "the chat overflows");
await shot("phone");
await page.getByRole("button", { name: "Conversations" }).click();
assert.ok(await page.locator("#side").isVisible());
assert.ok(await width() <= 360, "the menu overflows");
await page.keyboard.press("Escape");
assert.ok(!await page.locator("#side").isVisible());

// Every control has a name for screen readers.
const nameless = await page.evaluate(() => [...document.querySelectorAll("button, input, textarea, select, canvas, img")]
  .filter((node) => !(node.textContent.trim() || node.getAttribute("aria-label") || node.labels?.length || node.alt)).map((node) => node.outerHTML));
assert.deepEqual(nameless, []);
assert.deepEqual(errors, []);
assert.deepEqual(otherServers, []);
await browser.close();
console.log("web UI: all tests passed");
