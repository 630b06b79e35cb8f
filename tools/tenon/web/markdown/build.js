// Tokens of Markdown to nodes of the document. Text only ever becomes text nodes, so that no answer can bring markup,
// scripts or styles into the document.
import { t } from "../i18n.js";
import { element, icon, copyText } from "../dom.js";

const attributes = new Set(["href", "title", "start", "class", "open"]);
const aligned = { "text-align:left": "left", "text-align:center": "centre", "text-align:right": "right" };

// The text of a block decides its direction, with its marks: the side of bullets, numbers and bars, the order of columns. Blocks within lists and
// quotes are part of that text (a "dir" of their own would exclude them); their lines follow their own words, see chat.css.
const directed = new Set(["p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "blockquote"]);

// Long tables have columns of equal width: measuring all cells whenever a row is added would take too long.
export function markLong(table) {
  if (table?.lastChild?.childNodes.length >= 100) table.classList?.add("long");
}

// Top-level blocks of a list of tokens: [first, one past the last).
export function blocksOf(tokens) {
  const blocks = [];
  for (let i = 0, start = 0, depth = 0; i < tokens.length; i++) {
    depth += tokens[i].nesting;
    if (depth > 0) continue;
    blocks.push({ first: start, end: i + 1, map: tokens[start].map });
    start = i + 1;
  }
  return blocks;
}

// options: headings (added to the level of headings), code(element, text, language, closed), math(element, source, display)
export class Builder {
  constructor(options = {}) {
    this.options = options;
  }

  build(tokens, first, end, target) {
    const stack = [target];
    for (let i = first; i < end; i++) {
      const token = tokens[i], top = stack.at(-1);
      if (token.hidden) continue;
      if (token.type === "inline") {
        this.build(token.children, 0, token.children.length, top);
      } else if (token.nesting > 0) {
        const node = this.#open(token, top);
        (node.tagName === "TABLE" ? this.#scrolling(top) : top).append(node);
        stack.push(node);
      } else if (token.nesting < 0) {
        if (token.tag === "table") markLong(top);
        if (token.tag === "thead" && top.firstChild?.childNodes.length > 5) stack.at(-2).classList?.add("many"); // columns; :has() would look again at every row
        if (stack.length > 1) stack.pop();
      } else {
        top.append(this.#leaf(token));
      }
    }
    return target;
  }

  // Wide tables scroll by themselves.
  #scrolling(parent) {
    const box = element("div", { className: "wide", tabIndex: 0, dir: "auto" });
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", t("table"));
    parent.append(box);
    return box;
  }

  #open(token, within) {
    const level = /^h([1-6])$/.exec(token.tag);
    const node = document.createElement(level ? "h" + Math.min(6, Number(level[1]) + (this.options.headings ?? 0)) : token.tag);
    for (const [name, value] of token.attrs ?? []) {
      if (name === "style" && aligned[value]) node.className = aligned[value];
      else if (attributes.has(name)) node.setAttribute(name, value);
    }
    if (token.tag === "a") {
      node.setAttribute("target", "_blank");
      node.setAttribute("rel", "noopener noreferrer");
    }
    if (directed.has(token.tag) && !(within && /^(LI|BLOCKQUOTE)$/.test(within.tagName))) node.setAttribute("dir", "auto");
    return node;
  }

  #leaf(token) {
    switch (token.type) {
    case "text":
    case "text_special": return document.createTextNode(token.content);
    case "softbreak":
    case "hardbreak": return document.createElement("br");
    case "hr": return document.createElement("hr");
    case "code_inline": {
      const code = document.createElement("code");
      code.textContent = token.content;
      return code;
    }
    case "fence":
    case "code_block": return this.#code(token);
    case "image": return this.#image(token);
    case "task_box": return this.#taskBox(token);
    case "math_inline":
    case "math_block": return this.#math(token);
    default: return document.createTextNode(token.content);
    }
  }

  #code(token) {
    const language = token.info ? this.options.unescape(token.info).trim().split(/\s+/)[0] : "";
    const code = document.createElement("code"), pre = document.createElement("pre");
    code.textContent = token.content;
    if (language) code.className = "language-" + language;
    pre.append(code);
    if (!this.options.code) return pre;
    const copy = element("button", { type: "button", className: "quiet", title: t("copyCode") }, icon("copy"), element("span", {}, t("copy")));
    copy.addEventListener("click", () => copyText(code.textContent, copy));
    pre.tabIndex = 0;
    const box = element("div", { className: "code" }, element("div", { className: "code-head" }, element("span", {}, language || t("code")), copy), pre);
    this.options.code(code, token.content, language, true);
    return box;
  }

  // Pictures of other servers are not loaded: the request would say who reads what.
  #image(token) {
    const link = document.createElement("a");
    const source = token.attrGet("src") ?? "";
    link.setAttribute("href", source);
    link.setAttribute("target", "_blank");
    link.setAttribute("rel", "noopener noreferrer");
    link.className = "picture";
    link.textContent = token.content || source;
    return link;
  }

  #taskBox(token) {
    const box = document.createElement("input");
    box.setAttribute("type", "checkbox");
    box.setAttribute("disabled", "");
    box.setAttribute("aria-label", t(token.meta.checked ? "taskDone" : "taskOpen"));
    if (token.meta.checked) box.setAttribute("checked", "");
    return box;
  }

  #math(token) {
    const display = token.type === "math_block" || token.meta.display;
    const node = document.createElement(token.type === "math_block" ? "div" : "span");
    node.className = display ? "math display" : "math";
    node.textContent = token.content;
    this.options.math?.(node, token.content, display);
    return node;
  }
}
