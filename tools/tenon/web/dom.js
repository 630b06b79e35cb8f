// Small helpers for nodes of the document: elements, icons, the clipboard, messages for screen readers.
import { number, t } from "./i18n.js";

export const $ = (id) => document.getElementById(id);

// An element with properties and children: element("p", { className: "dim" }, "text", node, …). Properties that begin with
// "aria" or "data-" and `role` become attributes.
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (/^(aria|data)-|^(role|for|list)$/.test(name)) node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// Strokes of icons on a grid of 24.
const icons = {
  attach: "M20 11.5l-8.2 8.2a5 5 0 0 1-7.1-7.1l8.6-8.6a3.3 3.3 0 0 1 4.7 4.7l-8.5 8.5a1.7 1.7 0 0 1-2.4-2.4l7.8-7.8",
  check: "M5 12.5l4.5 4.5L19 7.5", close: "M6 6l12 12M18 6L6 18", copy: "M9 9h10v11H9zM5 15V4h10",
  down: "M6 9.5l6 6 6-6", download: "M12 4v11M7.5 11L12 15.5 16.5 11M5 20h14", edit: "M4 20l1-4.5L16.5 4l3.5 3.5L8.5 19z",
  settings: "M4 7h9M19 7h1M4 17h1M11 17h9M16 4.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5zM8 14.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5z",
  left: "M14.5 6l-6 6 6 6", right: "M9.5 6l6 6-6 6", menu: "M4 7h16M4 12h16M4 17h16", more: "M5.5 10.9a1.1 1.1 0 1 0 0 2.2 1.1 1.1 0 0 0 0-2.2zM12 10.9a1.1 1.1 0 1 0 0 2.2 1.1 1.1 0 0 0 0-2.2zM18.5 10.9a1.1 1.1 0 1 0 0 2.2 1.1 1.1 0 0 0 0-2.2z",
  plus: "M12 5v14M5 12h14", minus: "M5 12h14", play: "M8 5.5v13l10-6.5z", refresh: "M19.5 12a7.5 7.5 0 1 1-2.2-5.3M19.5 4v4.5H15",
  search: "M11 5a6 6 0 1 0 0 12 6 6 0 0 0 0-12zM15.5 15.5L20 20", send: "M12 20V5M6 11l6-6 6 6", stop: "M7 7h10v10H7z",
  theme: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16zM12 4v16M14.5 5v14M17 6.5v11", trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13", upload: "M12 16V5M7.5 9.5L12 5l4.5 4.5M5 20h14",
};
export function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg"), path = document.createElementNS(space, "path");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", icons[name]);
  svg.append(path);
  return svg;
}

export function iconButton(name, label, action, properties = {}) {
  const button = element("button", { type: "button", className: "quiet", title: label, "aria-label": label, ...properties }, icon(name));
  button.addEventListener("click", action);
  return button;
}

// The clipboard needs a secure context; elsewhere the old command still works.
export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = element("textarea", { value: text, className: "offscreen" });
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  announce(t("copied"));
  const old = [...button.childNodes];
  button.replaceChildren(icon("check"), ...(old.length > 1 ? [element("span", {}, t("copied"))] : []));
  setTimeout(() => button.replaceChildren(...old), 1500);
}

export function announce(text) {
  $("announce").textContent = text;
}

// A message at the top with an optional action; it goes by itself, but not while it is pointed at or has the focus.
export function toast(text, label, action, seconds = 10) {
  const node = element("div", { className: "toast" }, element("span", {}, text));
  const remove = () => node.remove();
  if (label) {
    const button = element("button", { type: "button", className: "action" }, label);
    button.addEventListener("click", () => { remove(); action(); });
    node.append(button);
  }
  node.append(iconButton("close", t("close"), remove));
  $("toasts").append(node);
  const later = () => setTimeout(() => (node.matches(":hover, :focus-within") ? later() : remove()), seconds * 1000);
  later();
  return node;
}

export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

export function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; bytes >= 1024 && i < units.length - 1; i++) bytes /= 1024;
  return `${number(bytes, bytes >= 100 || i === 0 ? 0 : bytes >= 10 ? 1 : 2)} ${units[i]}`;
}
