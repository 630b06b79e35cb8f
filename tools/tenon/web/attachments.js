// Documents that go with a message, as text.
import { t } from "./i18n.js";

const pictures = /^(image|audio|video)\//;

// { name, text, note } of a file. Throws an Error with a text for people when it cannot be read as text.
export async function readDocument(file) {
  if (pictures.test(file.type)) throw new Error(t("noPictures", { name: file.name }));
  if (file.size > 50e6) throw new Error(t("tooLarge", { name: file.name }));
  const bytes = new Uint8Array(await file.arrayBuffer());
  if (String.fromCharCode(...bytes.subarray(0, 5)) === "%PDF-") return readPDF(file.name, bytes);
  const start = bytes.subarray(0, 8192);
  const wide = start[0] === 0xff && start[1] === 0xfe ? "utf-16le" : start[0] === 0xfe && start[1] === 0xff ? "utf-16be" : "";
  if (!wide && start.includes(0)) throw new Error(t("notText", { name: file.name }));
  let text;
  try {
    text = new TextDecoder(wide || "utf-8", { fatal: true }).decode(bytes);
  } catch {
    text = new TextDecoder("windows-1252").decode(bytes);
  }
  return { name: file.name, text: text.replaceAll("\r\n", "\n").replaceAll("\0", "") };
}

async function readPDF(name, bytes) {
  const { getDocument, GlobalWorkerOptions } = await import("./vendor/pdf.js");
  GlobalWorkerOptions.workerSrc = new URL("vendor/pdf-worker.js", document.baseURI).href;
  let task;
  try {
    task = getDocument({ data: bytes, useWorkerFetch: false, isEvalSupported: false, useWasm: false, stopAtErrors: false, verbosity: 0 });
    const pdf = await task.promise, parts = [];
    for (let i = 1; i <= pdf.numPages; i++) {
      const { items } = await (await pdf.getPage(i)).getTextContent();
      parts.push(items.map(({ str, hasEOL }) => (str ?? "") + (hasEOL ? "\n" : "")).join(""));
    }
    const text = parts.join("\n\n").trim();
    if (!text) throw new Error(t("emptyPDF", { name }));
    return { name, text, note: t("sheets", { n: pdf.numPages }) };
  } catch (error) {
    throw new Error(error.name === "PasswordException" ? t("lockedPDF", { name }) : error.message.includes(name) ? error.message : t("badPDF", { name, why: error.message }));
  } finally {
    task?.destroy();
  }
}
