// Tests that no word is lost: reloads, cut streams, a killed server, several tabs, full storage. ui.mjs runs them.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { sleep, Tab } from "./browser.mjs";
import { story } from "./corpus.mjs";
import { chatRequests, startStub } from "./stub.mjs";

export const keptTests = {
  async "a reload in mid-stream keeps what arrived and offers to continue"({ tab, stub }) {
    stub.next = { text: story.repeat(30), rate: 80 };
    await tab.send("go");
    await tab.until(() => document.querySelector(".message.running .text")?.textContent.length > 60, "text arrives");
    const before = await tab.text(".message.assistant .text");
    await tab.reload();
    await tab.until(() => /interrupted/.test(document.querySelector(".notice")?.textContent), "the notice");
    const after = await tab.text(".message.assistant .text");
    assert.ok(after.startsWith(before), `${before} | ${after}`);
    stub.next = { text: " THE END" };
    await tab.clickText("Continue");
    await tab.until(() => document.querySelector(".message.assistant .text").textContent.endsWith("THE END"), "it goes on");
    await tab.finished();
    await tab.reload();
    assert.match(await tab.text(".message.assistant .text"), /THE END$/);
  },
  async "writes that a reload interrupts are made by the next page"({ tab, stub }) {
    const endless = () => tab.eval(() => { // no write is ever complete
      const real = IDBDatabase.prototype.transaction, never = { put() {}, delete() {}, index: () => ({ openKeyCursor: () => ({}) }) };
      IDBDatabase.prototype.transaction = function transaction(names, mode) { return mode === "readwrite" ? { objectStore: () => never } : real.call(this, names, mode); };
    });
    stub.next = { text: "an answer of before" };
    await tab.ask("stored");
    await endless();
    stub.next = { text: story };
    await tab.ask("not stored");
    stub.next = { text: story.repeat(30), rate: 80 };
    await tab.send("nor this");
    await tab.until(() => document.querySelector(".message.running .text")?.textContent.length > 60, "text arrives");
    await tab.page.keyboard.type("half a thought");
    const before = await tab.text(".message.assistant .text", 2);
    await tab.reload();
    await tab.until(() => /interrupted/.test([...document.querySelectorAll(".notice")].at(-1)?.textContent), "the notice");
    assert.deepEqual((await tab.texts(".message .text")).slice(0, 5), ["stored", "an answer of before", "not stored", story.replaceAll("**", ""), "nor this"]);
    assert.ok((await tab.text(".message.assistant .text", 2)).startsWith(before));
    assert.equal(await tab.eval(() => document.getElementById("input").value), "half a thought");
    await tab.until(() => !Object.keys(localStorage).some((key) => key.startsWith("tenon.left")), "all is stored");
    await tab.reload();
    assert.equal(await tab.count(".message"), 6);
    assert.equal(await tab.count(".message:nth-child(4) strong"), 10);
    // What is stored later is not replaced by what an older page left.
    const left = await tab.eval(async () => {
      const database = await new Promise((resolve) => { indexedDB.open("tenon").onsuccess = ({ target }) => resolve(target.result); });
      const all = await new Promise((resolve) => { database.transaction("messages").objectStore("messages").getAll().onsuccess = ({ target }) => resolve(target.result); });
      const old = { ...all.find(({ role, content }) => role === "assistant" && content.length > 300), content: "Once upon", state: "running" };
      localStorage.setItem("tenon.left.1", JSON.stringify({ messages: [old], conversations: [] }));
      return old.id;
    });
    await tab.reload();
    assert.equal(await tab.count(`.message[data-id="${left}"] strong`), 10);
  },
  async "a cut stream and a killed server lose no word"({ tab, stub, context }) {
    stub.next = { text: story, cutAfter: 12 };
    await tab.ask("go");
    assert.match(await tab.text(".notice"), /interrupted/);
    const kept = await tab.text(".message.assistant .text");
    assert.ok(kept.includes("Once upon"));
    stub.next = { text: story, rate: 50 };
    await tab.send("second");
    await tab.until(() => document.querySelectorAll(".message.assistant .text")[1]?.textContent.length > 15, "text arrives");
    const { port } = stub;
    await stub.close();
    await tab.until(() => document.querySelectorAll(".message.assistant")[1]?.querySelector(".notice")?.textContent.includes("interrupted"), "the notice");
    const partial = await tab.text(".message.assistant .text", 1);
    assert.ok(partial.length > 10);
    await tab.send("third, with the server gone");
    await tab.until(() => !!document.querySelectorAll(".message.assistant")[2]?.querySelector(".notice.error"), "the error");
    tab.problems.length = 0; // the browser reports the failed requests
    const again = await startStub({ port });
    try {
      await tab.reload();
      assert.deepEqual(await tab.texts(".message.user .text"), ["go", "second", "third, with the server gone"]);
      assert.equal(await tab.text(".message.assistant .text", 1), partial);
      again.next = { text: "fine now" };
      await tab.clickText("Try again", ".message.assistant:last-of-type button");
      await tab.until(() => document.querySelectorAll(".message.assistant .text")[2]?.textContent === "fine now", "the answer");
      await tab.finished();
    } finally {
      await again.close();
    }
  },
  async "two tabs see the same"({ tab, stub, context }) {
    stub.next = { text: "shared answer" };
    await tab.ask("hello");
    const other = await Tab.open(context, stub.url);
    assert.equal(await other.text(".message.assistant .text"), "shared answer");
    stub.next = { text: story, rate: 30 };
    await tab.front(); // hidden tabs draw nothing
    await tab.send("more");
    await other.front();
    await other.until(() => document.querySelectorAll(".message.assistant .text")[1]?.textContent.length > 10, "the other tab follows");
    await other.reload();
    await other.until(() => document.querySelectorAll(".message.running").length === 1, "the answer still runs elsewhere");
    await other.until((n) => document.querySelectorAll(".message.assistant .text")[1]?.textContent.length === n && !document.querySelector(".running"), "the whole answer", story.replaceAll("**", "").length);
    stub.next = { text: "from the other" };
    await other.ask("other tab");
    await tab.front();
    await tab.until(() => document.querySelectorAll(".message").length === 6, "the first tab follows");
    assert.deepEqual(other.problems, []);
    await other.page.close();
  },
  async "full storage: nothing is lost, and it is said"({ tab, stub }) {
    await tab.eval(() => {
      globalThis.realPut = IDBObjectStore.prototype.put;
      IDBObjectStore.prototype.put = function put() { throw new DOMException("full", "QuotaExceededError"); };
    });
    stub.next = { text: "kept on the screen" };
    await tab.ask("hello");
    assert.match(await tab.text("#banner"), /cannot be saved/);
    assert.equal(await tab.text(".message.assistant .text"), "kept on the screen");
    await tab.eval(() => { IDBObjectStore.prototype.put = globalThis.realPut; });
    await tab.clickText("Try again", "#banner button");
    await tab.until(() => !document.getElementById("banner").textContent, "saved");
    await tab.reload();
    assert.deepEqual(await tab.texts(".message .text"), ["hello", "kept on the screen"]);
  },
  async "without storage, other conversations keep their words too, and the browser asks before they go"({ tab, stub }) {
    await tab.eval(() => {
      globalThis.realPut = IDBObjectStore.prototype.put;
      IDBObjectStore.prototype.put = function put() { throw new DOMException("full", "QuotaExceededError"); };
    });
    stub.next = { text: "kept in memory" };
    await tab.ask("hello");
    await tab.click("#new");
    stub.next = { text: "another answer" };
    await tab.ask("other");
    await tab.click("#list .title", 1);
    await tab.until(() => document.querySelectorAll(".message").length === 2 && document.querySelector(".message .text").textContent === "hello", "the first conversation");
    assert.equal(await tab.text(".message.assistant .text"), "kept in memory");
    await tab.type("MEMORY", "#search");
    await tab.until(() => document.querySelectorAll("#list li").length === 1, "search finds what is not stored");
    await tab.eval(() => {
      globalThis.saved = [];
      URL.createObjectURL = (blob) => { globalThis.saved.push(blob); return "data:,x"; };
      HTMLAnchorElement.prototype.click = function click() {};
    });
    await tab.clickText("Export all", "#banner button");
    await tab.until(() => globalThis.saved.length === 1, "the file");
    assert.match(await tab.eval(() => globalThis.saved[0].text()), /kept in memory[^]*another answer|another answer[^]*kept in memory/);
    const asks = () => tab.eval(() => !dispatchEvent(new Event("beforeunload", { cancelable: true })));
    assert.equal(await asks(), false, "what fits into the other storage is safe");
    await tab.eval(() => {
      globalThis.realSet = Storage.prototype.setItem;
      Storage.prototype.setItem = function setItem() { throw new DOMException("full", "QuotaExceededError"); };
    });
    assert.equal(await asks(), true);
    await tab.eval(() => {
      IDBObjectStore.prototype.put = globalThis.realPut;
      Storage.prototype.setItem = globalThis.realSet;
    });
    await tab.clickText("Try again", "#banner button");
    await tab.until(() => !document.getElementById("banner").textContent, "saved");
    assert.equal(await asks(), false);
    await tab.reload();
    assert.equal(await tab.count("#list li"), 2);
  },
  async "a changed text that cannot be sent yet stays, also after a reload"({ tab, stub }) {
    stub.next = { text: "one" };
    await tab.ask("first");
    stub.next = { text: story.repeat(30), rate: 60 };
    await tab.send("second");
    await tab.until(() => document.querySelectorAll(".message.assistant .text")[1]?.textContent.length > 10, "text arrives");
    await tab.click(".message.user " + tab.button("Edit"));
    await tab.key("Control", "a");
    await tab.page.keyboard.type("a better question");
    await tab.clickText("Send", ".edit button");
    await tab.until(() => /Stop it first/.test(document.querySelector(".toast")?.textContent), "it says why not");
    assert.equal(await tab.eval(() => document.querySelector(".edit textarea").value), "a better question");
    await tab.key("Escape"); // in the field: gives up the change
    await tab.click(".message.user " + tab.button("Edit"));
    await tab.key("Control", "a");
    await tab.page.keyboard.type("a third question");
    await tab.reload();
    assert.equal(await tab.eval(() => document.querySelector(".edit textarea").value), "a third question");
    stub.next = { text: "the answer" };
    await tab.clickText("Send", ".edit button");
    await tab.until(() => document.querySelectorAll(".message").length === 2 && document.querySelector(".message.user .text")?.textContent === "a third question", "the branch");
    await tab.finished();
    await tab.reload();
    assert.equal(await tab.count(".edit"), 0);
  },
  async "what two tabs change of one conversation is kept"({ tab, stub, context }) {
    stub.next = { text: "one" };
    await tab.ask("a conversation");
    const other = await Tab.open(context, stub.url);
    await other.click("#new");
    await tab.front();
    stub.next = { text: "two" };
    await tab.ask("goes on");
    await other.front();
    await other.click("#list .title");
    await other.until(() => document.querySelectorAll(".message").length === 4, "the newest messages");
    await other.click("#list .title");
    await other.key("F2");
    await other.page.keyboard.type("Renamed there");
    await other.key("Enter");
    await tab.front();
    await tab.until(() => document.querySelector("#list .title").textContent === "Renamed there" && document.title.startsWith("Renamed there"), "the title comes over");
    stub.next = { text: "three" };
    await tab.ask("and on");
    await tab.reload();
    assert.equal(await tab.text("#list .title"), "Renamed there");
    assert.equal(await tab.count(".message"), 6);
    await other.front();
    await other.reload();
    assert.equal(await other.count(".message"), 6);
    assert.equal(await other.text("#list .title"), "Renamed there");
    await other.page.close();
  },
  async "drafts and documents stay after a reload, in each tab its own"({ tab, stub, context }) {
    const field = (of) => of.eval(() => document.getElementById("input").value), file = join(tmpdir(), "tenon-draft.txt");
    writeFileSync(file, "words of a document");
    await tab.type("half a thought");
    await (await tab.page.$("#files")).uploadFile(file);
    await tab.until(() => /tokens/.test(document.querySelector(".chip")?.textContent), "the document");
    await sleep(500);
    const other = await Tab.open(context, stub.url);
    assert.equal(await field(other), "");
    await other.type("another thought");
    await sleep(500);
    await tab.front();
    await tab.reload();
    assert.equal(await field(tab), "half a thought");
    assert.equal(await tab.count(".chip"), 1);
    await other.front();
    await other.reload();
    assert.equal(await field(other), "another thought");
    await other.page.close();
    await tab.front();
    stub.next = { text: "x" };
    await tab.key("Enter");
    await tab.finished();
    assert.match(chatRequests(stub).at(-1).body.messages[0].content, /words of a document[\s\S]*half a thought/);
    await tab.click("#new");
    await tab.reload();
    assert.equal(await field(tab), "another thought", "what the closed tab left");
  },
  async "a tab that is closed in mid-stream leaves its answer to the others"({ tab, stub, context }) {
    stub.next = { text: "hello" };
    await tab.ask("first");
    const other = await Tab.open(context, stub.url);
    stub.next = { text: story, rate: 20 };
    await other.send("second");
    await other.until(() => document.querySelector(".message.running .text")?.textContent.length > 20, "text arrives");
    await tab.front();
    await tab.until(() => document.querySelector(".message.running .text")?.textContent.length > 20, "this tab follows");
    await other.page.close();
    await tab.until(() => /interrupted/.test(document.querySelectorAll(".message.assistant")[1]?.querySelector(".notice")?.textContent), "it notices");
    assert.ok((await tab.text(".message.assistant .text", 1)).startsWith("Once upon"));
    stub.next = { text: " THE END" };
    await tab.clickText("Continue");
    await tab.until(() => document.querySelectorAll(".message.assistant .text")[1]?.textContent.endsWith("THE END"), "it goes on");
    await tab.finished();
  },
};
