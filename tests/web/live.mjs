// The web UI with the real server and model: node live.mjs chrome|firefox TENON MODEL
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname } from "node:path";
import { startBrowser, sleep, Tab } from "./browser.mjs";

const [kind, tenon, model] = process.argv.slice(2);

export async function startServer(...what) {
  const server = spawn(tenon, ["serve", ...what, "--port", "0", "-t", "2", "-c", "4096"], { stdio: ["ignore", "ignore", "pipe"] });
  let log = "";
  const url = await new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error("the server does not start: " + log)), 20000);
    server.stderr.on("data", async (data) => {
      log += data;
      const match = /listening at (http:\S+:\d+)/.exec(log);
      if (!match) return;
      clearTimeout(timer);
      for (let i = 0; i < 100 && !(await fetch(match[1] + "/health").catch(() => null))?.ok; i++) await sleep(100);
      resolve(match[1] + "/");
    });
  });
  return { url, stop: () => new Promise((resolve) => { server.once("exit", resolve); server.kill(); }) };
}

export const complete = (server, fields) => fetch(server.url + "completion", { method: "POST", headers: { "Content-Type": "application/json" },
  body: JSON.stringify({ ignore_eos: true, ...fields }) });

if (process.argv[1] === new URL(import.meta.url).pathname) {
  const server = await startServer(model), browser = await startBrowser(kind);
  try {
    const tab = await Tab.open(browser.defaultBrowserContext(), server.url, { width: 1200, height: 900 });
    // What is loaded until the empty view is there; the parser of Markdown comes after it.
    const weight = await tab.eval(() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
      .filter(({ name }) => !/\/(markdown|vendor)\//.test(name)).reduce((sum, { encodedBodySize: bytes }) => sum + bytes, 0));
    assert.ok(weight > 20000 && weight <= 100000, `the first view takes ${weight} bytes`);
    console.log(`${kind}: the first view takes ${weight} bytes`);
    assert.match(await tab.text("#empty-model"), /9\.2 M parameters · 9\.30 MiB · 512 tokens of context/);
    await tab.click("#examples button");
    await tab.key("Enter");
    await tab.finished();
    assert.ok((await tab.text(".message.assistant .text")).length > 40);
    assert.match(await tab.text(".stats"), /\d+ tokens · [\d.,]+ tokens per second/);
    // The context of this model has 512 tokens: a second long answer does not fit, and the choice appears.
    for (let i = 0; i < 4 && await tab.eval(() => document.getElementById("full").hidden); i++) {
      await tab.send("And then what happened to the fox, who was so very tired and had walked such a long way through the dark wood?");
      await sleep(300);
      await tab.until(() => document.getElementById("stop").hidden && !document.getElementById("send").disabled, "the answer ends");
      await sleep(500);
    }
    assert.equal(await tab.eval(() => document.getElementById("full").hidden), false, "the context is full in the end");
    await tab.click("#full input[value=shift]");
    const before = await tab.count(".message");
    await tab.click("#send");
    await tab.until((n) => document.querySelectorAll(".message").length > n, "it goes on", before);
    await tab.finished();
    assert.ok(await tab.count(".message.forgotten") > 0);

    // The server's own words about a grammar lead to the field.
    await tab.click("#new");
    await tab.click("#settings-open");
    await tab.eval(() => { for (const details of document.querySelectorAll("dialog details")) details.open = true; });
    await tab.page.select("#format", "grammar");
    await tab.type("root ::= \"yes", "#format-text");
    await tab.key("Escape");
    await tab.ask("Is it raining?");
    assert.match(await tab.text(".notice.error"), /grammar line 1/);
    await tab.clickText("Open the format");
    await tab.until(() => document.activeElement.id === "format-text", "the field has the focus");
    await tab.key("End");
    await tab.page.keyboard.type("\"");
    await tab.key("Escape");
    await tab.clickText("Try again");
    await tab.until(() => document.querySelector(".message.assistant .text")?.textContent.trim() === "yes", "the grammar is kept to");
    await tab.finished();
    await tab.click("#settings-open");
    await tab.page.select("#format", "none");
    await tab.key("Escape");

    // By keys: what is above the button grows while the view loads, so that a click could miss it.
    const askFit = async () => {
      await tab.eval(() => document.querySelector(".fit button").focus());
      await tab.key("Enter");
    };
    // The memory view is live, the plan names tensors, and settings can be tried.
    const running = [1, 2, 3].map((seed) => complete(server, { prompt: "Once upon a time", n_predict: 380, seed }));
    await tab.click("#show-memory");
    await tab.until(() => /cpu: .* used of .* planned/.test(document.getElementById("memory").textContent), "devices");
    await tab.until(() => /\d+ of [\d,]+ cells in use/.test(document.getElementById("memory").textContent), "cells");
    await tab.until(() => /above the lower bound/.test(document.getElementById("memory").textContent), "the plan");
    await tab.eval(() => document.querySelector(".plan").scrollIntoView({ block: "center" }));
    const box = await (await tab.page.$(".plan")).boundingBox();
    let named = false;
    for (let i = 0; i < 20 && !named; i++) {
      await tab.page.mouse.move(box.x + 120 + 30 * i, box.y + 200);
      await sleep(60);
      named = /steps \d+ to \d+/.test(await tab.text("#memory"));
    }
    assert.ok(named, "pointing at the plan names a tensor");
    await askFit();
    await tab.until(() => /It fits: 4,096 tokens/.test(document.querySelector(".fit + div").textContent), "it fits");
    await tab.type("900000000", ".fit label:nth-of-type(2) input");
    await askFit();
    await tab.until(() => /does not fit|fails|at most|context/i.test(document.querySelector(".fit + div").textContent) && !/^It fits: 4,096/.test(document.querySelector(".fit + div").textContent), "it does not fit");
    await tab.eval(() => document.querySelector(".plan").focus());
    await tab.page.mouse.move(4, 4);
    await sleep(200);
    await tab.key("0");
    await tab.key("Enter");
    const first = await tab.text(".plan + .hover");
    await tab.key("Enter");
    assert.match(first, /steps \d+ to \d+/);
    assert.notEqual(await tab.text(".plan + .hover"), first, "keys name one tensor after the other");
    await tab.page.select(".fit select", "");
    await tab.type("layers=3,width=512", ".fit textarea");
    await tab.type("1024", ".fit label:nth-of-type(2) input");
    await tab.eval(() => { document.querySelector(".fit label:nth-of-type(2) input").value = "1024"; });
    await askFit();
    await tab.until(() => /in 3 layers[\s\S]*It fits: 1,024 tokens/.test(document.querySelector(".fit + div").textContent), "a shape without a file");
    for (const response of await Promise.all(running)) assert.equal(response.status, 200);
    // Rows of the tree and groups of the plan can be pointed at.
    await tab.until(() => !document.querySelectorAll("#memory canvas")[2].hidden, "the tree");
    await tab.eval(() => document.querySelectorAll("#memory canvas")[2].scrollIntoView({ block: "center" }));
    const tree = await (await tab.page.$$("#memory canvas"))[2].boundingBox();
    await tab.page.mouse.move(tree.x + tree.width / 3, tree.y + 8);
    await tab.until(() => /(slot|kept) \d+: [\d,]+ tokens, [\d,]+ in common/.test(document.getElementById("memory").textContent), "a row is named");
    await tab.eval(() => document.querySelector(".plan-foot .key button").focus());
    await tab.key("Enter");
    assert.equal(await tab.count(".plan-foot .key [aria-pressed=true]"), 1);
    await tab.key("Enter");
    assert.equal(await tab.count(".plan-foot .key [aria-pressed=true]"), 0);
    await tab.until(() => { // colours of cells
      const canvas = document.querySelectorAll("#memory canvas")[1], data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, seen = new Set();
      for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) seen.add(`${data[i]},${data[i + 1]},${data[i + 2]}`);
      return seen.size >= 2;
    }, "cells are drawn");
    await tab.eval(readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8"));
    for (const width of [1200, 360]) {
      await tab.page.setViewport({ width, height: 700 });
      await sleep(300);
      for (const theme of ["light", "dark"]) {
        await tab.eval((name) => { document.documentElement.dataset.theme = name; }, theme);
        assert.deepEqual(await tab.eval(async () => (await globalThis.axe.run(document, { resultTypes: ["violations"] })).violations.map(({ id, nodes }) => `${id}: ${nodes[0].html.slice(0, 150)}`)), [], `memory, ${theme}, ${width} wide`);
      }
    }
    assert.ok(await tab.eval(() => document.documentElement.scrollWidth) <= 360, "the memory view overflows on a phone");
    assert.deepEqual(tab.problems, []);

    // A server of several models: none is loaded at first.
    const several = await startServer("--models-dir", dirname(model));
    try {
      const many = await Tab.open(await browser.createBrowserContext(), several.url);
      assert.match(await many.text("#empty-model"), /not loaded yet/);
      assert.equal(await many.text("#banner"), "");
      await many.click("#show-memory");
      await many.until(() => /not loaded/.test(document.querySelector("#memory .notice")?.textContent), "the memory view says it");
      assert.deepEqual(await many.eval(() => [...document.querySelectorAll("#memory .card")].filter((node) => node.checkVisibility()).map((node) => node.querySelector("h2").textContent)), ["Will it fit?"]);
      await many.clickText("Load it now", "#memory button");
      await many.until(() => /above the lower bound/.test(document.getElementById("memory").textContent) && document.querySelector("#memory .notice").hidden, "it is loaded and shown");
      await many.click("#show-chat");
      await many.page.select("#model", "tales");
      await many.until(() => document.getElementById("model").selectedOptions[0].textContent === "tales" && /512 tokens of context/.test(document.getElementById("empty-model").textContent), "the model is loaded");
      await many.ask("Once upon a time");
      assert.equal(await many.text(".message.assistant .who"), "tales");
      assert.deepEqual(many.problems, []);
    } finally {
      await several.stop();
    }
    console.log(`${kind}: the web UI works with the server`);
  } finally {
    await browser.close();
    await server.stop();
  }
}
