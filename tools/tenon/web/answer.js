// Answers: requests, the text as it arrives, and what is kept of it when something ends them.
import { applyEvent, checkedResponse, readStream, splitReasoning } from "./stream.js";
import { isRunning, newMessage, pathTo, requestMessages } from "./tree.js";
import { postJSON, requestHeaders, server } from "./server.js";
import { requestFields } from "./settings.js";
import { applyPieces, onTabMessage, saveConversation, saveMessage, savePiece, tellTabs } from "./store.js";

const runs = new Map(); // message id → { controller, message, conversation, progress }
const listeners = { change: () => {}, end: () => {} };

export function onAnswers(handlers) {
  Object.assign(listeners, handlers);
}
export const runOf = (id) => runs.get(id);
export const runIn = (conversation) => [...runs.values()].find((run) => run.conversation.id === conversation.id);
export const runningAs = (id) => [...runs.values()].find((run) => run.conversation.id === id)?.conversation;
export function stopAnswer(conversation) {
  runIn(conversation)?.controller.abort();
}

// Starts an answer to the message `parent`. Returns the new message at once. `failed`: an answer without text, which is requested again.
export function startAnswer(conversation, messages, parent, failed) {
  const fields = { state: "running", model: server.model, error: undefined, note: undefined, finish: undefined };
  const message = failed ? Object.assign(failed, fields) : newMessage(conversation, parent, "assistant", fields);
  messages.set(message.id, message);
  conversation.leaf = message.id;
  conversation.updated = Date.now();
  const path = pathTo(messages, parent);
  const ask = async (signal) => {
    const list = requestMessages(path, { system: conversation.system, skip: conversation.skip ?? 0, summary: conversation.summary });
    return post("v1/chat/completions", { ...requestFields(), messages: list, stream: true, stream_options: { include_usage: true }, return_progress: true }, signal);
  };
  run(conversation, message, ask);
  return message;
}

// Goes on with an answer that was cut, stopped or interrupted. The prompt is what the server makes of the conversation,
// followed by the text so far.
export function continueAnswer(conversation, messages, message) {
  const path = pathTo(messages, message.parent);
  const thinking = !message.content && message.reasoning;
  Object.assign(message, { state: "running", error: undefined, finish: undefined });
  conversation.leaf = message.id;
  conversation.updated = Date.now();
  const ask = async (signal) => {
    const list = requestMessages(path, { system: conversation.system, skip: conversation.skip ?? 0, summary: conversation.summary });
    const { prompt } = await postJSON("apply-template", { messages: list }, signal);
    const begun = thinking ? (prompt.trimEnd().endsWith("<think>") ? "" : "<think>\n") + message.reasoning : message.content;
    const { response_format: format, ...fields } = requestFields();
    if (format) fields.json_schema = {};
    return post("completion", { ...fields, n_predict: fields.max_tokens, prompt: prompt + begun, stream: true, return_progress: true }, signal);
  };
  run(conversation, message, ask, thinking);
}

async function post(path, body, signal) {
  return checkedResponse(await fetch(path, { method: "POST", headers: requestHeaders(), body: JSON.stringify({ model: server.model, ...body }), signal }));
}

async function run(conversation, message, ask, thinking = false) {
  const current = { controller: new AbortController(), message, conversation, progress: null };
  runs.set(message.id, current);
  saveMessage(message);
  saveConversation(conversation);
  tellTabs({ kind: "message", conversation, message });
  listeners.change(message, conversation);
  const receive = thinking ? thoughtReceiver(message) : (event) => applyEvent(message, event);
  const outcome = { finish: "" };
  try {
    const response = await ask(current.controller.signal);
    await readStream(response, (events) => receiveEvents(current, events, receive, outcome));
    message.state = "done";
  } catch (error) {
    describeFailure(message, error, current.controller.signal.aborted);
  }
  runs.delete(message.id);
  if (outcome.finish) message.finish = outcome.finish;
  if (outcome.note) message.note = outcome.note;
  if (message.finish === "length" && message.state === "done") message.state = "cut";
  addStatistics(message, outcome);
  conversation.updated = Date.now();
  saveMessage(message);
  saveConversation(conversation);
  tellTabs({ kind: "message", conversation, message });
  listeners.end(message, conversation);
}

function receiveEvents(current, events, receive, outcome) {
  const { message, conversation } = current;
  const before = { content: message.content.length, reasoning: message.reasoning?.length ?? 0, calls: JSON.stringify(message.calls ?? null) };
  try {
    for (const { prompt_progress: prefill } of events) if (prefill) current.progress = { done: prefill.processed, total: prefill.total };
    for (const event of events) for (const [name, value] of Object.entries(receive(event))) if (value) outcome[name] = value;
  } finally {
    const piece = { content: message.content.slice(before.content), reasoning: (message.reasoning ?? "").slice(before.reasoning) };
    if (JSON.stringify(message.calls ?? null) !== before.calls) piece.calls = structuredClone(message.calls);
    if (piece.content || piece.reasoning || piece.calls) {
      savePiece(message, piece);
      tellTabs({ kind: "piece", conversation: conversation.id, id: message.id, piece });
    }
  }
  listeners.change(message, conversation);
}

// A continued thought: the text is reasoning until the model ends it.
function thoughtReceiver(message) {
  let raw = message.reasoning;
  return (event) => {
    const part = { content: "" }, rest = applyEvent(part, event);
    raw += part.content;
    Object.assign(message, splitReasoning(raw));
    return rest;
  };
}

function describeFailure(message, error, stopped) {
  if (stopped) {
    message.state = "stopped";
    return;
  }
  const begun = message.content || message.reasoning;
  message.state = begun ? "interrupted" : "failed";
  message.error = { status: error.status ?? 0, type: error.type ?? (error instanceof SyntaxError ? "invalid_schema" : ""), text: error.message, cut: !!error.cut || error instanceof TypeError };
}

function addStatistics(message, { usage, timings }) {
  if (!timings && !usage) return;
  const old = message.stats?.tokens ?? 0, tokens = usage?.completion_tokens ?? timings.predicted_n;
  const prompt = usage?.prompt_tokens ?? timings.cache_n + timings.prompt_n;
  message.stats = { prompt, tokens: message.stats ? old + tokens : tokens, total: prompt + tokens, rate: timings?.predicted_per_second ?? 0,
    promptRate: timings?.prompt_per_second ?? 0, cached: timings?.cache_n ?? 0, drafted: timings?.draft_n ?? 0, accepted: timings?.draft_n_accepted ?? 0 };
}

// ---- Other tabs ----

// `find` gives the message with an id if this tab shows it.
export function followTabs(find, add) {
  onTabMessage((data) => {
    if (data.kind === "who-runs" && runs.has(data.id)) tellTabs({ kind: "running", id: data.id });
    else if (data.kind === "piece" && !runs.has(data.id)) {
      const message = find(data.id);
      if (message && isRunning(message)) listeners.change(applyPieces(message, [data.piece]), { id: data.conversation });
    } else if (data.kind === "message") add(data.conversation, data.message);
  });
}
