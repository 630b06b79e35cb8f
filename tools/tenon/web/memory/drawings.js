// Pictures of the KV cache: who owns its cells, and the tree of what is kept. Drawn on canvases in the pixels of the screen, in
// the colours of the theme.
import { number, t } from "../i18n.js";

const slotColours = ["#4178a8", "#c8742f", "#4f9350", "#a8527c", "#7c62b0", "#a4803a", "#3d9795", "#b5524a"];
export const slotColour = (i) => slotColours[i % slotColours.length];

export function colours() {
  const style = getComputedStyle(document.documentElement), get = (name) => style.getPropertyValue("--" + name).trim();
  return { front: get("front"), dim: get("dim"), line: get("line"), panel: get("panel"), accent: get("accent"), back: get("back"), bad: get("bad"), kept: "#8d8a83", shared: get("front") };
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

function ownerName(owner, slots) {
  return owner < 0 ? t("freeCells") : owner < slots ? t("slotN", { i: owner }) : t("keptConversation");
}

// One square per page where cells are too many to show, else per cell. A page is filled from below by its owners' cells.
export function drawCells(canvas, { cells, pages, slots }, onHover) {
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
      context.fillStyle = owner < slots.length ? slotColour(owner) : colour.kept;
      context.fillRect(x, y + box - filled - height, box, height);
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

// One row per slot or kept conversation, tokens to the right. A row begins where it leaves the one that it shares cells with.
export function drawTree(canvas, tree, slots, onHover) {
  const rows = treeRows(tree).slice(0, 60), row = 18;
  const { context, width, colour } = colours.prepare(canvas, Math.max(1, rows.length) * row);
  const longest = Math.max(1, ...tree.map((entry) => entry.tokens)), x = (tokens) => 1 + (width - 2) * tokens / longest;
  const at = new Map(rows.map(({ index }, i) => [index, i]));
  context.font = "11px system-ui, sans-serif";
  rows.forEach((entry, i) => {
    const y = i * row + 3, left = x(entry.shared), right = x(entry.tokens);
    if (entry.parent >= 0 && at.has(entry.parent)) {
      context.strokeStyle = colour.dim;
      context.beginPath();
      context.moveTo(left + .5, at.get(entry.parent) * row + row / 2);
      context.lineTo(left + .5, y + row / 2);
      context.stroke();
    }
    context.fillStyle = entry.id < slots ? slotColour(entry.id) : colour.kept;
    context.fillRect(left, y, Math.max(3, right - left), row - 6);
    const label = entry.id < slots ? t("slotN", { i: entry.id }) : "";
    if (label && right - left > context.measureText(label).width + 8) {
      context.fillStyle = "#fff";
      context.fillText(label, left + 4, y + row - 9);
    }
  });
  canvas.onpointerleave = () => onHover("");
  canvas.onpointermove = ({ offsetY }) => {
    const entry = rows[Math.floor(offsetY / row)];
    onHover(entry ? t("treeHover", { name: entry.id < slots ? t("slotN", { i: entry.id }) : t("keptConversation"), tokens: number(entry.tokens), shared: number(entry.shared), cells: number(entry.cells) }) : "");
  };
}
