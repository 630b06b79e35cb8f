// Answers of the server as they arrive: event streams of /v1/chat/completions and /completion.

// Splits the text of an event stream into the data of its events. feed() takes any pieces of the text.
export class EventParser {
  #rest = "";
  feed(piece) {
    const lines = (this.#rest + piece).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    const events = [];
    for (const line of lines) if (line.startsWith("data:")) events.push(line.slice(5).trimStart());
    return events;
  }
}

// Adds what one event says to a message. Returns what is not part of the message: { finish, note, usage, timings }.
export function applyEvent(message, event) {
  if (event.error) throw Object.assign(new Error(event.error.message ?? String(event.error)), { type: event.error.type });
  const rest = { usage: event.usage, timings: event.timings };
  if (typeof event.content === "string") { // /completion
    message.content += event.content;
    if (event.stop) rest.finish = event.stop_type === "limit" || event.truncated ? "length" : "stop";
    return rest;
  }
  const choice = event.choices?.[0], delta = choice?.delta;
  if (delta?.content) message.content += delta.content;
  if (delta?.reasoning_content) message.reasoning = (message.reasoning ?? "") + delta.reasoning_content;
  for (const part of delta?.tool_calls ?? []) {
    const calls = (message.calls ??= []);
    const call = (calls[part.index ?? calls.length] ??= { id: "", name: "", arguments: "" });
    if (part.id) call.id = part.id;
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }
  if (choice?.finish_reason) rest.finish = choice.finish_reason;
  if (choice?.note) rest.note = choice.note;
  return rest;
}

export class ServerError extends Error {
  constructor(status, answer) {
    super(answer?.error?.message || `HTTP ${status}`);
    Object.assign(this, { status, type: answer?.error?.type, details: answer?.error });
  }
}

export async function checkedResponse(response) {
  if (response.ok) return response;
  let answer = null;
  try {
    answer = await response.json();
  } catch { /* not JSON: a proxy's answer */ }
  throw new ServerError(response.status, answer);
}

// Calls onEvents with the events of every piece that arrives. Throws when the stream ends before the server said that it is complete.
export async function readStream(response, onEvents) {
  const reader = response.body.getReader(), decoder = new TextDecoder(), parser = new EventParser();
  let complete = false;
  try {
    for (;;) {
      const { value, done } = await reader.read();
      const events = [];
      for (const data of parser.feed(done ? decoder.decode() + "\n" : decoder.decode(value, { stream: true }))) {
        if (data === "[DONE]") complete = true;
        else {
          const event = JSON.parse(data);
          if (event.stop === true) complete = true;
          events.push(event);
        }
      }
      if (events.length) onEvents(events);
      if (done) break;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
  if (!complete) throw Object.assign(new Error("the connection was cut"), { cut: true });
}

// Text between <think> and </think> of a raw completion, and the rest. Used where an answer is continued without the
// server's parser.
export function splitReasoning(source) {
  const end = source.indexOf("</think>");
  return end < 0 ? { reasoning: source, content: "" } : { reasoning: source.slice(0, end), content: source.slice(end + 8).trimStart() };
}
