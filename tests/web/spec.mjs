// All examples of CommonMark and of GFM's extensions: in pieces as at once, and as markdown-it itself renders them.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { checkIncremental, rendered } from "./core.mjs";

const { tests } = createRequire(import.meta.url)("commonmark-spec");
const { makeParser } = await import("../../tools/tenon/web/markdown/parser.js");
const gfm = ["| foo | bar |\n| --- | --- |\n| baz | bim |\n", "| abc | defghi |\n:-: | -----------:\nbar | baz\n", "| f\\|oo  |\n| ------ |\n| b `\\|` az |\n| b **\\|** im |\n",
  "| abc | def |\n| --- | --- |\n| bar | baz |\n> bar\n", "| abc | def |\n| --- | --- |\n| bar | baz |\nbar\n\nbar\n", "| abc | def |\n| --- |\n| bar |\n", "| abc | def |\n| --- | --- |\n| bar |\n| bar | baz | boo |\n",
  "| abc | def |\n| --- | --- |\n", "~~Hi~~ Hello, ~there~ world!\n", "This ~~has a\n\nnew paragraph~~.\n", "This will ~~~not~~~ strike.\n", "- [ ] foo\n- [x] bar\n", "- [x] foo\n  - [ ] bar\n  - [x] baz\n- [ ] bim\n",
  "- [ ] foo\n- [x] bar\n", "www.commonmark.org\n", "Visit www.commonmark.org/help for more information.\n", "Visit www.commonmark.org.\n\nVisit www.commonmark.org/a.b.\n",
  "www.google.com/search?q=Markup+(business)\n\nwww.google.com/search?q=Markup+(business)))\n\n(www.google.com/search?q=Markup+(business))\n\n(www.google.com/search?q=Markup+(business)\n",
  "www.google.com/search?q=(business))+ok\n", "www.google.com/search?q=commonmark&hl=en\n\nwww.google.com/search?q=commonmark&hl;\n", "www.commonmark.org/he<lp\n",
  "http://commonmark.org\n\n(Visit https://encrypted.google.com/search?q=Markup+(business))\n", "foo@bar.baz\n", "hello@mail+xyz.example isn't valid, but hello+xyz@mail.example is.\n",
  "a.b-c_d@a.b\n\na.b-c_d@a.b.\n\na.b-c_d@a.b-\n\na.b-c_d@a.b_\n", "mailto:foo@bar.baz\n\nmailto:a.b-c_d@a.b.\n\nmailto:a.b-c_d@a.b/\n\nxmpp:foo@bar.baz/txt@bin.com\n",
  "Visit https://commonmark.org/help for more.\n", "https://encrypted.google.com/search?q=Markup+(business)\n", "(Visit https://a.b/c?d=(e))\n", "https://a.b/&hl;\n"];
const plain = makeParser();

// The HTML of the library in the form of ours: without line ends between tags, and without what we add.
const libraryHTML = (text) => plain.render(text).replace(/>\n+</g, "><").replace(/\n+$/, "").replace(/^\n+/, "");
const ours = (text) => rendered(text, true, plain).replace(/ (dir|target|rel|tabIndex|role|aria-label)="[^"]*"/g, "").replace(/<div class="wide">(<table>.*?<\/table>)<\/div>/gs, "$1");
const same = (html) => html.replace(/<br>\n?/g, "<br>").replace(/>\n+/g, ">").replace(/\n+</g, "<").replace(/ style="text-align:(\w+)"/g, (_, side) => ` class="${side === "center" ? "centre" : side}"`)
  .replace(/<img src="([^"]*)" alt="([^"]*)"[^>]*>/g, "IMG").replace(/<a href="[^"]*" class="picture">[^<]*<\/a>/g, "IMG").replaceAll("<br />", "<br>").replaceAll("<hr />", "<hr>").replace(/\n/g, " ");

let failures = 0, compared = 0;
for (const source of [...tests.map(({ markdown }) => markdown.replaceAll("→", "\t")), ...gfm]) {
  try {
    checkIncremental(source, Array.from(source, (_, i) => i), plain);
    if (!/\$|\\[([]|<(br|sub|sup|kbd|mark|u|b|i|small)\b/i.test(source) && !/\[[ x]\]/.test(source)) { // math, tags and task lists are ours
      compared++;
      assert.equal(same(ours(source)), same(libraryHTML(source)), JSON.stringify(source));
    }
  } catch (error) {
    if (failures++ < 8) console.log("FAILED", error.message.slice(0, 1500));
  }
}
console.log(`Markdown examples: ${tests.length} of CommonMark, ${gfm.length} of GFM, ${compared} compared with the library, ${failures} failed`);
process.exit(failures ? 1 : 0);
