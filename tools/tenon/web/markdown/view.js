// A growing text in Markdown on the screen. Blocks that can no longer change are built once; only what is at the end is parsed
// again when text arrives. The result is the same as for the whole text at once.
//
// A top-level block can no longer change once the first line of the block after it is complete: Markdown joins lines to the
// block before only while they are at its end. The same holds for the items of a list and the rows of a table, so that long ones
// stay open while their first items are built for good. Definitions of links ([name]: address) are the exception. They act on
// the whole text, so that a new one builds everything again; so does an empty line that makes a list loose.
import { blocksOf, Builder, markLong } from "./build.js";
import { containerOf, isLoose, loosen } from "./containers.js";

const unfinishedDefinition = /^ {0,3}\[[^\]\n]+\]:[^\n]*$/;
// The beginning of what may become an item, a heading or a fence. It waits for what follows: "text\n-" would be a heading.
const unfinishedMarker = /^[ \t>]*(?:[-+*=_]+|\d{1,9}[.)]?|#{1,6}|`{1,2}|~{1,2})[ \t]*$/;
const partSize = 8000; // characters; longer texts are built in parts of about this size, when they come near the screen

export class MarkdownView {
  // options: as for Builder; observe(node, build) calls build when the node comes near the screen; openItems: from how many items on
  // a list or table is built in parts.
  constructor(root, parser, options = {}) {
    Object.assign(this, { root, parser, builder: new Builder({ unescape: parser.utils.unescapeAll, ...options }), observe: options.observe,
      openItems: options.openItems ?? 24 });
    this.reset();
  }

  reset() {
    this.root.replaceChildren();
    this.text = "";
    this.final = false;   // the text was complete
    this.stable = 0;      // characters that are built for good
    this.references = {}; // definitions of links in those
    this.shown = "{}";    // all definitions when the text was last built
    this.tail = [];       // { source, nodes, … } of the blocks that may change
    this.open = null;     // the list or table at the end whose first items are built for good: { kind, slot, loose, head }
  }

  // Shows the text. `final` says that it is complete.
  update(text, final = false) {
    // A complete text that goes on may continue its last block.
    if (!text.startsWith(this.text.slice(0, this.stable)) || (this.final && (!final || text.length > this.text.length))) this.reset();
    Object.assign(this, { text, final });
    if (final && this.observe && text.length - this.stable > 2 * partSize) {
      this.#showLong();
      return;
    }
    let source = (this.open?.head ?? "") + text.slice(this.stable);
    if (!final) {
      const line = source.lastIndexOf("\n") + 1;
      if (unfinishedDefinition.test(source.slice(line)) || unfinishedMarker.test(source.slice(line))) source = source.slice(0, line);
    }
    const env = { references: { ...this.references } };
    const tokens = this.parser.parse(source, env);
    const defined = JSON.stringify(env.references), blocks = blocksOf(tokens);
    if ((this.stable > 0 && defined !== this.shown) || !this.#fitsOpen(tokens, blocks)) {
      this.reset();
      this.shown = defined;
      this.update(text, final);
      return;
    }
    if (defined !== this.shown) for (const entry of this.tail) entry.source = entry.shell = entry.code = null; // built with other definitions
    this.shown = defined;
    const before = this.stable;
    this.#show(source, tokens, blocks, final);
    if (this.stable > before && Object.keys(env.references).length > Object.keys(this.references).length) {
      const own = { references: { ...this.references } };
      this.parser.parse(text.slice(before, this.stable), own);
      this.references = own.references;
    }
  }

  // Whether the text goes on with the open list or table in the same way.
  #fitsOpen(tokens, blocks) {
    const { open } = this;
    if (!open) return true;
    const first = blocks[0] && tokens[blocks[0].first];
    if (!first || first.type !== open.kind || first.map[0] !== 0) return false;
    if (open.kind === "table_open") return true;
    const loose = isLoose(tokens, blocks[0]);
    if (loose && !open.loose) return false;
    if (open.loose && !loose) loosen(tokens, blocks[0]);
    return true;
  }

  #show(source, tokens, blocks, final) {
    const starts = lineStarts(source), complete = starts.length - 1; // number of lines that end with a newline
    let keep = 0; // blocks before this one are final
    if (final) keep = blocks.length;
    else for (let i = 1; i < blocks.length; i++) if (blocks[i].map[0] < complete) keep = i;
    const text = ({ map }) => source.slice(starts[map[0]], starts[map[1]] ?? source.length), head = this.open?.head.length ?? 0;
    const old = this.tail;
    this.tail = [];
    blocks.forEach((block, i) => {
      const before = old.shift(), entry = this.#showBlock(tokens, block, text, before, i === 0 ? this.open : null);
      if (i >= keep) this.tail.push(entry);
    });
    for (const { nodes } of old) nodes.forEach((node) => node.remove());
    if (final) this.stable = this.text.length;
    else if (keep > 0) this.stable += starts[blocks[keep].map[0]] - head;
    if (keep > 0 || final) this.open = null;
    if (!final && blocks.length === keep + 1) this.#closeItems(tokens, blocks[keep], starts, keep > 0 ? starts[blocks[keep].map[0]] : head, source);
  }

  // The first items of a long list or table are built for good; the last two may change. The line of the last but one is complete,
  // as another item begins below it.
  #closeItems(tokens, block, starts, base, source) {
    const entry = this.tail[0], container = entry.items && containerOf(tokens, block);
    if (!container || container.items.length < this.openItems) return;
    const at = container.items.length - 2, line = container.items[at].map[0];
    const head = this.open?.head ?? (container.kind === "table_open" ? source.slice(starts[block.map[0]], starts[block.map[0] + 2]) : "");
    this.open = { kind: container.kind, slot: entry.slot, loose: container.loose, head };
    this.stable += starts[line] - base;
    this.tail = [{ source: null, nodes: [], slot: entry.slot, items: entry.items.slice(at) }];
  }

  #showBlock(tokens, block, text, before, open) {
    const source = text(block);
    if (before && before.source === source) return before;
    const entry = { source, items: null };
    const container = containerOf(tokens, block);
    if (container && (open || before?.shell === container.shell(text))) {
      Object.assign(entry, { nodes: before?.nodes ?? [], slot: open?.slot ?? before.slot, shell: before?.shell });
      this.#syncItems(entry, before?.items ?? [], tokens, container, text);
      return entry;
    }
    if (!this.#appendCode(entry, before, tokens[block.first])) this.#build(entry, tokens, block, container, text);
    if (before) replaceNodes(before.nodes, entry.nodes, this.root);
    else this.root.append(...entry.nodes);
    return entry;
  }

  // Items that have not changed stay as they are.
  #syncItems(entry, old, tokens, container, text) {
    entry.items = container.items.map((item, i) => {
      const key = (container.loose ? "loose" : "tight") + text(item), known = old[i];
      if (known?.key === key) return known;
      const node = this.builder.build(tokens, item.first, item.end, document.createElement("div")).firstChild;
      if (known) {
        known.node.before(node);
        known.node.remove();
      } else entry.slot.append(node);
      return { key, node };
    });
    for (const { node } of old.slice(entry.items.length)) node.remove();
    if (container.kind === "table_open") markLong(entry.slot.parentNode);
  }

  #build(entry, tokens, block, container, text) {
    const holder = document.createElement("div");
    if (container) {
      this.builder.build(tokens, block.first, container.items[0].first, holder);
      entry.slot = holder;
      while (entry.slot.lastChild) entry.slot = entry.slot.lastChild;
      if (container.kind === "table_open") entry.slot = holder.firstChild.firstChild.lastChild;
      entry.shell = container.shell(text);
      this.#syncItems(entry, [], tokens, container, text);
    } else this.builder.build(tokens, block.first, block.end, holder);
    entry.nodes = [...holder.childNodes];
    const { type, content, info } = tokens[block.first];
    const code = type === "fence" && this.builder.options.code && entry.nodes[0].querySelector("code");
    if (code) entry.code = { text: content, info, node: code };
  }

  // Code that only grew is appended to.
  #appendCode(entry, before, { type, content, info }) {
    const code = before?.code;
    if (type !== "fence" || !code || code.info !== info || !content.startsWith(code.text)) return false;
    code.node.append(content.slice(code.text.length));
    this.builder.options.code(code.node, content, this.builder.options.unescape(info).trim().split(/\s+/)[0]);
    Object.assign(entry, { nodes: before.nodes, code: { ...code, text: content } });
    return true;
  }

  // A long text at once: empty parts of the expected height. What is within blocks is parsed when a part comes near the screen.
  #showLong() {
    const { text, parser } = this, env = { references: {} }, tokens = [];
    this.root.replaceChildren();
    const source = text.replace(/\r\n?|\n/g, "\n").replace(/\0/g, "\uFFFD");
    parser.block.parse(source, parser, env, tokens);
    const blocks = blocksOf(tokens), starts = lineStarts(source);
    for (let first = 0; first < blocks.length;) {
      let end = first, size = 0;
      for (; end < blocks.length && size < partSize; end++) size += (starts[blocks[end].map[1]] ?? source.length) - starts[blocks[end].map[0]];
      const part = document.createElement("div"), inner = tokens.slice(blocks[first].first, blocks[end - 1].end);
      part.className = "part";
      part.style.minHeight = Math.round(size / 3.2) + "px";
      this.root.append(part);
      this.observe(part, () => {
        const state = new parser.core.State(source, parser, env);
        state.tokens = inner;
        for (const rule of parser.core.ruler.getRules("").slice(2)) rule(state); // without normalize and block
        part.style.minHeight = "";
        this.builder.build(state.tokens, 0, state.tokens.length, part);
      });
      first = end;
    }
    Object.assign(this, { tail: [], open: null, references: env.references, shown: JSON.stringify(env.references), stable: text.length });
  }
}

function lineStarts(source) {
  const starts = [0];
  for (let at = source.indexOf("\n"); at >= 0; at = source.indexOf("\n", at + 1)) starts.push(at + 1);
  return starts;
}

function replaceNodes(old, nodes, root) {
  const anchor = old[0];
  if (anchor === nodes[0]) return;
  if (!anchor) {
    root.append(...nodes);
    return;
  }
  anchor.before(...nodes);
  old.forEach((node) => node.remove());
}
