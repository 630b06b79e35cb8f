// Parts of the web UI that need no browser: conversations as trees, event streams, Markdown, languages.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { fakeDocument } from "./fake_dom.mjs";
import { corpus, hostile } from "./corpus.mjs";

globalThis.document = fakeDocument;
const web = new URL("../../tools/tenon/web/", import.meta.url);
const load = (name) => import(new URL(name, web).href);
const tree = await load("tree.js"), stream = await load("stream.js");
const { makeParser } = await load("markdown/parser.js"), { MarkdownView } = await load("markdown/view.js");
const parser = makeParser();
export const rendered = (text, final, md = parser) => {
  const root = document.createElement("div");
  new MarkdownView(root, md).update(text, final);
  return root.inner;
};
// The view fed piece by piece must show what a new view shows for the same text, at every piece and at the end.
export function checkIncremental(text, cuts, md = parser) {
  const root = document.createElement("div"), view = new MarkdownView(root, md, { openItems: 3 });
  for (const cut of cuts) {
    view.update(text.slice(0, cut));
    assert.equal(root.inner, rendered(text.slice(0, cut), false, md), JSON.stringify(text.slice(0, cut)));
  }
  view.update(text, true);
  assert.equal(root.inner, rendered(text, true, md), JSON.stringify(text));
}

const tests = {
  "a changed message is a new version, and the old branch stays"() {
    const conversation = tree.newConversation(), messages = new Map();
    const add = (parent, role, content) => {
      const message = tree.newMessage(conversation, parent, role, { content });
      messages.set(message.id, message);
      return message;
    };
    const q1 = add(null, "user", "one"), a1 = add(q1.id, "assistant", "A"), q2 = add(a1.id, "user", "two"), b1 = add(null, "user", "one, edited");
    assert.deepEqual(tree.pathTo(messages, q2.id).map(({ content }) => content), ["one", "A", "two"]);
    assert.deepEqual(tree.versionsOf(messages, b1), { list: [q1, b1], index: 1 });
    assert.equal(tree.newestLeaf(messages, q1.id), q2.id);
    assert.equal(tree.newestLeaf(messages, null), b1.id);
    messages.get(q1.id).parent = q2.id; // damaged: a circle
    assert.equal(tree.pathTo(messages, q2.id).length, 3);
  },
  "ids sort by age"() {
    const ids = Array.from({ length: 2000 }, tree.newId);
    assert.deepEqual([...ids].sort(), ids);
    assert.equal(new Set(ids).size, ids.length);
  },
  "requests have the system prompt, the documents and no empty answers"() {
    const path = [{ role: "user", content: "q", attachments: [{ name: "a.txt", text: "body" }] }, { role: "assistant", content: "" }, { role: "user", content: "again" }];
    assert.deepEqual(tree.requestMessages(path, { system: " S " }), [{ role: "system", content: "S" }, { role: "user", content: "[a.txt]\n\nbody\n\n[end of a.txt]\n\nq" }, { role: "user", content: "again" }]);
    assert.deepEqual(tree.requestMessages(path, { skip: 2, summary: "sum" })[0], { role: "system", content: "Summary of the conversation so far:\nsum" });
  },
  "a full context leaves out whole turns from the beginning"() {
    const roles = ["user", "assistant", "user", "assistant", "user"];
    assert.equal(tree.messagesToSkip([10, 10, 10, 10, 10], roles, 50), 0);
    assert.equal(tree.messagesToSkip([10, 10, 10, 10, 10], roles, 49), 2);
    assert.equal(tree.messagesToSkip([10, 10, 10, 10, 10], roles, 25), 4);
    assert.equal(tree.messagesToSkip([10, 10, 10, 10, 90], roles, 25), 4);
    assert.equal(tree.messagesToSkip([10, 10, 10, 90], roles, 25, 2), 2, "an answer that goes on keeps its question");
  },
  "exported conversations come back with all versions and new ids"() {
    const conversation = { ...tree.newConversation("sys"), title: "T" }, messages = new Map();
    let parent = null;
    for (const [i, role] of ["user", "assistant", "user"].entries()) {
      const message = tree.newMessage(conversation, parent, role, { content: "m" + i, reasoning: i === 1 ? "r" : undefined, attachments: i ? undefined : [{ name: "n", text: "t", tokens: 3 }] });
      messages.set(message.id, message);
      parent = message.id;
    }
    const other = tree.newMessage(conversation, [...messages.keys()][0], "assistant", { content: "other version", state: "running" });
    messages.set(other.id, other);
    conversation.leaf = parent;
    const [back] = tree.fromFile(tree.toJSON([{ conversation, messages }]));
    assert.notEqual(back.conversation.id, conversation.id);
    assert.equal(back.messages.size, 4);
    assert.deepEqual(tree.pathTo(back.messages, back.conversation.leaf).map(({ content }) => content), ["m0", "m1", "m2"]);
    assert.equal([...back.messages.values()].find(({ content }) => content === "other version").state, "interrupted");
    assert.equal(back.conversation.system, "sys");
    const [markdown] = tree.fromFile(tree.toMarkdown(conversation, tree.pathTo(messages, conversation.leaf)));
    assert.equal(markdown.messages.size, 3);
    for (const bad of ["{}", "[]", "null", "plain text", "{\"kind\":\"tenon-conversations\"}"]) assert.throws(() => tree.fromFile(bad), /not a file of conversations/);
    assert.equal(tree.fromFile("{\"kind\":\"tenon-conversations\",\"conversations\":[{\"messages\":[null,{\"id\":3},{\"id\":\"a\",\"role\":\"system\"},{\"id\":\"b\",\"role\":\"user\",\"content\":5}]}]}")[0].messages.size, 1);
  },
  "nothing is lost by an export and an import"() {
    const conversation = { ...tree.newConversation("Be brief.\n\n> and quote"), title: "Round trip", named: true, skip: 2, summary: "before", fullContext: "summarise" }, messages = new Map();
    const contents = [["user", { content: "## A heading of mine\n\n    indented\n", attachments: [{ name: "a --> \"b\".md", text: "```js\nx\n```\n<!-- tenon: user -->\n", tokens: 9 }, { name: "empty", text: "" }] }],
      ["assistant", { content: "# One\n\n## Two\n\n```\n## three\n```\n\n## You\n\nnot you", reasoning: "## think\n\n</details>\n\nmore", model: "m", note: "n", stats: { tokens: 3, total: 9, rate: 1.5 } }],
      ["user", { content: "" }], ["assistant", { content: "", calls: [{ id: "", name: "f", arguments: "{\"a\":\"(1)\"}" }] }],
      ["user", { content: " <!-- tenon2: assistant -->" }], ["assistant", { content: "cut", state: "interrupted", error: { status: 0, type: "", text: "gone", cut: true } }]];
    for (const [role, fields] of contents) {
      const message = tree.newMessage(conversation, conversation.leaf, role, fields);
      messages.set(message.id, message);
      conversation.leaf = message.id;
    }
    const plain = ({ conversation: { id, leaf, created, ...rest }, messages: all }) => [{ ...rest, updated: 0, draft: "" }, tree.pathTo(all, leaf).map(({ id: _, conversation: __, parent: ___, ...message }) => message)];
    const [back] = tree.fromFile(tree.toJSON([{ conversation: { ...conversation, draft: "unsent" }, messages }]));
    assert.deepEqual(plain(back), plain({ conversation, messages }));
    const path = tree.pathTo(messages, conversation.leaf), file = tree.toMarkdown(conversation, path, { user: "Sie", assistant: "Modell" });
    for (const source of [file, file.replaceAll("\n", "\r\n")]) {
      const [read] = tree.fromFile(source), of = (list) => list.map(({ role, content, reasoning, attachments, calls }) => ({ role, content, reasoning, calls, attachments: attachments?.map(({ name, text }) => ({ name, text })) }));
      assert.deepEqual(of(tree.pathTo(read.messages, read.conversation.leaf)), of(path));
      assert.equal(read.conversation.system, conversation.system);
      assert.equal(read.conversation.title, "Round trip");
    }
    const [other] = tree.fromFile("# Notes\n\n## Me\n\nhello\n\n## It\n\nhi\n");
    assert.deepEqual(tree.pathTo(other.messages, other.conversation.leaf).map(({ role, content }) => role + content), ["userhello", "assistanthi"], "Markdown from elsewhere");
  },
  "exports of Open WebUI, llama.cpp and ChatGPT are read, with their versions"() {
    const texts = ({ conversation, messages }) => tree.pathTo(messages, conversation.leaf).map(({ role, content }) => role[0] + content);
    const node = (id, parentId, role, content, timestamp) => ({ id, parentId, childrenIds: [], role, content, timestamp });
    const [open] = tree.fromFile(JSON.stringify([{ id: "x", title: "From there", updated_at: 1700000009, chat: { history: { currentId: "c", messages: { a: node("a", null, "user", "q", 1700000000), b: node("b", "a", "assistant", "old", 1700000001), c: node("c", "a", "assistant", "new", 1700000002) } } } }]));
    assert.deepEqual([texts(open), open.conversation.title, open.conversation.updated, open.messages.size], [["uq", "anew"], "From there", 1700000009000, 3]);
    assert.deepEqual(tree.childrenOf(open.messages, [...open.messages.values()].find(({ role }) => role === "user").id).map(({ content }) => content), ["old", "new"]);
    const [llama] = tree.fromFile(JSON.stringify({ conv: { id: "y", name: "L", currNode: 3, lastModified: 1700000000000 }, messages: [{ id: 1, type: "root", parent: -1, role: "system", content: "", timestamp: 1 }, { id: 2, type: "text", parent: 1, role: "user", content: "hi", timestamp: 1700000000001 }, { id: 3, type: "text", parent: 2, role: "assistant", content: "ho", thinking: "hm", timestamp: 1700000000002 }] }));
    assert.deepEqual([texts(llama), [...llama.messages.values()][1].reasoning], [["uhi", "aho"], "hm"]);
    const part = (parent, role, parts) => ({ parent, message: role && { author: { role }, content: { content_type: "text", parts }, create_time: 1700000000.5 } });
    const [gpt, ...more] = tree.fromFile(JSON.stringify([{ title: "G", update_time: 1700000000.5, current_node: "n4", mapping: { n0: part(null), n1: part("n0", "system", ["be kind"]), n2: part("n1", "user", ["one", { asset: 1 }, "two"]), n3: part("n2", "tool", ["x"]), n4: part("n3", "assistant", ["yes"]) } }, { title: "empty", mapping: {} }, null]));
    assert.deepEqual([texts(gpt), gpt.conversation.system, more.length], [["uone\n\ntwo", "ayes"], "be kind", 0]);
    const circle = tree.fromFile(JSON.stringify([{ title: "C", current_node: "a", mapping: { a: part("b", "tool", ["t"]), b: part("a", "tool", ["t"]), c: part("a", "user", ["still"]) } }]));
    assert.equal(circle[0].messages.size, 1);
  },
  "all files together are small"() {
    const folder = fileURLToPath(web);
    const sizes = readdirSync(folder, { recursive: true }).filter((name) => /\.(html|css|js|svg|woff2)$/.test(name)).map((name) => {
      const bytes = readFileSync(folder + name);
      return name.endsWith("woff2") ? bytes.length : gzipSync(bytes, { level: 9 }).length;
    });
    const sum = sizes.reduce((a, b) => a + b);
    assert.ok(sum > 5e5 && sum <= 1.5e6, `${sum} bytes`);
  },
  "event streams may be cut anywhere"() {
    const text = "data: {\"a\":1}\r\n\r\n: ping\n\ndata:{\"b\":2}\n\nevent: x\ndata: [DONE]\n\n";
    for (let cut = 0; cut <= text.length; cut++) {
      const events = new stream.EventParser();
      assert.deepEqual([...events.feed(text.slice(0, cut)), ...events.feed(text.slice(cut))], ["{\"a\":1}", "{\"b\":2}", "[DONE]"], String(cut));
    }
  },
  "events add to the message"() {
    const message = { content: "" };
    for (const delta of [{ reasoning_content: "hm" }, { content: "a" }, { content: "b" }, { tool_calls: [{ index: 0, id: "1", function: { name: "f", arguments: "{\"x\"" } }] }, { tool_calls: [{ index: 0, function: { arguments: ":1}" } }] }])
      stream.applyEvent(message, { choices: [{ delta }] });
    assert.deepEqual(message, { content: "ab", reasoning: "hm", calls: [{ id: "1", name: "f", arguments: "{\"x\":1}" }] });
    assert.equal(stream.applyEvent(message, { content: "c", stop: true, stop_type: "limit" }).finish, "length");
    assert.throws(() => stream.applyEvent(message, { error: { message: "no" } }), /no/);
  },
  "Markdown that models write"() {
    for (const [source, expected] of [
      ["# Head\ntext", /<h1[^>]*>Head<\/h1><p[^>]*>text<\/p>/], ["Lead:\n- a\n- b", /<p[^>]*>Lead:<\/p><ul[^>]*><li[^>]*>a<\/li><li[^>]*>b<\/li><\/ul>/],
      ["1. a\n\n2. b\n\n3. c", /<ol[^>]*><li.*<\/li><li.*<\/li><li.*<\/li><\/ol>/], ["|a|b|\n|-|-:|\n|1|2|", /<table>.*<td class="right">/],
      ["- [x] a\n- [ ] b", /<li class="task"[^>]*><input[^>]*checked/], ["$x^2$ and \\(y\\)", /<span class="math">x\^2<\/span> and <span class="math">y<\/span>/],
      ["$$\na\n\nb\n$$", /^<div class="math display">a\n\nb<\/div>$/], ["from $5-$10", /^<p[^>]*>from \$5-\$10<\/p>$/], ["costs $5 and $10", /^<p[^>]*>costs \$5 and \$10<\/p>$/], ["a<br>b<sub>2</sub>", /a<br>b<sub>2<\/sub>/],
      ["see file.py and https://a.b/c", /see file\.py and <a href="https:\/\/a\.b\/c"/], ["~~x~~", /<s>x<\/s>/], ["- a\n  $$\n  x\n  $$\n- b", /<li[^>]*>a<div class="math display">x<\/div><\/li>/],
      ["a\n<details>\n<summary>*b*</summary>\n\n- c\n\n</details>\nd", /^<p[^>]*>a<\/p><details><summary><em>b<\/em><\/summary><ul.*<\/ul><\/details><p[^>]*>d<\/p>$/], ["<details open><summary>a</summary>b</details>", /^<details><summary>a<\/summary><p[^>]*>b<\/p><\/details>$/],
      ["- a\n  <details>\n  b\n- c", /<li[^>]*>a<details open=""><p[^>]*>b<\/p><\/details><\/li><li[^>]*>c/], ["<details><details>a</details>b</details>c", /^<details><details><p[^>]*>a<\/p><p[^>]*>b<\/p><\/details><p[^>]*>c<\/p><\/details>$/], ["<details onclick=x>", /^<p[^>]*>&lt;details onclick=x&gt;<\/p>$/],
    ]) assert.match(rendered(source, true), expected, source);
  },
  "Markdown is the same in pieces as at once"() {
    corpus(60).forEach((text, i) => {
      const cuts = [];
      for (let at = 0; at < text.length; at += 1 + (at * 7 + i * 13) % 23) cuts.push(at);
      checkIncremental(text, cuts);
    });
    for (const text of ["[a]\n\n[a]: /x \"t\"\n\n[a] again\n\n[b]\n\n[b]: /y\n", "1. a\n\n2. b\n\n3", "a\n-\n- b\n", "- a\n\n\n- b\n\n  c\n* d\n",
      "1. a\n2. b\n3. c\n4. d\n5. e\n\n6. loose\n7. f\n8. g\n\ntext\n", "- a\n\n- b\n\n- c\n\n- d\n- e\n  - f\n  - g\n- h\n- i\n* other\n* list\n", "|a|b|\n|-|-|\n" + "|1|*2*|\n|[x]|`|`|\n".repeat(6) + "> quote\n\n[x]: /y\n",
      "a\n<details>\n<summary>b</summary>\n\n- c\n- d\n<details>x</details>\n\n[r]\n</details> e\n\nf\n- g\n  <details>\n  h\n- i\n\n[r]: /y\n", "- [ ] a\n- [x] b\n- c\n-\n- e\n - f\n  - g\n   - h\n- - -\n- i\n", "text\n- a\n- b\n- c\n- d\n    code?\n\n      deeper\n- e\nlazy\n- f\n"]) checkIncremental(text, Array.from(text, (_, i) => i));
  },
  "a definition of a link that is being written is not shown"() {
    assert.equal(rendered("a\n\n[x]: /ur", false), rendered("a\n\n", false));
    assert.notEqual(rendered("a\n\n[x] y", false), rendered("a\n\n", false));
  },
  "markers wait for what follows, so that lines are no headings for a moment"() {
    for (const marker of ["-", "  - ", "=", "==", "#", "1", "2.", "`", "``", "> -"]) assert.equal(rendered("text\n" + marker, false), rendered("text\n", false), marker);
    assert.notEqual(rendered("text\n- a", false), rendered("text\n", false));
    assert.match(rendered("text\n---", true), /<h2/);
  },
  "a complete text that goes on continues its last block"() {
    const root = document.createElement("div"), view = new MarkdownView(root, parser);
    view.update("again", true);
    view.update("again", false);
    view.update("again and more", false);
    assert.equal(root.inner, rendered("again and more", false));
  },
  "addresses without a scheme"() {
    assert.match(rendered("Visit www.example.org/a.b. Or file.py, www.x", true), /^<p[^>]*>Visit <a href="http:\/\/www\.example\.org\/a\.b"[^>]*>www\.example\.org\/a\.b<\/a>\. Or file\.py, www\.x<\/p>$/);
  },
  "hostile Markdown becomes text, quickly"() {
    for (const text of hostile) {
      const start = process.cpuUsage(), html = rendered(text, true), { user } = process.cpuUsage(start); // a loaded machine is no slow parser
      assert.ok(user < 1e6, `slow: ${text.slice(0, 40)}`);
      assert.doesNotMatch(html, /<(script|img|iframe|svg|style|meta|object|form)\b/i, text.slice(0, 80));
      assert.doesNotMatch(html, /(href|src)="\s*(javascript|data|vbscript|file):/i, text.slice(0, 80));
      assert.doesNotMatch(html, /<[^>]*\son\w+=(?!&quot;)"/i, text.slice(0, 80));
    }
  },
  async "languages have the same texts, and every text that is used exists"() {
    const [en, ...others] = await Promise.all(["en", "de"].map(async (code) => (await load(`languages/${code}.js`)).default));
    const values = (text) => (text.match(/\{\w+\}/g) ?? []).sort().join();
    for (const other of others) {
      assert.deepEqual(Object.keys(other).sort(), Object.keys(en).sort());
      for (const key of Object.keys(en)) assert.equal(values(other[key]), values(en[key]), key);
    }
    const folder = new URL(".", web), used = new Set();
    for (const name of readdirSync(folder, { recursive: true })) {
      if (!/\.(js|html)$/.test(name) || /vendor|languages/.test(name)) continue;
      const source = readFileSync(new URL(name, folder), "utf8");
      for (const [, key] of source.matchAll(/\bt\("(\w+[a-zA-Z\d])"/g)) used.add(key);
      for (const [, key] of source.matchAll(/data-(?:text|label|title|hint)="(\w+)"/g)) used.add(key);
    }
    for (const { name } of (await load("settings.js")).fields) used.add("name_" + name).add("help_" + name);
    assert.deepEqual([...used].filter((key) => !(key in en)), []);
  },
  "no inline scripts, styles or handlers"() {
    const source = readFileSync(new URL("index.html", web), "utf8");
    assert.doesNotMatch(source, /\sstyle=|\son\w+=|<style|<script(?![^>]*\bsrc=)/i);
    for (const name of readdirSync(web, { recursive: true }))
      if (/\.js$/.test(name) && !/vendor/.test(name)) assert.doesNotMatch(readFileSync(new URL(name, web), "utf8"), /\.innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\("style"/, name);
  },
};

if (process.argv[1] === new URL(import.meta.url).pathname) {
  let failures = 0;
  for (const [name, test] of Object.entries(tests)) {
    try {
      await test();
    } catch (error) {
      failures++;
      console.log(`FAILED: ${name}\n${error.stack.split("\n").slice(0, 12).join("\n")}`);
    }
  }
  console.log(`${Object.keys(tests).length} tests, ${failures} failed`);
  process.exit(failures ? 1 : 0);
}
