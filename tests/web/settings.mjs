// Tests of settings, keys, models and themes. ui.mjs runs them.
import assert from "node:assert/strict";
import { Tab } from "./browser.mjs";
import { chatRequests } from "./stub.mjs";

export const settingsTests = {
  async "settings: only changes are sent and marked; presets; format; system prompt"({ tab, stub }) {
    await tab.click("#settings-open");
    assert.equal(await tab.eval(() => document.getElementById("field-temperature").placeholder), "0.8");
    assert.match(await tab.text("#changed"), /server's/);
    await tab.type("0.3", "#field-temperature");
    assert.equal(await tab.count(".field.changed"), 1);
    await tab.type("You are terse.", "#system");
    await tab.type("mine", "#preset-name");
    await tab.clickText("Save preset");
    await tab.eval(() => { for (const details of document.querySelectorAll("dialog details")) details.open = true; });
    await tab.page.select("#format", "schema");
    await tab.type("{bad", "#format-text");
    await tab.until(() => /Not JSON/.test(document.getElementById("format-problem").textContent), "a wrong schema is shown");
    await tab.click("#format-text");
    await tab.key("Control", "a");
    await tab.page.keyboard.type("{\"type\":\"object\"}");
    await tab.key("Escape");
    stub.next = { text: "{}" };
    await tab.ask("go");
    const { body } = chatRequests(stub).at(-1);
    assert.deepEqual(Object.keys(body).sort(), ["json_schema", "messages", "model", "return_progress", "stream", "stream_options", "temperature"]);
    assert.equal(body.temperature, 0.3);
    assert.deepEqual(body.json_schema, { type: "object" });
    assert.deepEqual(body.messages[0], { role: "system", content: "You are terse." });
    await tab.click("#new");
    await tab.click("#settings-open");
    assert.equal(await tab.eval(() => document.getElementById("system").value), "", "the system prompt is the conversation's");
    await tab.page.select("#preset", "presetServer");
    await tab.until(() => document.querySelectorAll(".field.changed").length === 0, "the server's settings again");
    await tab.page.select("#preset", "mine");
    await tab.until(() => document.getElementById("field-temperature").value === "0.3", "the preset");
    await tab.click("#reset");
    assert.equal(await tab.count(".field.changed"), 0);
  },
  async "settings: any number in its range is sent, others are explained; errors of the server lead to the field"({ tab, stub }) {
    await tab.click("#settings-open");
    await tab.type("0.333", "#field-temperature");
    assert.equal(await tab.count(".field.changed"), 1);
    for (const [field, value, hint] of [["temperature", "7", /number from 0 to 5/], ["top_k", "2.5", /whole number from 0 to 100,000/]]) {
      await tab.click("#field-" + field);
      await tab.key("Control", "a");
      await tab.page.keyboard.type(value);
      await tab.until((name) => document.getElementById("field-" + name).getAttribute("aria-invalid") === "true", "it is marked", field);
      assert.match(await tab.eval((name) => document.getElementById("field-" + name).closest(".field").querySelector(".problem").textContent, field), hint);
    }
    await tab.key("Escape");
    stub.next = { status: 400, error: "grammar: grammar line 1, column 10: the string does not end", type: "invalid_request_error" };
    await tab.ask("go");
    assert.equal(chatRequests(stub)[0].body.temperature, 0.333, "the last good value stays");
    await tab.clickText("Open the format");
    await tab.until(() => document.getElementById("settings").open && document.getElementById("format").checkVisibility(), "the dialog at the format");
    await tab.key("Escape");
    stub.next = { status: 400, error: "top_p must be a number from 0 to 1", type: "invalid_request_error" };
    await tab.clickText("Try again");
    await tab.until(() => /top_p must be/.test(document.querySelector(".notice.error")?.textContent), "the other error");
    await tab.clickText("Open Top-p");
    await tab.until(() => document.activeElement.id === "field-top_p", "the field has the focus");
    await tab.key("Escape");
    stub.next = { text: "well" };
    await tab.clickText("Try again");
    await tab.until(() => document.querySelector(".message.assistant .text")?.textContent === "well", "the answer");
    await tab.finished();
    assert.equal(await tab.count(".versions"), 0, "an answer without a word is tried again, no version is kept");
  },
  async "API key: the error leads to the field"({ context, stub }) {
    stub.key = "secret";
    const tab = await Tab.open(context, stub.url, { wait: false });
    await tab.until(() => /needs an API key/.test(document.getElementById("banner").textContent), "the banner");
    await tab.clickText("Enter the API key");
    await tab.until(() => document.activeElement.id === "key", "the field has the focus");
    await tab.page.keyboard.type("secret");
    await tab.key("Tab");
    await tab.until(() => document.getElementById("model").options.length === 1 && !document.getElementById("banner").textContent, "connected");
    await tab.page.close();
  },
  async "the model picker"({ tab, stub }) {
    stub.models = ["alpha", "beta"];
    await tab.reload();
    await tab.page.select("#model", "beta");
    await tab.until(() => /beta/.test(document.getElementById("empty-title").textContent), "the other model");
    stub.next = { text: "hi" };
    await tab.ask("go");
    assert.equal(chatRequests(stub)[0].body.model, "beta");
    assert.equal(await tab.text(".message.assistant .who"), "beta");
    await tab.reload();
    assert.equal(await tab.eval(() => document.getElementById("model").value), "beta");
  },
  async "models that are not loaded: by the first message, by the button, by choosing one"({ tab, stub }) {
    stub.models = ["alpha", "beta", "gamma"];
    stub.unloaded = new Set(stub.models);
    stub.tooLarge = "gamma";
    await tab.reload();
    assert.equal(await tab.text("#banner"), "");
    assert.match(await tab.text("#empty-model"), /not loaded yet/);
    assert.equal(await tab.text("#model option"), "alpha (not loaded)");
    stub.next = { text: "hi" };
    await tab.ask("go");
    await tab.until(() => document.querySelector("#model option").textContent === "alpha" && /of 4,096 tokens/.test(document.getElementById("meter").textContent), "its state is shown");
    await tab.click("#new");
    await tab.page.select("#model", "beta");
    await tab.until(() => document.querySelectorAll("#model option")[1].textContent === "beta" && /4,096 tokens of context/.test(document.getElementById("empty-model").textContent), "choosing loads");
    stub.unloaded.add("beta");
    await tab.reload();
    await tab.clickText("Load it now");
    await tab.until(() => /4,096 tokens of context/.test(document.getElementById("empty-model").textContent), "the button loads");
    await tab.page.select("#model", "gamma");
    await tab.until(() => [...document.querySelectorAll(".toast")].some(({ textContent }) => /does not fit/.test(textContent)), "why it cannot be loaded");
    assert.equal(await tab.eval(() => document.getElementById("load").hidden), false);
  },
  async "theme follows the system and the choice is kept"({ tab }) {
    const back = () => tab.eval(() => getComputedStyle(document.body).backgroundColor);
    const first = await back();
    await tab.click("#theme");
    const second = await back();
    assert.notEqual(first, second);
    await tab.reload();
    assert.equal(await back(), second);
    await tab.click("#settings-open");
    await tab.page.select("#theme-choice", "");
    assert.equal(await back(), first, "the system's again");
  },
};
