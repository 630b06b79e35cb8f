// "Will it fit?" for any model of the server, the predicted speed, and memory against speed for other choices.
import { bytesText, element } from "../dom.js";
import { number, t } from "../i18n.js";
import { checkedResponse } from "../stream.js";
import { modelQuery, requestHeaders, server } from "../server.js";
import { colours } from "./drawings.js";
import { memoryBar, swatch } from "./view.js";

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// The server plans in the background and answers 202 until it is done.
async function planned(path, options, check = () => true) {
  for (;;) {
    const response = await checkedResponse(await fetch(path, options));
    if (response.status !== 202) return response;
    if (!check(await response.json())) return null;
    await wait(250);
  }
}

async function askFit(fields) {
  const response = await planned("fit", { method: "POST", headers: requestHeaders(), body: JSON.stringify({ model: server.model, ...fields }) });
  return response.json();
}

export async function predictSpeed(show) {
  try {
    show((await askFit({ purpose: "speed" })).speed);
  } catch {
    show(null);
  }
  return true;
}

export function fitForm() {
  const types = ["f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"];
  const control = (label, node) => element("label", {}, label, node);
  const weights = element("input", { value: "Q4_K_M", size: 8 }), arch = element("input", { value: "llama", size: 8 });
  const shape = element("textarea", { rows: 3, className: "mono", placeholder: t("fitShapeHint"), spellcheck: false });
  const ofShape = [control(t("fitWeights"), weights), control(t("fitArch"), arch), element("label", { className: "whole" }, t("fitShape"), shape)];
  const model = element("select", {}), ctx = element("input", { type: "number", min: 0, step: 1, placeholder: t("fitAuto") });
  const slots = element("input", { type: "number", min: 1, max: 1024, step: 1 }), layers = element("input", { type: "number", min: -1, step: 1, placeholder: t("fitAuto") });
  const cacheK = element("select", {}, new Option(t("fitServer"), ""), ...types.map((name) => new Option(name, name)));
  const cacheV = cacheK.cloneNode(true), result = element("div", { role: "status" });
  const submit = element("button", { type: "submit", className: "main" }, t("fitAsk"));
  const form = element("form", { className: "fit" }, control(t("model"), model), control(t("fitContext"), ctx), control(t("fitSlots"), slots), control(t("fitCacheK"), cacheK),
    control(t("fitCacheV"), cacheV), control(t("fitLayers"), layers), ...ofShape, submit);
  const showShape = () => {
    for (const node of ofShape) node.hidden = model.value !== "";
    ofShape[1].hidden ||= shape.value.trim().startsWith("{"); // a config.json names its architecture
  };
  model.addEventListener("change", () => {
    showShape();
    if (!model.value) shape.focus();
  });
  shape.addEventListener("input", showShape);
  const reset = () => {
    model.replaceChildren(...server.models.map(({ id }) => new Option(id, id, false, id === server.model)), new Option(t("fitOther"), ""));
    showShape();
    slots.value = server.slots || 1;
    result.replaceChildren();
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const fields = { model: model.value || server.model };
    if (!model.value) Object.assign(fields, { shape: shape.value.trim(), weights: weights.value.trim() }, shape.value.trim().startsWith("{") ? {} : { arch: arch.value.trim() });
    if (ctx.value) fields.ctx = Number(ctx.value);
    if (slots.value) fields.slots = Number(slots.value);
    if (layers.value) fields.gpu_layers = Number(layers.value);
    if (cacheK.value) fields.cache_type_k = cacheK.value;
    if (cacheV.value) fields.cache_type_v = cacheV.value;
    submit.disabled = true;
    result.textContent = t("planning");
    try {
      result.replaceChildren(...fitNodes(await askFit(fields)));
    } catch (error) {
      result.textContent = error.message;
    }
    submit.disabled = false;
  });
  reset();
  return { node: element("div", {}, form, result), reset };
}

function fitNodes(fit) {
  const nodes = [element("p", { className: "dim" }, t("fitModel", { n: number(fit.parameters), layers: number(fit.layers) })), element("p", { className: "verdict " + (fit.fits ? "good" : "bad") }, t(fit.fits ? "fits" : "fitsNot", { ctx: number(fit.ctx), slots: number(fit.slots) }))];
  if (fit.advice) nodes.push(element("p", {}, fit.advice));
  for (const device of fit.devices) {
    const colour = colours.kinds, values = [[t("weights"), device.weights, colour[0]], [t("cache"), device.cache, colour[1]], [t("computeMemory"), device.compute, colour[2]], [t("other"), device.other, colour[3]]];
    const text = t("fitDevice", { name: device.name, needed: bytesText(device.needed), free: bytesText(device.free), layers: number(device.layers) });
    nodes.push(element("div", { className: "device" }, element("p", {}, text), memoryBar(values, Math.max(device.free, device.needed), text),
      element("div", { className: "key" }, ...values.filter(([, bytes]) => bytes).map(([name, bytes, shade]) => swatch(shade, `${name} ${bytesText(bytes)}`)),
        ...(device.mapped ? [element("span", { className: "dim" }, t("mappedText", { n: bytesText(device.mapped) }))] : []))));
  }
  if (fit.speed) nodes.push(element("p", { className: "dim" }, t("predicted", { decode: number(fit.speed.decode, 1), prefill: number(fit.speed.prefill, 0) })));
  return nodes;
}

// The server draws this picture; it is shown as part of the document, so that it takes the colours of the theme.
export function frontierPanel() {
  const button = element("button", { type: "button" }, t("compareButton")), text = element("p", { className: "dim", role: "status" }), picture = element("div", { className: "frontier" });
  const reset = () => {
    picture.replaceChildren();
    text.textContent = "";
  };
  button.addEventListener("click", async () => {
    button.disabled = true;
    reset();
    const query = modelQuery();
    try {
      const response = await planned("frontier.svg" + query, { headers: requestHeaders() }, ({ planned: done, at_most: most }) => {
        text.textContent = t("planningOf", { done: number(done), most: number(most || 40) });
        return query === modelQuery();
      });
      text.textContent = "";
      if (response) picture.replaceChildren(document.adoptNode(new DOMParser().parseFromString(await response.text(), "image/svg+xml").documentElement));
    } catch (error) {
      text.textContent = error.message;
    }
    button.disabled = false;
  });
  return { node: element("div", {}, button, text, picture), reset };
}
