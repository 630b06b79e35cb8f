// The memory plan of the largest graph: every tensor is a box, operations run to the right, addresses upwards. Wheel and
// buttons zoom, dragging moves, the pointer names what is below it; arrow keys and + and - do the same.
import { bytesText, element, iconButton } from "../dom.js";
import { number, t } from "../i18n.js";
import { getJSON } from "../server.js";
import { colours, niceStep } from "./drawings.js";
import { swatch } from "./view.js";

const palette = ["#4178a8", "#c8742f", "#4f9350", "#a8527c", "#7c62b0", "#a4803a", "#3d9795", "#b5524a", "#6d7f2f", "#5b6a8c", "#c05c9a", "#2f7a5b", "#8a5a3c", "#5d8fc9"];
const otherColour = "#8d8a83";
const height = 380, margin = { left: 70, bottom: 22, top: 6, right: 6 };

// Tensors of every layer have one colour: their name without the number.
const groupOf = (name) => name.replace(/[.@\d]+/g, " ").trim() || name;

export class PlanView {
  constructor() {
    this.canvas = element("canvas", { tabIndex: 0, role: "img", className: "plan", "aria-label": t("plan") });
    this.text = element("p", { className: "dim", role: "status" });
    this.hover = element("p", { className: "dim hover", role: "status" }, "\u00a0");
    this.key = element("div", { className: "key" });
    const tools = element("div", { className: "row" }, iconButton("plus", t("zoomIn"), () => this.zoom(1.6)), iconButton("minus", t("zoomOut"), () => this.zoom(1 / 1.6)), this.#button(t("zoomAll"), () => this.#all()));
    this.node = element("div", {}, this.text, this.canvas, this.hover, element("div", { className: "plan-foot" }, tools, this.key));
    this.#events();
  }

  #button(label, action) {
    const button = element("button", { type: "button", className: "quiet" }, label);
    button.addEventListener("click", action);
    return button;
  }

  // Shows where the tensors of a group are, until it is chosen again.
  #groupButton({ name, colour }) {
    const button = element("button", { type: "button", className: "quiet", "aria-pressed": "false", title: t("planGroup") }, swatch(colour, name ?? t("otherTensors")));
    button.addEventListener("click", () => {
      this.group = this.group === colour ? null : colour;
      for (const other of this.key.children) other.setAttribute("aria-pressed", other === button && this.group !== null);
      this.draw();
    });
    return button;
  }

  forget() {
    this.plan = null;
    this.asked = false;
  }

  async load() {
    if (this.asked) return;
    this.asked = true;
    try {
      this.plan = prepare(await getJSON("plan.json"));
      const { memory } = this.plan, gap = memory.lower_bound ? 100 * (memory.size / memory.lower_bound - 1) : 0;
      this.text.textContent = t("planText", { device: memory.name, size: bytesText(memory.size), gap: number(gap, 2), steps: number(this.plan.steps), tensors: number(this.plan.boxes.length) });
      this.group = null;
      this.key.replaceChildren(...this.plan.groups.map((group) => this.#groupButton(group)));
      this.canvas.setAttribute("aria-label", this.text.textContent);
      this.#all();
    } catch (error) {
      this.text.textContent = error.message;
    }
  }

  #all() {
    if (!this.plan) return;
    this.view = { x0: 0, x1: this.plan.steps, y0: 0, y1: this.plan.memory.size * 1.02 };
    this.draw();
  }

  zoom(factor, cx = 0.5, cy = 0.5) {
    if (!this.plan) return;
    const { view } = this, w = (view.x1 - view.x0) / factor, h = (view.y1 - view.y0) / factor;
    const x = view.x0 + (view.x1 - view.x0) * cx, y = view.y0 + (view.y1 - view.y0) * cy;
    this.#look(x - w * cx, y - h * cy, w, h);
  }

  // Never leaves the plan.
  #look(x0, y0, w, h) {
    const { steps, memory } = this.plan, top = memory.size * 1.02;
    w = Math.min(steps, Math.max(2, w));
    h = Math.min(top, Math.max(64, h));
    x0 = Math.max(0, Math.min(steps - w, x0));
    y0 = Math.max(0, Math.min(top - h, y0));
    this.view = { x0, x1: x0 + w, y0, y1: y0 + h };
    this.draw();
  }

  #move(dx, dy) {
    const { x0, x1, y0, y1 } = this.view;
    this.#look(x0 + dx * (x1 - x0), y0 + dy * (y1 - y0), x1 - x0, y1 - y0);
  }

  draw() {
    if (!this.plan || !this.canvas.clientWidth) return;
    const { context, width, colour } = colours.prepare(this.canvas, height), { view, plan } = this;
    const w = width - margin.left - margin.right, h = height - margin.top - margin.bottom;
    const sx = w / (view.x1 - view.x0), sy = h / (view.y1 - view.y0);
    const x = (step) => margin.left + (step - view.x0) * sx, y = (byte) => margin.top + h - (byte - view.y0) * sy;
    this.scale = { w, h };
    this.#grid(context, colour, width, x, y);
    context.save();
    context.beginPath();
    context.rect(margin.left, margin.top, w, h);
    context.clip();
    context.font = "11px system-ui, sans-serif";
    for (const box of plan.boxes) {
      const left = x(box.first), right = x(box.last + 1), top = y(box.offset + box.size), bottom = y(box.offset);
      if (right < margin.left || left > width || bottom < 0 || top > height) continue;
      const bw = Math.max(.7, right - left - .5), bh = Math.max(.7, bottom - top - .5);
      context.fillStyle = box.colour;
      context.globalAlpha = this.group && box.colour !== this.group ? .15 : 1;
      context.fillRect(left, top, bw, bh);
      if (box === this.pointed) {
        context.strokeStyle = colour.front;
        context.lineWidth = 2;
        context.strokeRect(left, top, bw, bh);
      }
      context.globalAlpha = 1;
      if (bw > 4) { // neighbours of one colour stay apart
        context.fillStyle = colour.back;
        context.fillRect(left, top, .6, bh);
      }
      const from = Math.max(left, margin.left), to = Math.min(right, width);
      if (bh > 15 && to - from > context.measureText(box.name).width + 8) {
        context.fillStyle = "#fff";
        context.fillText(box.name, from + 4, (Math.max(top, 0) + Math.min(bottom, margin.top + h)) / 2 + 4);
      }
    }
    this.#bound(context, colour, width, y(plan.memory.lower_bound));
    context.restore();
  }

  #grid(context, colour, width, x, y) {
    const { view } = this;
    context.font = "11px system-ui, sans-serif";
    context.lineWidth = 1;
    context.strokeStyle = colour.line;
    context.fillStyle = colour.dim;
    context.textAlign = "right";
    const step = 2 ** Math.ceil(Math.log2(Math.max(64, (view.y1 - view.y0) / 6)));
    for (let byte = Math.ceil(view.y0 / step) * step; byte <= view.y1; byte += step) {
      context.beginPath();
      context.moveTo(margin.left, y(byte) + .5);
      context.lineTo(width, y(byte) + .5);
      context.stroke();
      context.fillText(bytesText(byte), margin.left - 6, y(byte) + 4);
    }
    context.textAlign = "center";
    const every = niceStep((view.x1 - view.x0) / 8);
    for (let at = Math.ceil(view.x0 / every) * every; at < view.x1; at += every) context.fillText(number(at), Math.min(width - 12, x(at)), height - 6);
    context.textAlign = "left";
  }

  #bound(context, colour, width, y) {
    context.strokeStyle = colour.bad;
    context.setLineDash([6, 4]);
    context.beginPath();
    context.moveTo(margin.left, y);
    context.lineTo(width, y);
    context.stroke();
    context.setLineDash([]);
  }

  #boxAt(px, py) {
    const { view, scale, plan } = this;
    const step = view.x0 + (px - margin.left) / scale.w * (view.x1 - view.x0), byte = view.y0 + (margin.top + scale.h - py) / scale.h * (view.y1 - view.y0);
    return plan.boxes.findLast((box) => step >= box.first && step < box.last + 1 && byte >= box.offset && byte < box.offset + box.size);
  }

  #point(box) {
    if (box === this.pointed) return;
    this.pointed = box;
    this.hover.textContent = box ? t("tensorText", { name: box.name, size: bytesText(box.size), offset: bytesText(box.offset), first: number(box.first), last: number(box.last), kind: box.kind }) : "\u00a0";
    this.draw();
  }

  // The next box in the order of operations that the view shows.
  #pointNext(step) {
    const { view, plan } = this, shown = plan.boxes.filter((box) => box.first < view.x1 && box.last >= view.x0 && box.offset < view.y1 && box.offset + box.size > view.y0)
      .sort((a, b) => a.first - b.first || a.offset - b.offset);
    const at = shown.indexOf(this.pointed);
    this.#point(shown.at(at < 0 ? (step < 0 ? -1 : 0) : (at + step) % shown.length));
  }

  #events() {
    const { canvas } = this;
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => { drag = { x: event.offsetX, y: event.offsetY }; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", () => { drag = null; });
    canvas.addEventListener("pointerleave", () => this.plan && this.#point(null));
    canvas.addEventListener("pointermove", (event) => {
      if (!this.plan || !this.scale) return;
      if (drag) {
        this.#move((drag.x - event.offsetX) / this.scale.w, (event.offsetY - drag.y) / this.scale.h);
        drag = { x: event.offsetX, y: event.offsetY };
      } else this.#point(this.#boxAt(event.offsetX, event.offsetY));
    });
    canvas.addEventListener("wheel", (event) => {
      if (!this.plan || !(event.ctrlKey || document.activeElement === canvas)) return; // else the view scrolls
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 1.25 : 0.8, (event.offsetX - margin.left) / this.scale.w, 1 - (event.offsetY - margin.top) / this.scale.h);
    }, { passive: false });
    const keys = { ArrowLeft: [-.2, 0], ArrowRight: [.2, 0], ArrowUp: [0, .2], ArrowDown: [0, -.2] };
    canvas.addEventListener("keydown", (event) => {
      if (!this.plan) return;
      if (keys[event.key]) this.#move(...keys[event.key]);
      else if (event.key === "+" || event.key === "=") this.zoom(1.6);
      else if (event.key === "-") this.zoom(1 / 1.6);
      else if (event.key === "0") this.#all();
      else if (event.key === "Enter") this.#pointNext(event.shiftKey ? -1 : 1);
      else return;
      event.preventDefault();
    });
  }
}

// Boxes with addresses across chunks, in the colours of the groups that take most bytes.
export function prepare({ memories, tensors }) {
  const memory = memories[0], bases = [];
  memory.chunks.reduce((sum, size, i) => { bases[i] = sum; return sum + size; }, 0);
  const sums = new Map();
  for (const { name, size, first, last } of tensors) sums.set(groupOf(name), (sums.get(groupOf(name)) ?? 0) + size * (last - first + 1));
  const names = [...sums].sort((a, b) => b[1] - a[1]).map(([name]) => name);
  const groups = names.slice(0, palette.length).map((name, i) => ({ name, colour: palette[i] }));
  const colourOf = new Map(groups.map(({ name, colour }) => [name, colour]));
  const boxes = tensors.map((tensor) => ({ ...tensor, offset: tensor.offset + (bases[tensor.chunk] ?? 0), colour: colourOf.get(groupOf(tensor.name)) ?? otherColour }));
  if (names.length > groups.length) groups.push({ name: null, colour: otherColour });
  return { memory, boxes, groups, steps: Math.max(1, ...boxes.map(({ last }) => last + 1)) };
}
