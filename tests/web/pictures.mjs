// Makes the pictures of the web UI for the documentation: node pictures.mjs TENON MODEL FOLDER
import { spawn } from "node:child_process";
import { startBrowser, sleep, Tab } from "./browser.mjs";
import { complete as completion } from "./live.mjs";
import { startStub } from "./stub.mjs";

const [tenon, model, folder] = process.argv.slice(2);
const answer = `A hash table keeps pairs of **key** and **value** in an array. A *hash function* turns a key into an index:

$$h(k) = \\left\\lfloor m \\,(k A \\bmod 1) \\right\\rfloor, \\qquad 0 < A < 1$$

1. Compute the index of the key.
2. Look at the slot; if another key is there, probe the next one.

\`\`\`python
class Table:
    def __init__(self, size=8):
        self.slots = [None] * size

    def put(self, key, value):
        i = hash(key) % len(self.slots)
        while self.slots[i] and self.slots[i][0] != key:
            i = (i + 1) % len(self.slots)  # linear probing
        self.slots[i] = (key, value)
\`\`\`

| operation | average | worst |
|:----------|--------:|------:|
| lookup    | $O(1)$  | $O(n)$ |
| insert    | $O(1)$  | $O(n)$ |
`;

const browser = await startBrowser("chrome"), stub = await startStub({ models: ["example"], context: 32768 });
const shoot = (tab, name) => tab.page.screenshot({ path: `${folder}/${name}.png` });
const chat = await Tab.open(await browser.createBrowserContext(), stub.url, { width: 1100, height: 980 });
for (const [question, text] of [["Draft a packing list for three days in the Alps", "- boots"], ["Which sorting algorithm is stable?", "Merge sort."]]) {
  stub.next = { text };
  await chat.ask(question);
  await chat.click("#new");
}
stub.next = { text: answer, reasoning: "The user wants an explanation with an example. ".repeat(4), rate: 84, timings: { cache_n: 0, draft_n: 96, draft_n_accepted: 71 } };
await chat.ask("Explain how a hash table works, with a small example in Python.");
await sleep(800);
await shoot(chat, "web-ui-chat");
await chat.click("#theme");
await chat.page.setViewport({ width: 390, height: 800 });
await sleep(500);
await shoot(chat, "web-ui-phone");
await stub.close();

const server = spawn(tenon, ["serve", model, "--port", "0", "-t", "2", "-c", "4096"], { stdio: ["ignore", "ignore", "pipe"] });
const url = await new Promise((resolve) => {
  let log = "";
  server.stderr.on("data", (data) => {
    log += data;
    const match = /listening at (http:\S+:\d+)/.exec(log);
    if (match) resolve(match[1] + "/");
  });
});
for (let i = 0; i < 100 && !(await fetch(url + "health").catch(() => null))?.ok; i++) await sleep(100);
const memory = await Tab.open(await browser.createBrowserContext(), url, { width: 1280, height: 1560 });
await memory.click("#show-memory");
await memory.until(() => document.querySelector(".plan-foot .key").childElementCount > 0, "the plan");
const beginnings = ["Once upon a time there was a fox", "Once upon a time there was a fox who had a friend", "Once upon a time there was a bear", "One day a girl named Lily"];
let taken = false;
const busy = beginnings.map(async (prompt, i) => { // all slots are busy until the picture is taken
  for (let seed = i; !taken; seed += 4) await (await completion({ url }, { prompt, n_predict: 160 + 90 * i, seed })).text();
});
await sleep(9000);
await memory.until(() => [...document.querySelectorAll(".figures strong")].some(({ textContent }) => textContent === "4/4"), "four slots are busy");
await shoot(memory, "web-ui-memory");
taken = true;
await Promise.all(busy);
await browser.close();
server.kill();
process.exit(0);
