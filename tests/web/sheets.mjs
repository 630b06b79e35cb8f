// Pictures of the corpus to look at: node sheets.mjs FOLDER [chrome|firefox] [COUNT]. Each sheet shows eight answers side by side, half of the
// sheets in the dark theme, a quarter at the width of a phone. Fails when an answer leaves its column or a formula or a fence stays raw.
import assert from "node:assert/strict";
import { startBrowser, sleep, Tab } from "./browser.mjs";
import { corpus } from "./corpus.mjs";
import { startStub } from "./stub.mjs";

const [folder, kind = "chrome", count = "200"] = process.argv.slice(2);
const perSheet = 8, answers = corpus(Number(count));
const browser = await startBrowser(kind), stub = await startStub();
const tab = await Tab.open(await browser.createBrowserContext(), stub.url, { width: 1000, height: 900 });

// Shows the answers with the web UI's own Markdown view, in columns instead of below each other.
async function showAnswers(list, phone, n) {
  await tab.eval(async (texts, narrow) => {
    const { loadMarkdown } = await import("/message.js"), make = await loadMarkdown();
    document.querySelector("#sheet")?.remove();
    const sheet = document.createElement("div");
    sheet.id = "sheet";
    Object.assign(sheet.style, { position: "absolute", inset: "0 auto auto 0", zIndex: 9, background: "var(--back)", columnGap: "12px", display: "grid",
      gridTemplateColumns: `repeat(4, ${narrow ? 330 : 560}px)`, padding: "8px", alignItems: "start", gap: "12px" });
    for (const text of texts) {
      const message = document.createElement("article"), body = document.createElement("div");
      message.className = "message assistant";
      Object.assign(message.style, { border: "1px solid var(--line)", padding: "8px", minWidth: 0, margin: 0 });
      body.className = "text";
      message.append(body);
      sheet.append(message);
      make(body).update(text, true);
    }
    document.body.append(sheet);
  }, list, phone);
  await sleep(n ? 400 : 1500); // the first sheet loads colours and math
}

let problems = 0;
for (let i = 0; i < answers.length; i += perSheet) {
  const n = i / perSheet, phone = n % 4 === 3, list = answers.slice(i, i + perSheet);
  await tab.eval((theme) => { document.documentElement.dataset.theme = theme; }, n % 2 ? "dark" : "light");
  await tab.page.setViewport({ width: phone ? 1410 : 2330, height: 900 });
  await showAnswers(list, phone, n);
  const found = await tab.eval(() => {
    const wrong = [];
    for (const [k, article] of [...document.querySelectorAll("#sheet > article")].entries()) {
      if (article.scrollWidth > article.clientWidth + 1) wrong.push(`${k}: wider than its column`);
      if (!article.textContent.trim()) wrong.push(`${k}: empty`);
      const words = [...article.querySelectorAll(".text > p, .text li, .text td")].map((node) => [...node.childNodes].filter(({ nodeType }) => nodeType === 3).map(({ data }) => data).join(" ")).join("\n");
      for (const raw of words.match(/^#{1,6} |^```|\*\*\w+\*\*|\\frac|\\begin/gm) ?? []) wrong.push(`${k}: raw ${raw}`);
    }
    return wrong;
  });
  for (const text of found) console.log(`answer ${i + Number.parseInt(text, 10)}: ${text}`);
  problems += found.length;
  const sheet = await tab.page.$("#sheet"), { height } = await sheet.boundingBox();
  await tab.page.setViewport({ width: phone ? 1410 : 2330, height: Math.ceil(height) });
  await tab.page.screenshot({ path: `${folder}/sheet-${String(n).padStart(2, "0")}.png` });
}
assert.deepEqual(tab.problems, []);
await browser.close();
await stub.close();
console.log(`${kind}: ${answers.length} answers on ${Math.ceil(answers.length / perSheet)} sheets in ${folder}, ${problems} problems`);
process.exit(problems ? 1 : 0);
