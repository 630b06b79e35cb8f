// The web UI in a browser: node ui.mjs chrome|firefox [PATTERN]. Answers come from the stub server; every test has a profile of its own.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { startBrowser, sleep, Tab } from "./browser.mjs";
import { corpus, hostile, story } from "./corpus.mjs";
import { keptTests } from "./kept.mjs";
import { settingsTests } from "./settings.mjs";
import { chatRequests, startStub } from "./stub.mjs";

const [kind = "chrome", pattern = ""] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

// The levels of headings within answers are their author's.
async function checkAccess(tab, what) {
  await tab.eval(axe);
  const found = await tab.eval(async () => (await globalThis.axe.run(document, { resultTypes: ["violations"], rules: { "heading-order": { enabled: false } } })).violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(({ html }) => html.slice(0, 120)).join(" | ")}`));
  assert.deepEqual(found, [], what);
}

const tests = {
  ...keptTests,
  ...settingsTests,
  async "send, stream, statistics, reload"({ tab, stub }) {
    stub.next = { text: story, rate: 300 };
    await tab.send("Tell a story about a **fox**");
    await tab.until(() => document.querySelector(".message.running .text")?.textContent.length > 20, "text arrives");
    await tab.finished();
    assert.equal(await tab.text(".message.user .text strong"), "fox");
    assert.equal(await tab.count(".message.assistant .text strong"), 10);
    assert.match(await tab.text(".stats"), /\d+ tokens · 300\.0 tokens per second/);
    assert.equal(await tab.eval(() => document.activeElement.id), "input");
    const { body } = chatRequests(stub)[0];
    assert.deepEqual(Object.keys(body).sort(), ["messages", "model", "return_progress", "stream", "stream_options"], "only changed settings are sent");
    await tab.reload();
    assert.equal(await tab.count(".message.assistant .text strong"), 10);
    assert.equal(await tab.text("#list .title"), "Tell a story about a fox");
  },
  async "Escape stops, continue goes on"({ tab, stub }) {
    stub.next = { text: story, rate: 60 };
    await tab.send("go");
    await tab.until(() => document.querySelector(".message.running .text")?.textContent.length > 10, "text arrives");
    await tab.key("Escape");
    await tab.finished();
    const part = await tab.text(".message.assistant .text");
    assert.ok(part.length > 5 && part.length < 300, part);
    assert.match(await tab.text(".notice"), /Stopped/);
    stub.next = { text: " and the rest" };
    await tab.clickText("Continue");
    await tab.until(() => document.querySelector(".message.assistant .text")?.textContent.endsWith("and the rest"), "the rest arrives");
    await tab.finished();
    assert.ok((await tab.text(".message.assistant .text")).startsWith(part.trim()));
    assert.ok(stub.requests.at(-1).path !== "/completion" || stub.requests.at(-1).body.prompt.includes("<assistant>"));
    assert.equal(await tab.count(".message"), 2);
  },
  async "editing makes a version; versions switch; regenerate adds one"({ tab, stub }) {
    stub.next = { text: "first answer" };
    await tab.ask("question");
    stub.next = { text: "follow-up answer" };
    await tab.ask("follow-up");
    stub.next = { text: "second answer" };
    await tab.click(".message.user " + tab.button("Edit"));
    await tab.key("Control", "a");
    await tab.page.keyboard.type("changed question");
    await tab.clickText("Send", ".edit button");
    await tab.until(() => document.querySelectorAll(".message").length === 2, "a branch");
    await tab.finished();
    assert.deepEqual(await tab.texts(".message .text"), ["changed question", "second answer"]);
    assert.equal(await tab.text(".versions span"), "2/2");
    await tab.click(tab.button("Older version"));
    await tab.until(() => document.querySelectorAll(".message").length === 4, "the old branch");
    assert.deepEqual(await tab.texts(".message .text"), ["question", "first answer", "follow-up", "follow-up answer"]);
    stub.next = { text: "another answer" };
    await tab.click(".message.assistant " + tab.button("Regenerate"));
    await tab.until(() => document.querySelectorAll(".message").length === 2, "another branch");
    await tab.finished();
    assert.deepEqual(await tab.texts(".message .text"), ["question", "another answer"]);
    assert.match(await tab.text(".message.assistant .versions"), /2\/2/);
    await tab.reload();
    assert.deepEqual(await tab.texts(".message .text"), ["question", "another answer"]);
  },
  async "continue in the middle makes a branch"({ tab, stub }) {
    stub.next = { text: "one" };
    await tab.ask("a");
    stub.next = { text: "two" };
    await tab.ask("b");
    stub.next = { text: " more" };
    await tab.click(".message.assistant " + tab.button("Continue this answer"));
    await tab.until(() => document.querySelectorAll(".message").length === 2, "a branch");
    await tab.finished();
    assert.deepEqual(await tab.texts(".message .text"), ["a", "one more"]);
    await tab.click(".message.assistant " + tab.button("Older version"));
    await tab.until(() => document.querySelectorAll(".message").length === 4, "the old branch");
  },
  async "cut answers carry a notice"({ tab, stub }) {
    stub.next = { text: "cut here", finish: "length" };
    await tab.ask("a");
    assert.match(await tab.text(".notice.warn"), /ended after \d+ tokens, the limit/);
    stub.next = { text: "cut again", finish: "length", usage: { total_tokens: 4096, prompt_tokens: 4094, completion_tokens: 2 } };
    await tab.ask("b");
    assert.match(await tab.text(".notice.warn", 1), /context is full/);
  },
  async "conversations: new, switch while streaming, rename, search, delete and undo"({ tab, stub }) {
    stub.next = { text: "the answer about zebras" };
    await tab.ask("first topic");
    await tab.click("#new");
    await tab.click("#new");
    assert.equal(await tab.count("#list li"), 1, "empty conversations are not listed");
    stub.next = { text: story, rate: 60 };
    await tab.send("second topic");
    await tab.until(() => document.querySelector(".message.running .text")?.textContent.length > 5, "text arrives");
    await tab.click("#list .title", 1);
    await tab.until(() => document.querySelector(".message.assistant .text")?.textContent.includes("zebras"), "the other conversation while one runs");
    assert.equal(await tab.count("#list .busy"), 1);
    await tab.click("#list .title", 0);
    await tab.until(() => document.querySelector(".message.running .text")?.textContent.length > 5, "back");
    await tab.finished();
    assert.equal((await tab.text(".message.assistant .text")).length, story.replaceAll("**", "").length);
    await tab.click("#list li:nth-child(1) .title");
    await tab.key("F2");
    await tab.page.keyboard.type("Renamed");
    await tab.key("Enter");
    assert.equal(await tab.text("#list .title"), "Renamed");
    await tab.type("ZEBRA", "#search");
    await tab.until(() => document.querySelectorAll("#list li").length === 1, "search finds");
    assert.equal(await tab.text("#list .title"), "first topic");
    await tab.click("#list .title");
    await tab.until(() => !!document.querySelector(".message.found"), "the message found is shown");
    assert.deepEqual(await tab.eval(() => [...CSS.highlights.get("searched")].map(String)), ["zebra"]);
    await tab.click("#search");
    await tab.key("Control", "a");
    await tab.key("Delete");
    await tab.until(() => document.querySelectorAll("#list li").length === 2, "all again");
    await tab.click("#list li:nth-child(2) " + `button[aria-label^="Actions"]`);
    await tab.clickText("Delete");
    await tab.until(() => document.querySelectorAll("#list li").length === 1, "deleted");
    await tab.clickText("Undo");
    await tab.until(() => document.querySelectorAll("#list li").length === 2, "undone");
    await tab.reload();
    assert.deepEqual((await tab.texts("#list .title")).sort(), ["Renamed", "first topic"]);
  },
  async "a thousand conversations: drawn as they come near, found, in groups"({ tab }) {
    await tab.eval(async () => {
      const store = await import("/store.js"), tree = await import("/tree.js");
      for (let i = 0; i < 1000; i++) {
        const conversation = { ...tree.newConversation(), title: `Conversation ${i}`, updated: Date.now() - i * 4 * 3600e3 };
        const message = tree.newMessage(conversation, null, "user", { content: `question ${i} ` + "word ".repeat(50) });
        conversation.leaf = message.id;
        store.saveMessage(message);
        store.saveConversation(conversation);
      }
      await store.retryWrites();
    });
    await tab.reload();
    assert.equal(await tab.count("#list li"), 150);
    const groups = await tab.eval(() => [...document.querySelectorAll("#list li[data-group]")].map((node) => node.dataset.group));
    assert.equal(new Set(groups).size, groups.length);
    assert.ok(["Today", "Yesterday", "Last seven days", "Last 30 days"].filter((name) => groups.includes(name)).length >= 3, groups.join());
    for (let i = 0; i < 4; i++) {
      const before = await tab.count("#list li");
      await tab.eval(() => { const list = document.getElementById("list"); list.scrollTop = list.scrollHeight; });
      await tab.until((n) => document.querySelectorAll("#list li").length > n, "more are drawn", before);
    }
    assert.equal(await tab.count("#list li"), 750);
    await tab.type("question 987 ", "#search");
    await tab.until(() => document.querySelectorAll("#list li").length === 1, "one is found");
    await tab.click("#list .title");
    await tab.until(() => document.querySelector(".message .text")?.textContent.startsWith("question 987"), "it opens");
  },
  async "the field grows; an example fills it; pasted files are attached"({ tab, stub }) {
    assert.match(await tab.text("#empty-title"), /stub/);
    assert.match(await tab.text("#empty-model"), /7\.6 B parameters · 3\.73 GiB · 4,096 tokens of context/);
    await tab.click("#examples button", 1);
    assert.equal(await tab.eval(() => document.getElementById("input").value), await tab.text("#examples button", 1));
    assert.equal(await tab.eval(() => document.activeElement.id), "input");
    const height = () => tab.eval(() => document.getElementById("input").offsetHeight), before = await height();
    for (let i = 0; i < 4; i++) await tab.key("Shift", "Enter");
    assert.ok(await height() > before + 60, "four more lines");
    for (let i = 0; i < 60; i++) await tab.key("Shift", "Enter");
    assert.ok(await height() < 400, "and scrolls in the end");
    await tab.eval(() => {
      const data = new DataTransfer();
      data.items.add(new File(["pasted words"], "paste.txt", { type: "text/plain" }));
      document.getElementById("input").dispatchEvent(Object.defineProperty(new Event("paste", { bubbles: true, cancelable: true }), "clipboardData", { value: data }));
    });
    await tab.until(() => /paste\.txt/.test(document.querySelector(".chip")?.textContent), "the pasted file");
  },
  async "what is typed while a message is being sent stays"({ tab, stub }) {
    stub.next = { text: "x" };
    stub.slowTokenize = 600;
    await tab.send("first");
    await tab.page.keyboard.type("second");
    await tab.until(() => document.querySelectorAll(".message").length === 2, "the first is sent");
    assert.equal(chatRequests(stub)[0].body.messages[0].content, "first");
    assert.equal(await tab.eval(() => document.getElementById("input").value), "second");
  },
  async "the end stays in view until somebody scrolls up"({ tab, stub }) {
    const distance = () => tab.eval(() => { const log = document.getElementById("messages"); return log.scrollHeight - log.scrollTop - log.clientHeight; });
    stub.next = { text: "A line of text to read.\n\n".repeat(300), rate: 300 };
    await tab.send("go");
    await tab.until(() => { const log = document.getElementById("messages"); return log.scrollHeight > log.clientHeight + 300; }, "more than the screen");
    assert.ok(await distance() < 60);
    await tab.page.mouse.move(500, 300);
    await tab.page.mouse.wheel({ deltaY: -400 });
    await tab.until(() => !document.getElementById("to-end").hidden, "the button appears");
    const before = await tab.eval(() => document.getElementById("messages").scrollTop);
    await sleep(700);
    assert.ok(Math.abs(await tab.eval(() => document.getElementById("messages").scrollTop) - before) < 60, "the text stays where it is");
    await tab.click("#to-end");
    await sleep(400);
    assert.ok(await distance() < 60, "it follows again");
    await tab.key("Escape");
    await tab.finished();
  },
  async "keys keep the focus; an arrow edits the last message; several documents share what fits"({ tab, stub }) {
    stub.next = { text: "one" };
    await tab.ask("a");
    stub.next = { text: "two" };
    await tab.click(tab.button("Regenerate"));
    await tab.until(() => document.querySelector(".message.assistant .text")?.textContent === "two", "another answer");
    await tab.finished();
    await tab.eval(() => document.querySelector(".versions button").focus());
    for (const [key, label, text] of [["Enter", "Newer version", "one"], ["Enter", "Older version", "two"]]) {
      await tab.key(key);
      await tab.until((wanted) => document.querySelector(".message.assistant .text")?.textContent === wanted, "the other version", text);
      assert.equal(await tab.eval(() => document.activeElement.getAttribute("aria-label")), label);
    }
    await tab.click("#input");
    await tab.key("ArrowUp");
    await tab.until(() => document.activeElement.matches(".message.user .edit textarea"), "the last message is edited");
    await tab.key("Escape");
    assert.equal(await tab.eval(() => document.activeElement.getAttribute("aria-label")), "Edit");
    const files = [1, 2, 3].map((i) => join(tmpdir(), `tenon-part-${i}.txt`));
    files.forEach((file, i) => writeFileSync(file, "word ".repeat(i ? 2500 : 100)));
    await (await tab.page.$("#files")).uploadFile(...files);
    await tab.until(() => document.querySelectorAll(".chip.warn button:first-of-type").length === 2, "two of three are too long together");
    assert.deepEqual(await tab.eval(() => [...document.querySelectorAll(".chip")].map((node) => /Keep the first/.test(node.textContent))), [false, true, true]);
    await tab.clickText("Shorten to what fits");
    await tab.until(() => !document.querySelector(".chip.warn") && document.getElementById("full").hidden, "all fit");
  },
  async "what can be done with earlier messages is shown where the pointer or the focus is"({ tab, stub }) {
    assert.ok(await tab.eval(() => matchMedia("(hover: hover) and (pointer: fine)").matches), "the browser has a mouse");
    stub.next = { text: "one" };
    await tab.ask("a");
    await tab.ask("b");
    const seen = () => tab.eval(() => [...document.querySelectorAll(".message")].map((node) => getComputedStyle(node.querySelector("footer button")).opacity).join(""));
    await tab.page.mouse.move(600, 740);
    await tab.until(() => !document.querySelector(".message:hover"), "the pointer is elsewhere");
    assert.equal(await seen(), "0001");
    const { x, y } = await (await tab.page.$(".message.assistant .text")).boundingBox();
    await tab.page.mouse.move(x + 5, y + 5);
    await tab.until(() => !!document.querySelector(".message:hover"), "the pointer is there");
    assert.equal(await seen(), "0101");
    await tab.eval(() => document.querySelector(".message.user button").focus());
    assert.equal(await seen(), "1101");
  },
  async "a message is deleted with what follows, in all tabs, and comes back"({ tab, stub, context }) {
    stub.next = { text: "one" };
    await tab.ask("a");
    stub.next = { text: "two" };
    await tab.ask("b");
    const other = await Tab.open(context, stub.url);
    await tab.front();
    await tab.click(".message.user:nth-child(3) " + tab.button("Delete this message and what follows it"));
    await tab.until(() => document.querySelectorAll(".message").length === 2, "both are gone");
    await other.until(() => document.querySelectorAll(".message").length === 2, "there too");
    await tab.clickText("Undo");
    await tab.until(() => document.querySelectorAll(".message").length === 4, "both are back");
    stub.next = { text: "other" };
    await tab.click(".message.assistant:last-child " + tab.button("Regenerate"));
    await tab.until(() => document.querySelector(".message.assistant:last-child .text")?.textContent === "other", "another version");
    await tab.finished();
    await tab.click(".message.assistant:last-child " + tab.button("Delete this message and what follows it"));
    await tab.until(() => document.querySelector(".message.assistant:last-child .text")?.textContent === "two", "the version before");
    await sleep(300); // a deletion that a reload interrupts is not made
    await tab.reload();
    assert.deepEqual(await tab.texts(".message .text"), ["a", "one", "b", "two"]);
    assert.equal(await tab.count(".versions"), 0);
    await tab.eval(() => document.querySelector(`.message button[aria-label^="Delete this"]`).focus());
    await tab.key("Enter");
    await tab.until(() => !document.getElementById("empty").hidden, "nothing is left");
    await tab.eval(() => document.activeElement.blur());
    await tab.key("Control", "z");
    await tab.until(() => document.querySelectorAll(".message").length === 4, "undone by key");
    await other.page.close();
  },
  async "an answer can be edited, and statistics of guessed tokens are shown"({ tab, stub }) {
    stub.next = { text: "one two three", timings: { draft_n: 20, draft_n_accepted: 15 } };
    await tab.ask("go");
    assert.match(await tab.text(".stats"), /15 of 20 drafted tokens accepted/);
    await tab.click(".message.assistant " + tab.button("Edit the answer"));
    await tab.key("Control", "a");
    await tab.page.keyboard.type("my own words");
    await tab.clickText("Save", ".edit button");
    await tab.until(() => document.querySelector(".message.assistant .text")?.textContent === "my own words", "the new version");
    assert.equal(await tab.text(".message.assistant .versions span"), "2/2");
    assert.equal(chatRequests(stub).length, 1, "nothing is asked");
    await tab.reload();
    assert.equal(await tab.text(".message.assistant .text"), "my own words");
    await tab.click(tab.button("Older version"));
    await tab.until(() => document.querySelector(".message.assistant .text")?.textContent === "one two three", "the old version");
  },
  async "documents: text, PDF, pictures refused, too long"({ tab, stub }) {
    const file = join(tmpdir(), "tenon-notes.txt"), pdf = join(tmpdir(), "tenon-paper.pdf"), picture = join(tmpdir(), "tenon-x.png"), long = join(tmpdir(), "tenon-long.txt");
    writeFileSync(file, "The secret word is walnut.\n");
    writeFileSync(pdf, makePDF("Portable words inside"));
    writeFileSync(picture, Buffer.from("iVBORw0KGgo=", "base64"));
    writeFileSync(long, "word ".repeat(6000));
    const input = await tab.page.$("#files");
    await input.uploadFile(file, pdf);
    await tab.until(() => document.querySelectorAll(".chip").length === 2 && [...document.querySelectorAll(".chip")].every((chip) => /tokens/.test(chip.textContent)), "both are counted");
    assert.match(await tab.text(".chip", 1), /tenon-paper\.pdf · sheets: 1 · \d+ tokens/);
    stub.next = { text: "ok" };
    await tab.ask("What is in there?");
    const { content } = chatRequests(stub).at(-1).body.messages[0];
    assert.match(content, /secret word is walnut[\s\S]*Portable words inside[\s\S]*What is in there\?/);
    assert.equal(await tab.count(".message.user .file"), 2);
    await (await tab.page.$("#files")).uploadFile(picture);
    await tab.until(() => /no pictures/.test(document.querySelector(".toast")?.textContent), "the refusal");
    await (await tab.page.$("#files")).uploadFile(long);
    await tab.until(() => !!document.querySelector(".chip.warn button"), "too long");
    await tab.click(".chip.warn button");
    await tab.until(() => /shortened/.test(document.querySelector(".chip").textContent) && !document.querySelector(".chip.warn"), "shortened to what fits");
    await tab.click(".chip " + `button[aria-label^="Remove"]`);
    assert.equal(await tab.count("#attached .chip"), 0);
  },
  async "drag and drop"({ tab }) {
    const drop = (selector, text, name) => tab.eval((where, words, file) => {
      const data = new DataTransfer();
      data.items.add(new File([words], file, { type: "text/plain" }));
      return ["dragenter", "dragover", "drop"].map((type) => !document.querySelector(where).dispatchEvent(new DragEvent(type, { dataTransfer: data, bubbles: true, cancelable: true })));
    }, selector, text, name);
    await drop("#input", "dropped words", "drop.md");
    await tab.until(() => /drop\.md · \d+ tokens/.test(document.querySelector(".chip")?.textContent), "the dropped file");
    await drop("#side", "# Old\n\n## Me\n\nhello\n\n## It\n\nhi\n", "old.md");
    await tab.until(() => document.querySelectorAll(".message").length === 2, "dropped on the list it is imported");
    await tab.click("#show-memory");
    assert.deepEqual((await drop("#top", "x", "x.txt")).slice(1), [true, true], "the browser never opens a dropped file instead of the web UI");
  },
  async "reasoning collapses, tool calls are shown"({ tab, stub }) {
    stub.next = { reasoning: "I think *hard* about it.", text: "Done.", calls: [{ name: "weather", arguments: "{\"city\":\"Oslo\"}" }] };
    await tab.ask("go");
    assert.match(await tab.text(".thought summary"), /Reasoning \(5 words\)/);
    assert.equal(await tab.eval(() => document.querySelector(".thought").open), false);
    await tab.click(".thought summary");
    await tab.until(() => document.querySelector(".thought em")?.textContent === "hard", "the reasoning opens");
    assert.match(await tab.text(".call"), /weather[\s\S]*"city": "Oslo"/);
  },
  async "prefill progress"({ tab, stub }) {
    stub.next = { text: "x", progress: { total: 4000, cache: 0, processed: 1000 } };
    await tab.send("long prompt");
    await tab.until(() => /Prefill: 1,000 of 4,000/.test(document.querySelector(".notice.progress")?.textContent), "progress");
    await tab.finished();
  },
  async "a full context: the choice to forget, summarise or stop"({ tab, stub }) {
    stub.context = 400;
    await tab.reload();
    stub.next = { text: "filler words ".repeat(80) };
    await tab.ask("first");
    await tab.ask("second");
    const before = chatRequests(stub).length;
    await tab.send("third");
    await tab.until(() => !document.getElementById("full").hidden, "the choice");
    assert.equal(chatRequests(stub).length, before, "nothing is sent before the choice");
    assert.match(await tab.text("#full"), /Forget the oldest messages \(\d+;/);
    assert.match(await tab.text("#meter"), /of 400 tokens with this message \(\+\d+\); 100 more are kept for the answer/);
    await tab.click("#full input[value=shift]");
    await tab.click("#send");
    await tab.until((n) => document.querySelectorAll(".message").length === n, "sent", 6);
    await tab.finished();
    assert.ok(chatRequests(stub).at(-1).body.messages.length < 5);
    assert.ok(await tab.count(".message.forgotten") >= 2);
    await tab.click("#input");
    await tab.page.keyboard.type("fourth");
    await tab.until(() => !document.getElementById("full").hidden, "the choice again");
    stub.next = (asked) => ({ text: asked.stream ? "short" : "the SUMMARY" });
    await tab.click("#full input[value=summarise]");
    await tab.click("#send");
    await tab.until((n) => document.querySelectorAll(".message").length === n, "sent", 8);
    await tab.finished();
    assert.match(chatRequests(stub).at(-1).body.messages[0].content, /the SUMMARY/);
    stub.next = { text: "again", finish: "length", usage: { total_tokens: 390, prompt_tokens: 380, completion_tokens: 10 } };
    await tab.click(".message.assistant:last-child " + tab.button("Regenerate")); // as chosen before
    await tab.until(() => document.querySelector(".message.assistant:last-child .text")?.textContent === "again", "another answer");
    await tab.finished();
    await tab.reload();
    stub.next = (asked) => ({ text: asked.stream ? " and more" : "another SUMMARY" });
    await tab.until(() => !!document.querySelector(".message.assistant:last-child .notice button"), "it can be continued");
    await tab.clickText("Continue");
    await tab.until(() => document.querySelector(".message.assistant:last-child .text")?.querySelector("p")?.textContent === "again and more", "a full answer goes on with more forgotten");
    await tab.finished();
    await tab.send("w ".repeat(420).trim());
    await tab.until(() => /alone does not fit/.test(document.getElementById("full").textContent), "too long for itself");
  },
  async "export and import"({ tab, stub }) {
    stub.next = { text: "an answer with `code`" };
    await tab.ask("a question");
    await tab.eval(() => {
      globalThis.saved = [];
      URL.createObjectURL = (blob) => { globalThis.saved.push(blob); return "data:,x"; };
      HTMLAnchorElement.prototype.click = function click() {};
    });
    await tab.click(`button[aria-label^="Actions for"]`);
    await tab.clickText("Export as Markdown");
    await tab.click(`button[aria-label^="Actions for"]`);
    await tab.key("ArrowDown"); // by keys: the third choice
    await tab.key("ArrowDown");
    await tab.key("Enter");
    await tab.until(() => globalThis.saved.length === 2 && !document.querySelector(".menu"), "two files of one conversation");
    await tab.click("#export-all");
    await tab.until(() => globalThis.saved.length === 3, "three files");
    const [markdown, single, json] = await tab.eval(() => Promise.all(globalThis.saved.map((blob) => blob.text())));
    assert.equal(JSON.parse(single).conversations[0].messages.length, 2);
    assert.equal(markdown.replace(/<!--.*-->\n\n/g, ""), "# a question\n\n## You\n\na question\n\n## Model\n\nan answer with `code`\n");
    const file = join(tmpdir(), "tenon-export.json");
    writeFileSync(file, json);
    await (await tab.page.$("#import-file")).uploadFile(file);
    await tab.until(() => document.querySelectorAll("#list li").length === 2, "imported beside the original");
    writeFileSync(file, "nonsense");
    await (await tab.page.$("#import-file")).uploadFile(file);
    await tab.until(() => [...document.querySelectorAll(".toast")].some((node) => /cannot be imported/.test(node.textContent)), "a bad file is refused");
  },
  async "old conversations are taken over"({ tab }) {
    await tab.eval(() => localStorage.setItem("tenon.conversations", JSON.stringify([{ id: 1, messages: [{ role: "user", content: "old question" }, { role: "assistant", content: "old answer" }] }])));
    await tab.reload();
    await tab.click("#list .title");
    await tab.until(() => document.querySelectorAll(".message").length === 2, "the old conversation");
    assert.deepEqual(await tab.texts(".message .text"), ["old question", "old answer"]);
  },
  async "copy buttons, colours of code, math"({ tab, stub }) {
    stub.next = { text: "```python\ndef f(): return 1\n```\n\n$x^2$ and\n\n$$\\frac{1}{2}$$\n" };
    await tab.ask("go");
    await tab.until(() => document.querySelector(".hljs-keyword")?.textContent === "def" && document.querySelectorAll(".katex").length === 2, "colours and math");
    await tab.eval(() => { globalThis.copied = ""; Object.defineProperty(navigator, "clipboard", { value: { writeText: async (text) => { globalThis.copied = text; } }, configurable: true }); });
    await tab.click(".code button");
    await tab.until(() => globalThis.copied === "def f(): return 1\n", "the code is copied");
    await tab.click(".message.assistant " + tab.button("Copy the message"));
    await tab.until(() => globalThis.copied.startsWith("```python"), "the message is copied");
  },
  async "hostile Markdown is harmless"({ tab, stub }) {
    for (const text of hostile) {
      if (text.length > 30000) continue;
      stub.next = { pieces: text.match(/[^]{1,400}/gu) ?? [], text };
      await tab.click("#new");
      await tab.ask("x");
      assert.equal(await tab.eval(() => globalThis.hacked), undefined, text.slice(0, 60));
      assert.equal(await tab.count(".text :is(script, img, iframe, style, form, object), .text [onclick], .text [onerror], .text a[href^='javascript' i]"), 0, text.slice(0, 60));
    }
    assert.ok(!tab.problems.some((text) => /Content Security Policy|Refused/i.test(text)), tab.problems.join());
  },
  async "keyboard alone"({ tab, stub }) {
    stub.next = { text: "hi" };
    await tab.page.keyboard.type("typed at once"); // the field has the focus at the start
    await tab.key("Shift", "Enter");
    await tab.page.keyboard.type("second line");
    await tab.key("Enter");
    await tab.finished();
    assert.equal(chatRequests(stub)[0].body.messages[0].content, "typed at once\nsecond line");
    await tab.key("Control", "k");
    assert.equal(await tab.eval(() => document.activeElement.id), "search");
    await tab.key("Tab");
    assert.ok(await tab.eval(() => document.activeElement.matches("#list .title")));
    await tab.key("Delete");
    await tab.until(() => document.querySelectorAll("#list li").length === 0, "deleted by key");
    await tab.eval(() => document.activeElement.blur());
    await tab.key("/");
    assert.equal(await tab.eval(() => document.activeElement.id), "input");
    for (let i = 0, seen = new Set(); i < 40; i++) { // every control can be reached, and the focus never gets stuck
      await tab.key("Tab");
      const at = await tab.eval(() => document.activeElement.id || document.activeElement.outerHTML.slice(0, 80));
      if (i < 5) assert.ok(!seen.has(at), at);
      seen.add(at);
    }
  },
  async "phone: nothing overflows, the menu opens and closes"({ context, stub }) {
    const tab = await Tab.open(context, stub.url, { width: 360, height: 640 });
    stub.next = { text: corpus(3).join("\n\n") + "\n\n| a wide | table |\n|---|---|\n| " + "word".repeat(40) + " | x |\n\n```\n" + "long ".repeat(60) + "\n```" };
    await tab.ask("go");
    const width = () => tab.eval(() => document.documentElement.scrollWidth);
    assert.ok(await width() <= 360, "the chat overflows");
    assert.ok(!await tab.eval(() => document.getElementById("side").checkVisibility()));
    await tab.click("#menu");
    assert.ok(await tab.eval(() => document.getElementById("side").checkVisibility()));
    await tab.key("Escape");
    assert.ok(!await tab.eval(() => document.getElementById("side").checkVisibility()));
    await tab.click("#menu");
    await tab.page.mouse.click(350, 300);
    assert.ok(!await tab.eval(() => document.getElementById("side").checkVisibility()), "a click beside the menu closes it");
    await tab.click("#show-memory");
    assert.ok(await width() <= 360, "the memory view overflows");
    await tab.page.close();
  },
  async "right-to-left text, German"({ tab, stub }) {
    stub.next = { text: "مرحبا بك\n\nHello" };
    await tab.ask("שלום");
    const directions = await tab.eval(() => [...document.querySelectorAll(".message.assistant .text p")].map((node) => getComputedStyle(node).direction));
    assert.deepEqual(directions, ["rtl", "ltr"]);
    stub.next = { text: "1. العنصر\n2. الثاني $x^2$\n\n- loose\n\n- שלום\n\n> - اقتباس `f()`\n\n| الاسم | b |\n|---|---|\n| x | y |\n" };
    await tab.ask("marks too");
    await tab.until(() => !!document.querySelector(".katex"), "math");
    const sides = await tab.eval(() => ["ol", ".text > ul", "blockquote ul", "table", ".math", "code"].map((s) => getComputedStyle([...document.querySelectorAll(".message.assistant")].at(-1).querySelector(s)).direction));
    assert.deepEqual(sides, ["rtl", "ltr", "rtl", "rtl", "ltr", "ltr"], "the side of numbers, bullets and columns");
    await tab.click("#settings-open");
    await tab.key("Escape");
    stub.next = { text: story, rate: 40 };
    await tab.send("runs on");
    await tab.click("#settings-open");
    await tab.page.select("#language", "de");
    await tab.until(() => document.documentElement.lang === "de" && document.getElementById("new").textContent === "Neues Gespräch", "German");
    assert.equal(await tab.count(".message.running"), 1, "another language ends no answer");
    await tab.key("Escape");
    assert.equal(await tab.eval(() => document.getElementById("settings").open), false);
    await tab.finished();
    assert.equal(await tab.count(tab.button("Bearbeiten")), 3);
    await tab.reload();
    assert.equal(await tab.text("#new"), "Neues Gespräch");
  },
  async "accessibility: chat, settings and the empty view, both themes, both sizes"({ tab, stub }) {
    assert.equal(await tab.eval(() => getComputedStyle(document.querySelector("#send")).animationName), "none");
    for (const theme of ["light", "dark"]) {
      await tab.eval((name) => { document.documentElement.dataset.theme = name; }, theme);
      await checkAccess(tab, `empty, ${theme}`);
      stub.next = { text: corpus(40).slice(4, 12).join("\n\n"), reasoning: "Hm.", finish: "length" };
      await tab.ask("go");
      await sleep(300);
      await checkAccess(tab, `chat, ${theme}`);
      await tab.click(".message.user " + tab.button("Edit"));
      await checkAccess(tab, `editing, ${theme}`);
      await tab.key("Escape");
      await tab.click(`#list button[aria-label^="Actions"]`);
      await checkAccess(tab, `menu, ${theme}`);
      await tab.key("Escape");
      for (const [width, height] of [[360, 640], [1100, 760]]) {
        await tab.page.setViewport({ width, height });
        await checkAccess(tab, `chat, ${width}, ${theme}`);
        await tab.click("#settings-open");
        await tab.eval(() => { for (const details of document.querySelectorAll("dialog details")) details.open = true; });
        await checkAccess(tab, `settings, ${width}, ${theme}`);
        await tab.key("Escape");
        await tab.eval(() => document.querySelectorAll(".toast").forEach((node) => node.remove()));
      }
      await tab.page.setViewport({ width: 360, height: 640 });
      await tab.click("#menu");
      await checkAccess(tab, `conversations on a phone, ${theme}`);
      await tab.key("Escape");
      await tab.page.setViewport({ width: 1100, height: 760 });
      stub.context = 100; // the choice, a document that is too long, a message at the edge
      await tab.reload();
      await tab.eval((name) => { document.documentElement.dataset.theme = name; }, theme);
      const long = join(tmpdir(), "tenon-long.txt");
      writeFileSync(long, "word ".repeat(600));
      await (await tab.page.$("#files")).uploadFile(long);
      await tab.until(() => !!document.querySelector(".chip.warn button") && !document.getElementById("full").hidden, "too long");
      await checkAccess(tab, `full context, ${theme}`);
      await tab.click(".chip " + `button[aria-label^="Remove"]`);
      await tab.key("Control", "k");
      await tab.key("Tab");
      await tab.key("Delete");
      await tab.until(() => !!document.querySelector(".toast"), "the undo");
      await checkAccess(tab, `undo, ${theme}`);
      await tab.eval(() => document.querySelectorAll(".toast").forEach((node) => node.remove()));
      stub.context = 4096;
      await tab.reload();
    }
  },
};

function makePDF(text) {
  const objects = ["<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
    "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>", "",
    "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"];
  const content = `BT /F1 18 Tf 20 100 Td (${text}) Tj ET`;
  objects[3] = `<< /Length ${content.length} >>\nstream\n${content}\nendstream`;
  let file = "%PDF-1.4\n";
  const offsets = objects.map((object, i) => {
    const at = file.length;
    file += `${i + 1} 0 obj\n${object}\nendobj\n`;
    return at;
  });
  const xref = file.length;
  return file + `xref\n0 6\n0000000000 65535 f \n${offsets.map((at) => String(at).padStart(10, "0") + " 00000 n \n").join("")}trailer << /Size 6 /Root 1 0 R >>\nstartxref\n${xref}\n%%EOF`;
}

const browser = await startBrowser(kind);
let failures = 0, n = 0;
for (const [name, test] of Object.entries(tests)) {
  if (!name.includes(pattern) || (process.env.FROM && n === 0 && !name.includes(process.env.FROM))) continue;
  n++;
  const start = Date.now(), stub = await startStub(), context = await browser.createBrowserContext();
  let tab = null;
  try {
    tab = /\{ ?tab\b/.test(test.toString()) ? await Tab.open(context, stub.url) : null;
    await test({ tab, stub, context });
    if (tab) assert.deepEqual(tab.problems.filter((text) => !/ERR_CONNECTION|NetworkError|Failed to load resource/.test(text)), [], "messages of the console");
    console.log(`ok     ${name} (${Date.now() - start} ms)`);
  } catch (error) {
    failures++;
    console.log(`FAILED ${name}: ${error.stack.split("\n").slice(0, 14).join("\n")}`);
    if (tab?.problems.length) console.log("console:", tab.problems.slice(0, 5).join("\n"));
    if (process.env.SHOTS && tab) await tab.page.screenshot({ path: `${process.env.SHOTS}/failed-${n}.png` }).catch(() => {});
  }
  await context.close().catch(() => {});
  await stub.close().catch(() => {});
}
await browser.close();
console.log(`${kind}: ${n} tests, ${failures} failed`);
process.exit(failures ? 1 : 0);
