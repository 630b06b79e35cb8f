// Pictures of the KV cache: who owns its cells, and the tree of what is kept. Drawn on canvases in the pixels of the screen, in
// the colours of the theme.
import { number, t } from "../i18n.js";

const slotColours = ["#4178a8", "#c8742f", "#4f9350", "#a8527c", "#7c62b0", "#a4803a", "#3d9795", "#b5524a"];
export const slotColour = (i) => slotColours[i % slotColours.length];
const keptColours = ["#8d8a83", "#a39a6b", "#7394a0", "#a2808f", "#86986f", "#7f7fa6"]; // paler than those of slots
export const ownerColour = (owner, slots) => (owner < slots ? slotColour(owner) : keptColours[(owner - slots) % keptColours.length]);

export function colours() {
  const style = getComputedStyle(document.documentElement), get = (name) => style.getPropertyValue("--" + name).trim();
  return { front: get("front"), dim: get("dim"), line: get("line"), panel: get("panel"), accent: get("accent"), back: get("back"), bad: get("bad") };
}
colours.kinds = ["#4178a8", "#c8742f", "#4f9350", "#a8527c", "#7c62b0"];
// A canvas as wide as its element, cleared, measured in CSS pixels.
colours.prepare = (canvas, height) => {
  const ratio = globalThis.devicePixelRatio || 1, width = Math.max(50, canvas.clientWidth || 600);
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = height + "px";
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height, colour: colours() };
};

export function ownerName(owner, slots) {
  return owner < 0 ? t("freeCells") : owner < slots ? t("slotN", { i: owner }) : t("keptN", { i: owner - slots });
}

// One square per page where cells are too many to show, else per cell. A page is filled from below by its owners' cells. `pointed` is an owner
// whose cells stand out.
export function drawCells(canvas, { cells, pages, slots }, pointed, onHover) {
  const { total, runs } = cells, perUnit = total <= 8192 ? 1 : Math.max(pages.cells, Math.ceil(total / 8192));
  const units = Math.ceil(total / perUnit), width = Math.max(50, canvas.clientWidth || 600);
  const side = Math.max(4, Math.min(14, Math.floor(Math.sqrt(width * 180 / Math.max(1, units)))));
  const columns = Math.max(1, Math.floor(width / side)), rows = Math.ceil(units / columns);
  const { context, colour } = colours.prepare(canvas, rows * side);
  const owners = []; // of each unit: owner → cells
  let cell = 0;
  for (const [owner, count] of runs) {
    for (let left = count; left > 0;) {
      const unit = Math.floor(cell / perUnit), part = Math.min(left, (unit + 1) * perUnit - cell);
      (owners[unit] ??= new Map()).set(owner, (owners[unit]?.get(owner) ?? 0) + part);
      cell += part;
      left -= part;
    }
  }
  for (let unit = 0; unit < units; unit++) {
    const x = unit % columns * side, y = Math.floor(unit / columns) * side, box = side - 1;
    context.fillStyle = colour.line;
    context.fillRect(x, y, box, box);
    let filled = 0;
    for (const [owner, count] of owners[unit] ?? []) {
      if (owner < 0) continue;
      const height = perUnit === 1 ? box : Math.max(1, Math.round(box * count / perUnit));
      context.fillStyle = ownerColour(owner, slots.length);
      context.globalAlpha = pointed === null || pointed === owner ? 1 : .25;
      context.fillRect(x, y + box - filled - height, box, height);
      context.globalAlpha = 1;
      filled += height;
    }
  }
  canvas.onpointerleave = () => onHover("");
  canvas.onpointermove = ({ offsetX, offsetY }) => {
    const unit = Math.floor(offsetY / side) * columns + Math.floor(offsetX / side), first = unit * perUnit;
    const names = [...(owners[unit] ?? [])].map(([owner, count]) => `${ownerName(owner, slots.length)}${perUnit > 1 ? ` (${count})` : ""}`).join(", ");
    onHover(names && offsetX < columns * side ? t("cellHover", { cell: number(first), page: number(Math.floor(first / pages.cells)), owner: names }) : "");
  };
}

// Entries in the order of a tree: each after the one that it branches off.
export function treeRows(tree) {
  const rows = [], below = new Map();
  tree.forEach((entry, i) => below.set(entry.parent, [...(below.get(entry.parent) ?? []), i]));
  const stack = [...(below.get(-1) ?? [])].reverse();
  const seen = new Set();
  while (stack.length) {
    const i = stack.pop();
    if (seen.has(i)) continue;
    seen.add(i);
    rows.push({ ...tree[i], index: i });
    stack.push(...[...(below.get(i) ?? [])].reverse());
  }
  return rows;
}

const treeShown = 60; // rows

// One row per slot or kept conversation, tokens to the right, with a scale below. A row begins where it leaves the one that it shares cells with.
export function drawTree(canvas, tree, slots, onHover) {
  const all = treeRows(tree), rows = all.slice(0, treeShown), row = 20, foot = 20;
  const { context, width, colour } = colours.prepare(canvas, Math.max(1, rows.length + (all.length > rows.length)) * row + foot);
  const longest = Math.max(1, ...tree.map((entry) => entry.tokens)), names = Math.min(110, width / 3), end = width - 52;
  const x = (tokens) => names + (end - names) * tokens / longest, at = new Map(rows.map(({ index }, i) => [index, i]));
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  const step = niceStep(longest / 6);
  context.strokeStyle = colour.line;
  context.fillStyle = colour.dim;
  context.textAlign = "center";
  for (let tokens = 0; rows.length && tokens <= longest; tokens += step) {
    context.beginPath();
    context.moveTo(Math.round(x(tokens)) + .5, 0);
    context.lineTo(Math.round(x(tokens)) + .5, rows.length * row);
    context.stroke();
    context.fillText(number(tokens), x(tokens), canvas.clientHeight - foot / 2);
  }
  context.textAlign = "start";
  rows.forEach((entry, i) => {
    const y = i * row, middle = y + row / 2, left = x(entry.shared), right = x(entry.tokens);
    if (entry.parent >= 0 && at.has(entry.parent)) {
      context.strokeStyle = colour.dim;
      context.beginPath();
      context.moveTo(left + .5, at.get(entry.parent) * row + row / 2);
      context.lineTo(left + .5, middle);
      context.stroke();
    }
    context.fillStyle = colour.front;
    context.fillText(ownerName(entry.id, slots), 2, middle, names - 8);
    context.fillStyle = ownerColour(entry.id, slots);
    context.fillRect(left, y + 3, Math.max(3, right - left), row - 6);
    context.fillStyle = colour.dim;
    context.fillText(number(entry.tokens), right + 6, middle);
  });
  if (all.length > rows.length) context.fillText(t("treeMore", { n: number(all.length - rows.length) }), 2, rows.length * row + row / 2);
  const hover = (entry) => onHover(entry ? t("treeHover", { name: ownerName(entry.id, slots), tokens: number(entry.tokens), shared: number(entry.shared), cells: number(entry.cells) }) : "", entry?.id ?? null);
  canvas.onpointerleave = () => hover();
  canvas.onpointermove = ({ offsetY }) => hover(rows[Math.floor(offsetY / row)]);
}

export function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, rough)));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= rough) ?? 1;
}
