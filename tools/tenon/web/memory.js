// The memory view: devices, cells of the KV cache, slots and the memory plan, updated twice a second while visible.
"use strict";
const partColours = { weights: "#4878a8", mapped: "#a9bfd6", cache: "#cf8e3f", compute: "#6a9a5b", scratch: "#9a6aa0" };
const slotColour = (i) => `hsl(${(i * 137 + 205) % 360} 55% 52%)`;
const prefixColour = "#8a8f98";
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

function prefixText({ kept, cells, asked, taken, evicted }) {
  const share = asked ? Math.round(100 * taken / asked) : 0;
  return `${kept} kept conversations, ${cells} cells, ${share}% of prompt tokens reused, ${evicted} made room`;
}

function slotText(slot, i) {
  return `slot ${i}: ${slot.busy ? "generating" : "idle"}, ${slot.cells} cells`;
}

async function drawMemory() {
  if ($("memory").hidden || document.hidden) return;
  try {
    const response = await fetch("memory" + modelQuery(), { headers: requestHeaders() });
    const now = await response.json();
    if (!response.ok) throw new Error(now.error.message);
    const { cells, slots, prefixes } = now;
    $("devices").replaceChildren(...now.devices.map(deviceNode));
    $("cells-text").textContent = `${cells.used} of ${cells.total} cells in use, peak ${cells.peak}`;
    drawCells(cells, slots.length);
    const key = slots.map((slot, i) => swatch(slotColour(i), slotText(slot, i)));
    if (prefixes.limit) key.push(swatch(prefixColour, prefixText(prefixes)));
    $("slots").replaceChildren(element("div", { className: "key" }, ...key));

    const time = performance.now();
    const rate = lastSample ? (now.generated_tokens - lastSample.tokens) / (time - lastSample.time) * 1000 : 0;
    lastSample = { tokens: now.generated_tokens, time };
    const busy = slots.filter((slot) => slot.busy).length;
    $("speed").textContent =
      `${rate.toFixed(1)} tokens per second, ${busy} of ${slots.length} slots busy, ${now.waiting} waiting`;
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
