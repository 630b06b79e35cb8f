// As much of a document as the Markdown of the web UI needs, for tests without a browser.
class Text {
  constructor(data) { this.data = data; this.parent = null; }
  get textContent() { return this.data; }
  get html() { return this.data.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;"); }
  remove() { detach(this); }
  before(...nodes) { insertBefore(this, nodes); }
}
function detach(node) {
  if (node.parent) node.parent.childNodes.splice(node.parent.childNodes.indexOf(node), 1);
  node.parent = null;
}
const asNode = (value) => (typeof value === "string" ? new Text(value) : value);
function insertBefore(anchor, nodes) {
  for (const node of nodes.map(asNode)) {
    detach(node);
    const list = anchor.parent.childNodes;
    list.splice(list.indexOf(anchor), 0, node);
    node.parent = anchor.parent;
  }
}
const empty = new Set(["br", "hr", "input"]);
class Element {
  constructor(tag) {
    Object.assign(this, { tag, tagName: tag.toUpperCase(), attributes: new Map(), childNodes: [], parent: null, style: {} });
  }
  get firstChild() { return this.childNodes[0] ?? null; }
  get lastChild() { return this.childNodes.at(-1) ?? null; }
  append(...nodes) {
    for (const node of nodes.map(asNode)) {
      detach(node);
      this.childNodes.push(node);
      node.parent = this;
    }
  }
  replaceChildren(...nodes) {
    for (const node of [...this.childNodes]) detach(node);
    this.append(...nodes);
  }
  remove() { detach(this); }
  before(...nodes) { insertBefore(this, nodes); }
  setAttribute(name, value) { this.attributes.set(name, String(value)); }
  set className(value) { this.setAttribute("class", value); }
  get className() { return this.attributes.get("class") ?? ""; }
  set textContent(value) { this.replaceChildren(...(value ? [String(value)] : [])); }
  get textContent() { return this.childNodes.map((node) => node.textContent).join(""); }
  get inner() { return this.childNodes.map((node) => node.html).join(""); }
  get html() {
    const attributes = [...this.attributes].map(([name, value]) => ` ${name}="${new Text(value).html}"`).join("");
    return empty.has(this.tag) ? `<${this.tag}${attributes}>` : `<${this.tag}${attributes}>${this.inner}</${this.tag}>`;
  }
}
export const fakeDocument = { createElement: (tag) => new Element(tag), createTextNode: (data) => new Text(data) };
