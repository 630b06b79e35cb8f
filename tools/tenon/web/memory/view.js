// The memory view: devices and tiers, cells and pages by conversation, the prefix tree, the plan, speed, and "will it fit?".
// It asks the server twice a second while it is shown.
import { $, bytesText, element } from "../dom.js";
import { number, percent, t } from "../i18n.js";
import { getJSON, server } from "../server.js";
import { slotColour, ownerColour, colours, drawCells, drawTree } from "./drawings.js";
import { PlanView } from "./plan.js";
import { fitForm, frontierPanel, predictSpeed } from "./forms.js";

let pointed = null; // the owner of cells whose row of the tree is pointed at
let parts = null, timer = 0, last = null, shown = false, plan = null, now = null;
let sizes = null;
const rates = []; // tokens per second of the last minute

export function show(visible) {
  shown = visible;
  clearInterval(timer);
  if (!visible) return;
  if (!parts) build();
  timer = setInterval(refresh, 500);
  refresh();
}
export function redraw() {
  if (!parts) return;
  plan.draw();
  if (now) draw();
}
// In another language.
export function rebuild() {
  if (!parts) return;
  parts = null;
  if (shown) show(true);
}
export function modelChanged() {
  last = now = null;
  rates.length = 0;
  if (!parts) return;
  showLive();
  plan.forget();
  parts.predicted = null;
  parts.fit.reset();
  parts.frontier.reset();
  if (shown) show(true);
}

function section(title, ...children) {
  return element("section", { className: "card" }, element("h2", {}, title), ...children);
}

function build() {
  const canvas = (label, height) => element("canvas", { height, role: "img", "aria-label": label });
  parts = {
    speed: element("div", { className: "figures" }),
    rates: canvas(t("rateHistory"), 90),
    predicted: null, prediction: element("p", { className: "dim" }),
    problem: element("p", { className: "notice error", role: "alert", hidden: true }),
    devices: element("div", {}), tiers: element("div", {}),
    cells: canvas(t("cellMap"), 120), cellsText: element("p", { className: "dim" }), hover: element("p", { className: "dim hover" }, "\u00a0"),
    key: element("div", { className: "key" }),
    tree: canvas(t("prefixTree"), 40), treeText: element("p", { className: "dim" }), treeEmpty: element("p", {}, t("treeEmpty")), treeHover: element("p", { className: "dim hover" }, "\u00a0"),
    fit: fitForm(), frontier: frontierPanel(),
  };
  plan = new PlanView();
  parts.fitCard = section(t("willItFit"), parts.fit.node);
  $("memory").replaceChildren(
    parts.problem,
    section(t("speed"), parts.speed, parts.rates, parts.prediction),
    section(t("devices"), parts.devices, parts.tiers),
    section(t("kvCache"), parts.cellsText, parts.cells, parts.hover, parts.key),
    section(t("prefixTree"), element("p", { className: "dim" }, t("prefixTreeHelp")), parts.treeEmpty, parts.tree, parts.treeHover, parts.treeText),
    section(t("plan"), element("p", { className: "dim" }, t("planHelp")), plan.node),
    parts.fitCard,
    section(t("compare"), element("p", { className: "dim" }, t("compareHelp")), parts.frontier.node));
  showLive();
  sizes ??= new ResizeObserver(redraw);
  sizes.observe($("memory"));
}

// What is about a running model is shown where there is one.
function showLive() {
  for (const card of $("memory").querySelectorAll(".card")) card.hidden = !now && card !== parts.fitCard;
}

async function refresh() {
  if (!shown || document.hidden) return;
  try {
    now = await getJSON("memory");
    parts.problem.hidden = true;
    showLive();
    plan.load();
    parts.predicted ??= predictSpeed(showPrediction);
    measureRate();
    draw();
  } catch (error) {
    parts.problem.hidden = false;
    parts.problem.textContent = error.status === 401 ? t("needsKey") + " " : error.status ? error.message : t("unreachable", { why: error.message });
    if (error.status === 401) {
      const button = element("button", { type: "button" }, t("enterKey"));
      button.addEventListener("click", async () => (await import("../settings_dialog.js")).openSettings("key"));
      parts.problem.append(button);
    } else if (error.status && !now && !server.isLoaded) {
      const button = element("button", { type: "button" }, t("loadNow"));
      button.addEventListener("click", () => $("load").click());
      parts.problem.append(" ", button);
    }
  }
}

function measureRate() {
  const time = performance.now();
  if (last && now.generated_tokens >= last.tokens) rates.push((now.generated_tokens - last.tokens) / (time - last.time) * 1000);
  if (rates.length > 120) rates.shift();
  last = { tokens: now.generated_tokens, time };
}

function draw() {
  const { slots, prefixes, pages, cells } = now, busy = slots.filter((slot) => slot.busy).length;
  const figure = (value, label) => element("div", {}, element("strong", {}, value), element("span", { className: "dim" }, label));
  parts.speed.replaceChildren(
    figure(number(rates.at(-1) ?? 0, 1), t("tokensPerSecond")), ...(parts.speedOfPlan ? [figure(number(parts.speedOfPlan, 1), t("predictedDecode"))] : []), figure(`${busy}/${slots.length}`, t("slotsBusy")), figure(number(now.waiting), t("requestsWaiting")),
    figure(prefixes.asked ? percent(prefixes.taken / prefixes.asked) : "–", t("tokensReused")),
    ...(now.moved_aside ? [figure(number(now.moved_aside), t("movedAside"))] : []), ...(now.context_shifts ? [figure(number(now.context_shifts), t("contextShifts"))] : []));
  drawRates();
  parts.devices.replaceChildren(...now.devices.map(deviceNode));
  parts.tiers.replaceChildren(...tierNodes(now.tiers));
  parts.cellsText.textContent = t("cellsUsed", { used: number(cells.used), total: number(cells.total), peak: number(cells.peak), pages: number(pages.total - pages.free), allPages: number(pages.total), n: pages.cells });
  const pointAtCells = (text) => { parts.hover.textContent = text || "\u00a0"; };
  drawCells(parts.cells, now, pointed, pointAtCells);
  parts.key.replaceChildren(...slots.map((slot, i) => swatch(slotColour(i), slotText(slot, i))),
    ...(prefixes.limit ? [swatch(ownerColour(slots.length, slots.length), t("keptPages", { n: number(pages.prefixes) }))] : []), element("span", { className: "dim" }, t("sharedPages", { n: number(pages.shared) })));
  drawTree(parts.tree, prefixes.tree, slots.length, (text, owner) => {
    parts.treeHover.textContent = text || "\u00a0";
    if (owner === pointed) return;
    pointed = owner;
    drawCells(parts.cells, now, pointed, pointAtCells);
  });
  parts.treeEmpty.hidden = !(parts.tree.hidden = parts.treeHover.hidden = prefixes.tree.length === 0);
  parts.treeText.textContent = prefixes.limit ? t("prefixText", { kept: number(prefixes.kept), cells: number(prefixes.cells), hits: number(prefixes.hits), misses: number(prefixes.misses), evicted: number(prefixes.evicted) }) : t("noPrefixes");
}

function drawRates() {
  const { context, width, height, colour } = colours.prepare(parts.rates, 90), foot = 16;
  const top = Math.max(10, parts.speedOfPlan ?? 0, ...rates), step = width / 119, atRate = (rate) => height - foot - rate / top * (height - foot - 14);
  context.strokeStyle = colour.line;
  context.strokeRect(.5, 12.5, width - 1, height - foot - 12);
  if (parts.speedOfPlan) {
    const y = atRate(parts.speedOfPlan);
    context.strokeStyle = colour.dim;
    context.setLineDash([6, 4]);
    context.beginPath();
    context.moveTo(0, y);
    context.lineTo(width, y);
    context.stroke();
    context.setLineDash([]);
  }
  context.beginPath();
  rates.forEach((rate, i) => context[i ? "lineTo" : "moveTo"]((120 - rates.length + i) * step, atRate(rate)));
  context.strokeStyle = colour.accent;
  context.lineWidth = 2;
  context.stroke();
  context.fillStyle = colour.dim;
  context.font = "11px system-ui, sans-serif";
  context.fillText(t("perSecond", { n: number(top) }), 1, 9);
  context.fillText(t("minuteAgo"), 1, height - 4);
  context.textAlign = "right";
  context.fillText(t("now"), width - 1, height - 4);
  context.textAlign = "left";
}

function showPrediction(predicted) {
  parts.speedOfPlan = predicted?.decode;
  parts.prediction.textContent = predicted ? t("predictedAgainst", { decode: number(predicted.decode, 1), prefill: number(predicted.prefill, 0) }) : t("notMeasured");
}

function slotText(slot, i) {
  const state = slot.moved_aside ? t("slotAside") : slot.busy ? t("slotBusy") : t("slotIdle");
  return t("slotText", { i, state, cells: number(slot.cells), pages: number(slot.pages) });
}

export function swatch(colour, text) {
  const mark = element("i");
  mark.style.background = colour;
  return element("span", {}, mark, text);
}

// A bar of a memory: parts with colours and names, out of a total.
export function memoryBar(values, total, label) {
  const bar = element("div", { className: "bar", role: "img", "aria-label": label });
  for (const [name, bytes, colour] of values) {
    if (!bytes) continue;
    const span = element("span", { title: `${name}: ${bytesText(bytes)}` });
    span.style.width = (100 * bytes / Math.max(1, total)) + "%";
    span.style.background = colour;
    bar.append(span);
  }
  return bar;
}

function deviceNode(device) {
  const colour = colours.kinds;
  const values = [[t("weights"), device.weights + device.adapters, colour[0]], [t("cache"), device.cache, colour[1]], [t("computeMemory"), device.compute, colour[2]],
    [t("scratch"), device.scratch, colour[3]], [t("hostTier"), device.tier, colour[4]]];
  const text = t("deviceText", { name: device.name, used: bytesText(device.used), planned: bytesText(device.planned), free: bytesText(device.free), total: bytesText(device.total), layers: device.layers });
  const scale = Math.max(device.planned, device.used);
  return element("div", { className: "device" }, element("p", {}, text), memoryBar(values, scale, text),
    element("div", { className: "key" }, ...values.filter(([, bytes]) => bytes).map(([name, bytes, shade]) => swatch(shade, `${name} ${bytesText(bytes)}`)),
      ...(device.mapped ? [element("span", { className: "dim" }, t("mappedText", { n: bytesText(device.mapped) }))] : [])));
}

function tierNodes({ host, disk, dropped }) {
  const tier = (name, { limit, bytes, blocks, tokens_taken: taken }) => (limit ? [element("div", { className: "device" },
    element("p", {}, t("tierText", { name, blocks: number(blocks), bytes: bytesText(bytes), limit: bytesText(limit), taken: number(taken) })), memoryBar([[name, bytes, colours.kinds[4]]], limit, name))] : []);
  const nodes = [...tier(t("hostTier"), host), ...tier(t("diskTier"), disk)];
  if (nodes.length && dropped) nodes.push(element("p", { className: "dim" }, t("dropped", { n: number(dropped) })));
  return nodes;
}
