// One message on the screen: text, reasoning, tool calls, notices and actions.
import { copyText, element, icon, iconButton } from "./dom.js";
import { language, number, t } from "./i18n.js";
import { isRunning, versionsOf } from "./tree.js";
import { runOf } from "./answer.js";
import { fields } from "./settings.js";
import { server } from "./server.js";

let markdown = null; // { makeView }: the parser is loaded with the first message
export async function loadMarkdown() {
  markdown ??= (async () => {
    const [{ makeParser }, { MarkdownView }, { colourCode, typesetMath }] =
      await Promise.all([import("./markdown/parser.js"), import("./markdown/view.js"), import("./markdown/extras.js")]);
    const parser = makeParser();
    return (root, observe) => new MarkdownView(root, parser, { headings: 2, code: colourCode, math: typesetMath, observe });
  })();
  return markdown;
}

// Builds what a scroll brings near the screen.
const waiting = new Map();
const nearScreen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) if (isIntersecting) buildNow(target);
}, { rootMargin: "1200px" });
export function observe(node, build) {
  waiting.set(node, build);
  nearScreen.observe(node);
}
export function buildNow(node) {
  const build = waiting.get(node);
  if (!build) return;
  waiting.delete(node);
  nearScreen.unobserve(node);
  build();
}
export function forgetWaiting() {
  for (const node of waiting.keys()) nearScreen.unobserve(node);
  waiting.clear();
}

export function expectedHeight(message) {
  const characters = message.content.length + (message.attachments?.length ?? 0) * 60;
  return Math.round(90 + characters / 3.2);
}

export class MessageView {
  // actions: edit, answer, go, select (versions); messages: the conversation's
  constructor(message, messages, makeView, actions) {
    Object.assign(this, { message, messages, makeView, actions });
    this.node = element("article", { className: "message " + message.role, "data-id": message.id });
    this.node.setAttribute("aria-label", this.#name());
    this.built = false;
  }

  #name() {
    return this.message.role === "user" ? t("you") : this.message.model || t("model");
  }

  build() {
    if (this.built) return;
    this.built = true;
    this.node.style.minHeight = "";
    const user = this.message.role === "user";
    this.parts = {
      head: element("h2", { className: "who" }, this.#name()),
      files: element("div", { className: "chips" }),
      thought: null,
      text: element("div", { className: "text" }),
      calls: element("div", { className: "calls" }),
      notice: element("div", { className: "notices" }),
      foot: element("footer", {}),
    };
    const { head, files, text, calls, notice, foot } = this.parts;
    this.node.append(head, files, text, calls, notice, foot);
    for (const file of this.message.attachments ?? []) files.append(this.#file(file));
    this.view = this.makeView(text, observe);
    if (user) text.setAttribute("dir", "auto");
    this.update();
    const edited = this.actions.edited(this.message);
    if (edited !== undefined) this.edit(edited);
  }

  #file({ name, text, tokens }) {
    const box = element("details", { className: "file" }, element("summary", {}, icon("attach"), `${name}${tokens ? ` · ${t("tokens", { n: number(tokens) })}` : ""}`));
    box.addEventListener("toggle", () => box.open && box.childElementCount === 1 && box.append(element("pre", { tabIndex: 0 }, text)));
    return box;
  }

  // Shows the message as it is now.
  update() {
    if (!this.built) return;
    const { message, parts } = this, running = isRunning(message);
    this.node.classList.toggle("running", running);
    this.node.setAttribute("aria-busy", running);
    this.#thought();
    this.view.update(message.content, !running);
    this.#calls();
    const key = [message.state, message.error?.text, JSON.stringify(runOf(message.id)?.progress ?? 0), !!message.content, !!message.reasoning,
      this.node.classList.contains("forgotten"), running || versionsOf(this.messages, message).list.length, message.stats?.total].join();
    if (key === this.shownKey) return;
    this.shownKey = key;
    parts.notice.replaceChildren(...this.#notices());
    parts.foot.replaceChildren(...(running ? [] : this.#foot()));
  }

  #thought() {
    const { message, parts } = this;
    if (!message.reasoning) return;
    if (!parts.thought) {
      const body = element("div", { className: "thought-text" }), summary = element("summary", {});
      parts.thought = element("details", { className: "thought" }, summary, body);
      parts.text.before(parts.thought);
      this.thoughtView = this.makeView(body, observe);
      this.thoughtView.body = body;
      parts.thought.addEventListener("toggle", () => this.#thought());
    }
    const thinking = isRunning(message) && !message.content;
    parts.thought.classList.toggle("live", thinking);
    parts.thought.querySelector("summary").textContent = thinking ? t("thinking") : t("reasoning", { n: number(message.reasoning.trim().split(/\s+/).length) });
    if (parts.thought.open) this.thoughtView.update(message.reasoning, !thinking);
  }

  #calls() {
    const { message, parts } = this, text = JSON.stringify(message.calls ?? []);
    if (text === this.shownCalls) return;
    this.shownCalls = text;
    parts.calls.replaceChildren(...(message.calls ?? []).filter(Boolean).map((call) => {
      let body = call.arguments;
      try {
        body = JSON.stringify(JSON.parse(call.arguments), null, 2);
      } catch { /* not complete yet */ }
      return element("details", { className: "call", open: true }, element("summary", {}, t("toolCall", { name: call.name })), element("pre", { tabIndex: 0 }, body));
    }));
  }

  #notices() {
    const { message, actions } = this, notices = [];
    const notice = (text, kind, ...buttons) => notices.push(element("p", { className: "notice " + kind }, element("span", {}, text), ...buttons));
    const button = (label, action) => {
      const node = element("button", { type: "button" }, label);
      node.addEventListener("click", action);
      return node;
    };
    const goOn = () => button(t("continue"), () => actions.go(message)), retry = () => button(t("tryAgain"), () => actions.answer(message));
    if (this.node.classList.contains("forgotten")) notice(t("forgotten"), "quiet");
    switch (message.state) {
    case "running": {
      const progress = runOf(message.id)?.progress;
      if (message.content || message.reasoning) break;
      if (progress?.total) {
        const bar = element("progress", { max: progress.total, value: progress.done, "aria-label": t("prefill") });
        notices.push(element("p", { className: "notice progress" }, bar, element("span", {}, t("prefillOf", { done: number(progress.done), total: number(progress.total) }))));
      } else notices.push(element("p", { className: "notice progress" }, element("span", { className: "dots" }, t("waiting"))));
      break;
    }
    case "cut": notice(message.stats && message.stats.total >= server.context && server.context ? t("contextFull") : t("limitReached", { n: number(message.stats?.tokens ?? 0) }), "warn", goOn()); break;
    case "stopped": notice(t("stopped"), "quiet", goOn()); break;
    case "interrupted": notice(message.error ? t("interruptedBy", { why: message.error.text }) : t("interrupted"), "warn", goOn(), retry()); break;
    case "failed": notice(message.error?.cut ? t("unreachable", { why: message.error.text }) : message.error?.text ?? t("failed"), "error", ...this.#remedies(), retry()); break;
    default:
    }
    if (message.note) notice(message.note, "quiet");
    return notices;
  }

  #remedies() {
    const { error } = this.message, link = (label, field) => {
      const node = element("button", { type: "button" }, label);
      node.addEventListener("click", () => this.actions.settings(field));
      return node;
    };
    if (error?.status === 401) return [link(t("enterKey"), "key")];
    if (error?.type === "invalid_schema" || /^(grammar|schema):/.test(error?.text)) return [link(t("openFormat"), "format-text")];
    const field = error?.status === 400 && fields.find(({ name }) => error.text.startsWith(name + " "));
    return field ? [link(t("openSetting", { name: t("name_" + field.name) }), "field-" + field.name)] : [];
  }

  #foot() {
    const { message, messages, actions } = this, { list, index } = versionsOf(messages, message), nodes = [];
    if (list.length > 1) {
      nodes.push(element("span", { className: "versions" },
        iconButton("left", t("olderVersion"), () => actions.select(list[index - 1]), { disabled: index === 0 }),
        element("span", { "aria-label": t("versionOf", { i: index + 1, n: list.length }), role: "img" }, `${index + 1}/${list.length}`),
        iconButton("right", t("newerVersion"), () => actions.select(list[index + 1]), { disabled: index === list.length - 1 })));
    }
    const copy = iconButton("copy", t("copyMessage"), () => copyText(message.content, copy));
    if (message.content) nodes.push(copy);
    if (message.role === "user") nodes.push(iconButton("edit", t("edit"), () => this.edit(), { "data-action": "edit" }), iconButton("refresh", t("answerAgain"), () => actions.answer(message)));
    else {
      nodes.push(iconButton("refresh", t("regenerate"), () => actions.answer(message)));
      if (message.content || message.reasoning) nodes.push(iconButton("play", t("continueFrom"), () => actions.go(message)));
      nodes.push(iconButton("edit", t("editAnswer"), () => this.edit(), { "data-action": "edit" }));
    }
    nodes.push(iconButton("trash", t("deleteMessage"), () => actions.remove(message)));
    if (message.stats) nodes.push(statisticsNode(message));
    return nodes;
  }

  // Editing makes a new version; the old one stays. `edited` is a text of before a reload.
  edit(edited) {
    const { message, parts, actions } = this;
    const field = element("textarea", { value: edited ?? message.content, rows: Math.min(20, message.content.split("\n").length + 1), "aria-label": t("editMessage"), dir: "auto" });
    const save = element("button", { type: "submit", className: "main" }, t(message.role === "user" ? "sendEdit" : "saveEdit")), cancel = element("button", { type: "button" }, t("cancel"));
    const form = element("form", { className: "edit" }, field, element("div", { className: "row" }, save, cancel, element("span", { className: "dim" }, t("editKeeps"))));
    const close = () => {
      form.replaceWith(parts.text);
      parts.foot.hidden = false;
      actions.keepEdit(message, undefined);
      parts.foot.querySelector(`[data-action="edit"]`)?.focus();
    };
    field.addEventListener("input", () => actions.keepEdit(message, field.value));
    cancel.addEventListener("click", close);
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (field.value.trim() && field.value !== message.content) actions.edit(message, field.value); // it stays until that is done
      else close();
    });
    parts.text.replaceWith(form);
    parts.foot.hidden = true;
    if (edited === undefined) field.focus();
  }
}

// What an answer took: tokens and speed, and the rest when it is opened.
function statisticsNode({ stats: { tokens, rate, promptRate, cached, prompt, drafted, accepted }, created }) {
  const rows = [[t("statTime"), new Date(created).toLocaleString(language(), { dateStyle: "medium", timeStyle: "short" })], [t("statPrompt"), t("tokens", { n: number(prompt) })]];
  if (cached) rows.push([t("statCached"), t("cachedOf", { n: number(cached), total: number(prompt) })]);
  if (promptRate) rows.push([t("prefill"), t("perSecond", { n: number(promptRate) })]);
  if (rate) rows.push([t("statDecode"), t("perSecond", { n: number(rate, 1) })]);
  if (drafted) rows.push([t("statDrafts"), t("draftsAccepted", { n: number(accepted), total: number(drafted) })]);
  const summary = [t("tokens", { n: number(tokens) }), rate && t("perSecond", { n: number(rate, 1) })].filter(Boolean).join(" · ");
  return element("details", { className: "stats" }, element("summary", {}, summary),
    element("dl", {}, ...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])));
}
