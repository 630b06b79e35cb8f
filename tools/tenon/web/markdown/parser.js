// Markdown to tokens: markdown-it with tables, strikethrough, bare links, task lists, math and a few HTML tags that
// answers contain. Other HTML stays text.
import MarkdownIt from "../vendor/markdown-it.js";

// ---- Math: $…$, \(…\) within a line; $$…$$, \[…\] as a block or within text ----

const fences = [["$$", "$$"], ["\\[", "\\]"]];

function mathBlock(state, startLine, endLine, silent) {
  const start = state.bMarks[startLine] + state.tShift[startLine];
  if (state.sCount[startLine] - state.blkIndent >= 4) return false;
  const fence = fences.find(([open]) => state.src.startsWith(open, start));
  if (!fence) return false;
  const [open, close] = fence;
  const first = state.src.slice(start + open.length, state.eMarks[startLine]);
  const sameLine = first.indexOf(close);
  if (sameLine >= 0 && first.slice(sameLine + close.length).trim()) return false; // text follows: math within a paragraph
  let line = startLine, content = first, closed = sameLine >= 0;
  if (closed) content = first.slice(0, sameLine);
  while (!closed && ++line < endLine) {
    if (state.sCount[line] < state.blkIndent && state.bMarks[line] + state.tShift[line] < state.eMarks[line]) break; // the container ends
    const text = state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]);
    const end = text.indexOf(close);
    closed = end >= 0 && !text.slice(end + close.length).trim();
    content += "\n" + (closed ? text.slice(0, end) : text);
  }
  if (!closed && line < endLine) return false;
  if (silent) return true;
  const token = state.push("math_block", "math", 0);
  token.content = content.trim();
  token.block = true;
  token.meta = { open: !closed };
  state.line = Math.min(endLine, line + 1);
  token.map = [startLine, state.line];
  return true;
}

function mathInline(state, silent) {
  const { src, pos, posMax } = state;
  let open, close;
  if (src.startsWith("\\(", pos)) [open, close] = ["\\(", "\\)"];
  else if (src.startsWith("\\[", pos)) [open, close] = ["\\[", "\\]"];
  else if (src.startsWith("$$", pos)) [open, close] = ["$$", "$$"];
  else if (src[pos] === "$") [open, close] = ["$", "$"];
  else return false;
  let end = pos + open.length;
  for (;;) {
    end = src.indexOf(close, end);
    if (end < 0 || end >= posMax) return false;
    if (close[0] === "$" && src[end - 1] === "\\") end += 1; // an escaped dollar is part of the formula
    else break;
  }
  const content = src.slice(pos + open.length, end);
  if (!content.trim()) return false;
  // A price is not a formula: no space inside the dollars, no digit after them.
  if (open === "$" && (/^\s|\s$|\n/.test(content) || /\d/.test(src[end + 1] ?? ""))) return false;
  if (!silent) {
    const token = state.push("math_inline", "math", 0);
    token.content = content.trim();
    token.meta = { display: open === "$$" || open === "\\[" };
  }
  state.pos = end + close.length;
  return true;
}

// ---- Tags without attributes that mean something in answers ----

const pairs = new Set(["sub", "sup", "kbd", "mark", "u", "b", "i", "small"]);

function tags(state, silent) {
  const { src, pos, posMax } = state;
  if (src[pos] !== "<") return false;
  const match = /^<(br)\s*\/?>|^<([a-z]+)>/i.exec(src.slice(pos, pos + 12));
  if (!match) return false;
  if (match[1]) {
    if (!silent) state.push("hardbreak", "br", 0);
    state.pos = pos + match[0].length;
    return true;
  }
  const tag = match[2].toLowerCase(), start = pos + match[0].length;
  if (!pairs.has(tag)) return false;
  const end = src.toLowerCase().indexOf(`</${tag}>`, start);
  if (end < 0 || end >= posMax) return false;
  if (!silent) {
    state.push("tag_open", tag, 1);
    state.pos = start;
    state.posMax = end;
    state.md.inline.tokenize(state);
    state.posMax = posMax;
    state.push("tag_close", tag, -1);
  }
  state.pos = end + tag.length + 3;
  return true;
}

// ---- <details><summary>Title</summary> text </details>: text that can be opened ----

const lineAt = (state, line) => state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]);

function pushInline(state, name, tag, content, line) {
  state.push(name + "_open", tag, 1);
  Object.assign(state.push("inline", "", 0), { content, map: [line, line + 1], children: [] });
  state.push(name + "_close", tag, -1);
}

function detailsBlock(state, startLine, endLine, silent) {
  if (state.src[state.bMarks[startLine] + state.tShift[startLine]] !== "<" || state.sCount[startLine] - state.blkIndent >= 4) return false;
  const head = /^<details(?: open)?>\s*(?:<summary>(.*?)<\/summary>)?/i.exec(lineAt(state, startLine));
  if (!head) return false;
  if (silent) return true;
  let line = startLine, depth = 0, end = endLine;
  for (; line < endLine; line++) {
    if (line > startLine && !state.isEmpty(line) && state.sCount[line] < state.blkIndent) end = line; // the list around it ends
    if (line === end) break;
    const text = lineAt(state, line);
    depth += (text.match(/<details(?: open)?>/gi)?.length ?? 0) - (text.match(/<\/details>/gi)?.length ?? 0);
    if (depth <= 0) break;
  }
  const closed = line < end, last = closed ? line : end - 1, saved = [startLine, startLine + 1, last].map((i) => [i, state.bMarks[i], state.tShift[i], state.sCount[i], state.eMarks[i]]);
  let title = head[1], first = startLine, from = head[0].length;
  if (title === undefined && from === lineAt(state, startLine).length && startLine < last) { // the title may have its own line
    first = startLine + 1;
    const next = /^<summary>(.*?)<\/summary>/i.exec(lineAt(state, first));
    [title, from] = [next?.[1], next?.[0].length ?? 0];
  }
  let rest = ""; // what follows on the last line becomes the end of the text
  if (closed) {
    const text = lineAt(state, last), at = text.toLowerCase().lastIndexOf("</details>");
    rest = text.slice(at + "</details>".length).trim();
    state.eMarks[last] = state.bMarks[last] + state.tShift[last] + at;
  }
  if (from) {
    state.bMarks[first] += state.tShift[first] + from;
    state.tShift[first] = 0;
    state.sCount[first] = state.blkIndent;
  }
  const { parentType, lineMax } = state;
  Object.assign(state, { parentType: "details", lineMax: last + 1 });
  const token = state.push("details_open", "details", 1);
  token.map = [startLine, last + 1];
  if (!closed) token.attrs = [["open", ""]]; // what is being written, or was never closed, hides nothing
  if (title !== undefined) pushInline(state, "summary", "summary", title.trim(), startLine);
  state.md.block.tokenize(state, first, last + 1);
  if (rest) pushInline(state, "paragraph", "p", rest, last);
  state.push("details_close", "details", -1);
  Object.assign(state, { parentType, lineMax, line: last + 1 });
  for (const [i, ...marks] of saved) [state.bMarks[i], state.tShift[i], state.sCount[i], state.eMarks[i]] = marks;
  return true;
}

// ---- Task lists ----

function taskLists(state) {
  const { tokens } = state;
  for (let i = 2; i < tokens.length; i++) {
    if (tokens[i].type !== "inline" || tokens[i - 1].type !== "paragraph_open" || tokens[i - 2].type !== "list_item_open") continue;
    const first = tokens[i].children[0], match = first?.type === "text" && /^\[([ xX])\](?:\s|$)/.exec(first.content);
    if (!match) continue;
    first.content = first.content.slice(match[0].length);
    const box = new state.Token("task_box", "input", 0);
    box.meta = { checked: match[1] !== " " };
    tokens[i].children.unshift(box);
    tokens[i - 2].attrJoin("class", "task");
  }
}

// The rest of an address that begins with "www.": what may follow "//".
function wwwLength(text, pos, { re }) {
  const rest = re.get_relative_proto_validator();
  rest.lastIndex = pos;
  return rest.exec(text)?.[0].length ?? 0;
}

export function makeParser(options = {}) {
  const md = new MarkdownIt({ html: false, linkify: true, breaks: true, maxNesting: 60, ...options });
  md.linkify.set({ fuzzyLink: false }); // "file.py" is no link
  md.linkify.add("www.", { validate: wwwLength, normalize: (match) => { match.url = "http://" + match.url; } });
  md.block.ruler.before("fence", "math_block", mathBlock, { alt: ["paragraph", "reference", "blockquote", "list"] });
  md.block.ruler.before("fence", "details", detailsBlock, { alt: ["paragraph", "reference", "blockquote", "list"] });
  md.inline.ruler.before("escape", "math_inline", mathInline);
  md.inline.ruler.push("tags", tags);
  md.core.ruler.after("inline", "tasks", taskLists);
  return md;
}
