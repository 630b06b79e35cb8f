// A browser for the tests, driven by WebDriver BiDi: real clicks and keys.
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import puppeteer from "puppeteer-core";

const programs = { chrome: process.env.CHROMIUM ?? "/usr/bin/chromium", firefox: process.env.FIREFOX ?? "/usr/bin/firefox-esr" };

const mouse = ["--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4"]; // not known without a screen

export async function startBrowser(kind, protocol = "webDriverBiDi") {
  const chrome = kind === "chrome";
  return puppeteer.launch({ browser: kind, executablePath: programs[kind], protocol, headless: true, protocolTimeout: 60000, userDataDir: mkdtempSync(join(tmpdir(), "tenon-web-")),
    args: chrome ? ["--no-sandbox", "--disable-gpu", "--lang=en", "--force-prefers-reduced-motion", ...mouse] : [], extraPrefsFirefox: { "ui.primaryPointerCapabilities": 6, "ui.allPointerCapabilities": 6 }, env: { ...process.env, LANGUAGE: "en", LANG: "C.UTF-8" } });
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// A tab of the web UI with what the tests do often.
export class Tab {
  static async open(context, url, { width = 1100, height = 760, wait = true } = {}) {
    const tab = new Tab();
    tab.page = await context.newPage();
    tab.problems = [];
    tab.page.on("console", (message) => { if (/error|warn/.test(message.type())) tab.problems.push(message.text()); });
    tab.page.on("pageerror", (error) => tab.problems.push(error.message));
    await tab.page.setViewport({ width, height });
    await tab.page.goto(url);
    if (wait) await tab.ready();
    return tab;
  }
  ready() {
    return this.until(() => document.documentElement.dataset.ready === "true" && document.getElementById("model").options.length > 0, "the web UI is ready");
  }
  async until(condition, what, ...args) {
    for (const end = Date.now() + 45000; Date.now() < end; await sleep(25)) {
      try {
        if (await this.page.evaluate(condition, ...args)) return;
      } catch { /* the document is being replaced */ }
    }
    throw new Error("timeout: " + what);
  }
  eval(what, ...args) {
    return this.page.evaluate(what, ...args);
  }
  front() {
    return this.page.bringToFront();
  }
  count(selector) {
    return this.page.evaluate((s) => document.querySelectorAll(s).length, selector);
  }
  text(selector, i = 0) {
    return this.page.evaluate((s, n) => [...document.querySelectorAll(s)].at(n)?.textContent ?? null, selector, i);
  }
  texts(selector) {
    return this.page.evaluate((s) => [...document.querySelectorAll(s)].map((node) => node.textContent), selector);
  }
  async click(selector, i = 0) {
    const nodes = await this.page.$$(selector);
    const node = nodes.at(i);
    if (!node) throw new Error(`nothing to click: ${selector}`);
    await node.click();
  }
  async type(text, selector = "#input") {
    await this.click(selector);
    await this.page.keyboard.type(text);
  }
  key(...keys) {
    return (async () => {
      for (const key of keys.slice(0, -1)) await this.page.keyboard.down(key);
      await this.page.keyboard.press(keys.at(-1));
      for (const key of keys.slice(0, -1).reverse()) await this.page.keyboard.up(key);
    })();
  }
  async send(text) {
    await this.type(text);
    await this.key("Enter");
  }
  finished() {
    return this.until(() => document.querySelectorAll(".message.assistant").length > 0 && !document.querySelector(".message.running") && document.getElementById("stop").hidden, "the answer ends");
  }
  async ask(text) {
    const before = await this.count(".message");
    await this.send(text);
    await this.until((n) => document.querySelectorAll(".message").length > n, "the message is shown", before);
    await this.finished();
  }
  button(name) { // by its accessible name
    return `button[aria-label="${name}"]`;
  }
  clickText(text, within = "button") {
    return this.page.evaluate((wanted, selector) => {
      const node = [...document.querySelectorAll(selector)].find((other) => other.textContent.trim() === wanted && other.checkVisibility());
      if (!node) throw new Error("no element with the text " + wanted);
      node.dataset.clicked = "next";
    }, text, within).then(() => this.click("[data-clicked=next]")).then(() => this.page.evaluate(() => document.querySelector("[data-clicked=next]")?.removeAttribute("data-clicked")));
  }
  async reload() {
    await this.page.reload();
    await this.ready();
  }
}
