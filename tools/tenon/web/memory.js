// The memory view: devices, cells and pages of the KV cache, slots, the prefix tree and the memory plan, updated twice a
// second while visible.
"use strict";
const partColours = { weights: "#4878a8", mapped: "#a9bfd6", cache: "#cf8e3f", compute: "#6a9a5b", scratch: "#9a6aa0", tier: "#5b9a97" };
const slotColour = (i) => `hsl(${(i * 137 + 205) % 360} 55% 52%)`;
const prefixColour = "#8a8f98", sharedColour = "#b5544d";
const bytesText = (n) => n >= 2 ** 30 ? (n / 2 ** 30).toFixed(2) + " GiB" : (n / 2 ** 20).toFixed(1) + " MiB";
const modelQuery = () => $("model").value ? "?model=" + encodeURIComponent($("model").value) : "";
let lastSample = null; // { tokens, time } of the last update, for the speed
let drawnPlan = null;  // query of the plan on the screen

// Colours are set through the style object: the content security policy forbids style attributes in markup.
function swatch(colour, text) {
  const mark = element("i");
  mark.style.background = colour;
  return element("span", {}, mark, text);
}

function deviceNode(device, _index, devices) {
  const whole = Math.max(1, device.used + device.mapped), first = devices[device.domain.first];
  const room = first === device ? `free ${bytesText(device.free)} of ${bytesText(device.total)}` :
    `draws from the same memory as ${first.name}`;
  const title = element("div", {}, `${device.name}: planned ${bytesText(device.planned)}, used ${bytesText(device.used)}, ` +
    `${room}, ${device.layers} layers`);
  const bar = element("div", { className: "bar" }), key = element("div", { className: "key" });
  for (const [part, colour] of Object.entries(partColours)) {
    const span = element("span");
    span.style.background = colour;
    span.style.width = (100 * device[part] / whole) + "%";
    bar.append(span);
    key.append(swatch(colour, `${part} ${bytesText(device[part])}`));
  }
  return element("div", {}, title, bar, key);
}

// One square per cell, in the colour of the slot that owns it. `runs` are [owner, count]; owner -1 is a free cell, one
// beyond the slots a kept prefix.
function drawCells({ total, runs }, slots) {
  const canvas = $("cells"), context = canvas.getContext("2d");
  const side = Math.max(1, Math.floor(Math.sqrt(canvas.width * 192 / Math.max(1, total))));
  const columns = Math.floor(canvas.width / side), drawn = Math.max(1, side - 1);
  canvas.height = Math.ceil(total / columns) * side;
  context.clearRect(0, 0, canvas.width, canvas.height);
  let cell = 0;
  for (const [owner, count] of runs) {
    context.fillStyle = owner < 0 ? "#8883" : owner < slots ? slotColour(owner) : prefixColour;
    for (const end = cell + count; cell < end; cell++)
      context.fillRect((cell % columns) * side, Math.floor(cell / columns) * side, drawn, drawn);
  }
}

// Pages by owner: a bar with a part for each slot, for pages of several slots, and for kept prefixes.
function drawPages({ total, free, shared, prefixes, cells }, slots) {
  const parts = slots.map((slot, i) => [slotColour(i), slot.pages]);
  parts.push([sharedColour, shared], [prefixColour, prefixes]);
  $("pages").replaceChildren(...parts.map(([colour, n]) => {
    const span = element("span");
    span.style.background = colour;
    span.style.width = (100 * n / Math.max(1, total)) + "%";
    return span;
  }));
  $("pages-text").textContent = `${total - free} of ${total} pages in use, ${cells} cells each, on the device`;
}

function prefixText({ kept, cells, asked, taken, evicted, hits, misses }) {
  const share = asked ? Math.round(100 * taken / asked) : 0;
  return `${kept} kept conversations hold ${cells} cells that no slot uses. ${hits} prompts began with cached tokens, ` +
    `${misses} did not; ${share}% of prompt tokens were reused. ${evicted} conversations made room for others.`;
}

// What the tiers below the device hold; blocks are of up to 32 tokens.
function tierText({ host, disk, dropped }) {
  const tier = (name, { limit, bytes, blocks, tokens_taken }) => limit ?
    `${name}: ${blocks} blocks, ${bytesText(bytes)} of ${bytesText(limit)}, ${tokens_taken} tokens came back. ` : "";
  const text = tier("Host memory", host) + tier("Disk", disk);
  return text && dropped ? text + `${dropped} blocks had no room in any tier.` : text;
}

function slotText(slot, i) {
  const state = slot.moved_aside ? "moved aside" : slot.busy ? "generating" : "idle";
  return `slot ${i}: ${state}, ${slot.cells} cells, ${slot.pages} pages`;
}

const svgNode = (name, attributes, ...children) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
};

// Entries in the order of a tree: each after the one that it branches off.
function treeRows(tree) {
  const rows = [], add = (parent) => tree.forEach((entry, i) => {
    if (entry.parent !== parent) return;
    rows.push({ ...entry, index: i });
    add(i);
  });
  add(-1);
  return rows;
}

// One row per slot or kept prefix, tokens to the right. A row begins where it leaves the one that it shares cells with.
function drawTree(tree, slots) {
  const height = 12, width = 1000, rows = treeRows(tree);
  const longest = Math.max(1, ...tree.map((entry) => entry.tokens)), x = (tokens) => width * tokens / longest;
  const rowOf = new Map(rows.map((row, i) => [row.index, i]));
  const picture = svgNode("svg", { viewBox: `0 0 ${width} ${Math.max(1, rows.length) * height}` });
  rows.forEach((row, i) => {
    const slot = row.id < slots, name = slot ? `slot ${row.id}` : "kept conversation";
    const text = `${name}: ${row.tokens} tokens, ${row.shared} in common with the row it leaves, ${row.cells} cells of its own`;
    if (row.parent >= 0)
      picture.append(svgNode("line", { x1: x(row.shared), x2: x(row.shared), y1: (rowOf.get(row.parent) + 0.5) * height,
        y2: (i + 0.5) * height, class: "branch" }));
    picture.append(svgNode("rect", { x: x(row.shared), y: i * height + 2, width: Math.max(2, x(row.tokens - row.shared)),
      height: height - 4, rx: 2, fill: slot ? slotColour(row.id) : prefixColour },
    svgNode("title", {}, text)));
  });
  $("tree").replaceChildren(...(rows.length ? [picture] : []));
  $("tree-text").textContent = rows.length ?
    `Tokens to the right, ${longest} at most. A row leaves the one above where their tokens differ.` : "Nothing is kept yet.";
}

async function drawMemory() {
  if ($("memory").hidden || document.hidden) return;
  try {
    const response = await fetch("memory" + modelQuery(), { headers: requestHeaders() });
    const now = await response.json();
    if (!response.ok) throw new Error(now.error.message);
    const { cells, pages, slots, prefixes } = now;
    $("devices").replaceChildren(...now.devices.map(deviceNode));
    $("cells-text").textContent = `${cells.used} of ${cells.total} cells in use, peak ${cells.peak}`;
    drawCells(cells, slots.length);
    drawPages(pages, slots);
    const key = slots.map((slot, i) => swatch(slotColour(i), slotText(slot, i)));
    key.push(swatch(sharedColour, `several slots: ${pages.shared} pages`));
    if (prefixes.limit) key.push(swatch(prefixColour, `kept conversations: ${pages.prefixes} pages`));
    drawTree(prefixes.tree, slots.length);
    $("tiers-text").textContent = tierText(now.tiers);
    $("prefixes-text").textContent = prefixes.limit ? prefixText(prefixes) : "This server keeps no conversations.";
    $("slots").replaceChildren(element("div", { className: "key" }, ...key));

    const time = performance.now();
    const rate = lastSample ? (now.generated_tokens - lastSample.tokens) / (time - lastSample.time) * 1000 : 0;
    lastSample = { tokens: now.generated_tokens, time };
    const busy = slots.filter((slot) => slot.busy).length;
    $("speed").textContent =
      `${rate.toFixed(1)} tokens per second, ${busy} of ${slots.length} slots busy, ${now.waiting} waiting` +
      (now.moved_aside ? `, ${now.moved_aside} times a request made room` : "") +
      (now.context_shifts ? `, ${now.context_shifts} contexts shifted` : "");
  } catch (error) {
    $("speed").textContent = error.message;
  }
}

// Fetched instead of linked as an image, because the API key goes into a header.
async function drawPlan() {
  const query = modelQuery();
  if (drawnPlan === query) return;
  try {
    const response = await fetch("plan.svg" + query, { headers: requestHeaders() });
    if (!response.ok) throw new Error((await response.json()).error.message);
    const source = await response.text();
    URL.revokeObjectURL($("plan").src);
    $("plan").src = $("plan-link").href = URL.createObjectURL(new Blob([source], { type: "image/svg+xml" }));
    $("plan-link").hidden = false;
    $("plan-text").textContent = /<title>([^<]*)/.exec(source)?.[1] ?? "";
    drawnPlan = query;
  } catch (error) {
    $("plan-link").hidden = true;
    $("plan-text").textContent = error.message;
  }
}

// Memory against speed. The server plans for a while when it is first asked; the answer is 202 until then. The picture is
// part of the document, not an image, so that it takes the colours of the page.
async function drawFrontier() {
  const query = modelQuery();
  $("compare").disabled = true;
  $("frontier").replaceChildren();
  try {
    for (;;) {
      const response = await fetch("frontier.svg" + query, { headers: requestHeaders() });
      if (query !== modelQuery()) break;
      if (response.status === 200) {
        const picture = new DOMParser().parseFromString(await response.text(), "image/svg+xml").documentElement;
        $("frontier").replaceChildren(document.adoptNode(picture));
        $("frontier-text").textContent = "";
        break;
      }
      const answer = await response.json();
      if (response.status !== 202) throw new Error(answer.error.message);
      $("frontier-text").textContent = `Planning: ${answer.planned} of about ${answer.at_most || "40"} plans`;
      await new Promise((resolve) => setTimeout(resolve, 300));
    }
  } catch (error) {
    $("frontier-text").textContent = error.message;
  }
  $("compare").disabled = false;
}
$("compare").onclick = drawFrontier;

function showView(memory) {
  $("chat").hidden = memory;
  $("memory").hidden = !memory;
  $("show-chat").setAttribute("aria-pressed", !memory);
  $("show-memory").setAttribute("aria-pressed", memory);
  if (memory) {
    drawMemory();
    drawPlan();
  }
}
$("show-chat").onclick = () => showView(false);
$("show-memory").onclick = () => showView(true);
$("model").addEventListener("change", () => {
  lastSample = null;
  $("frontier").replaceChildren();
  $("frontier-text").textContent = "";
  drawMemory();
  if (!$("memory").hidden) drawPlan();
});
setInterval(drawMemory, 500);
