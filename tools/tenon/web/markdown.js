// Markdown of messages: headings, lists, code and bold. Everything is built from DOM nodes, so that text never becomes
// markup.
"use strict";

// An element with properties and children: element("p", { className: "dim" }, "text", node, …).
function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

// Appends one line's text with `code` and **bold** parts.
function appendInline(parent, text) {
  for (const part of text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/)) {
    if (/^`.+`$/.test(part)) parent.append(element("code", {}, part.slice(1, -1)));
    else if (/^\*\*.+\*\*$/.test(part)) parent.append(element("strong", {}, part.slice(2, -2)));
    else parent.append(part);
  }
}

// Appends paragraphs, headings and lists, which are separated by empty lines.
function appendBlocks(parent, text) {
  const marker = /^\s*([-*]|\d+\.) /;
  for (const block of text.split(/\n{2,}/)) {
    if (!block.trim()) continue;
    const lines = block.split("\n");
    const heading = /^(#{1,4}) (.*)$/.exec(lines[0]);
    let node;
    if (heading && lines.length === 1) {
      node = element("h" + Math.min(6, heading[1].length + 2));
      appendInline(node, heading[2]);
    } else if (lines.every((line) => marker.test(line))) {
      node = element(/^\s*\d/.test(lines[0]) ? "ol" : "ul");
      for (const line of lines) {
        const item = element("li");
        appendInline(item, line.replace(marker, ""));
        node.append(item);
      }
    } else {
      node = element("p");
      appendInline(node, block);
    }
    parent.append(node);
  }
}

// Replaces the content of `parent`. Every second part between lines of ``` is code.
function showMarkdown(parent, text) {
  parent.replaceChildren();
  text.split(/^```.*\n?/m).forEach((part, i) => {
    if (i % 2 === 0) appendBlocks(parent, part);
    else parent.append(element("pre", {}, element("code", {}, part.replace(/\n$/, ""))));
  });
}
