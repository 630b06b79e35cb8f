// Colours of code and typeset math. Both libraries are loaded when an answer first needs them.
let highlighter = null, katex = null;

const maxHighlighted = 100000; // characters; longer code stays plain
const atOnce = 4000;           // shorter code is coloured while it grows
const pending = new Map();     // code elements that wait until they have stopped growing

async function loadHighlighter() {
  highlighter ??= import("../vendor/highlight.js").then((module) => module.default);
  return highlighter;
}

// highlight.js gives a tree of scopes and texts; text stays text.
function appendScopes(parent, node) {
  for (const child of node.children) {
    if (typeof child === "string") {
      parent.append(child);
      continue;
    }
    const span = document.createElement("span");
    if (child.scope) span.className = child.scope.replace(/^language:.*/, "sub").split(".").map((name, i) => (i ? name + "_" : "hljs-" + name)).join(" ");
    appendScopes(span, child);
    parent.append(span);
  }
}

async function highlight(code, language) {
  const library = await loadHighlighter(), text = code.textContent;
  if (!library.getLanguage(language) || text.length > maxHighlighted) return;
  const result = library.highlight(text, { language, ignoreIllegals: true });
  if (code.textContent !== text) return; // it grew meanwhile and will be asked for again
  const fragment = document.createDocumentFragment();
  appendScopes(fragment, result._emitter.rootNode);
  code.replaceChildren(fragment);
}

// For MarkdownView: called when code is built and whenever it has grown.
export function colourCode(code, text, language) {
  if (!language || language === "text" || language === "plaintext") return;
  clearTimeout(pending.get(code));
  if (text.length <= atOnce) {
    pending.delete(code);
    highlight(code, language);
  } else {
    pending.set(code, setTimeout(() => { pending.delete(code); highlight(code, language); }, 400));
  }
}

async function loadMath() {
  katex ??= (async () => {
    const link = document.createElement("link");
    link.rel = "stylesheet";
    link.href = "vendor/katex.css";
    document.head.append(link);
    return (await import("../vendor/katex.js")).default;
  })();
  return katex;
}

const typeset = new Map(); // the last formulas, which are asked for again whenever their block grows

// Formulas that are wrong or unfinished stay as they were written.
export async function typesetMath(node, source, display) {
  const library = await loadMath(), key = display + source;
  if (!typeset.has(key)) {
    const target = document.createElement("span");
    try {
      library.render(source, target, { displayMode: display, throwOnError: true, strict: "ignore", trust: false, maxExpand: 300, maxSize: 20 });
    } catch {
      target.replaceChildren();
    }
    if (typeset.size > 200) typeset.delete(typeset.keys().next().value);
    typeset.set(key, target);
  }
  const copy = typeset.get(key).cloneNode(true);
  if (copy.childNodes.length) node.replaceChildren(...copy.childNodes);
  else {
    node.textContent = display ? `$$${source}$$` : `$${source}$`;
    node.classList.add("raw");
  }
}
