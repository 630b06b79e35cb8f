// The context: what the next request will take, and what happens when it does not fit.
import { messageText, messagesToSkip, requestMessages } from "./tree.js";
import { countPrompt, countTokens, postJSON, server } from "./server.js";
import { settings } from "./settings.js";

const overhead = 6; // tokens that a template adds to a message, about

// Tokens of a message. Exact where the server has counted them, else estimated from the length.
function messageTokens(message) {
  if (message.tokens) return message.tokens + overhead;
  return Math.ceil(messageText(message).length / (server.charactersPerToken ?? 3.5)) + overhead;
}

// Room that stays for the answer: what the settings ask for, but at most a quarter of the context.
export function answerRoom() {
  const limit = Number(settings.values.max_tokens ?? server.defaults.max_tokens ?? -1);
  return Math.min(limit > 0 ? limit : 512, Math.floor(server.context / 4));
}

// { used, next, limit, fits, skip, alone }: tokens of the path, tokens with the new text, how many messages would be forgotten, and
// whether the last `keep` messages are too long by themselves.
export async function planContext(conversation, path, text, attachments = [], signal, keep = 1) {
  const fresh = text || attachments.length ? { role: "user", content: text, attachments } : null;
  const last = path.findLast((message) => message.stats?.total);
  let used = 0;
  const kept = path.slice(conversation.skip ?? 0);
  if (last && !conversation.skip && path.indexOf(last) === path.length - 1) used = last.stats.total;
  else if (kept.length || conversation.system.trim())
    used = await countPrompt(requestMessages(kept.length ? kept : [], { system: conversation.system, summary: conversation.summary }), signal).catch(() => 0) ||
      kept.reduce((sum, message) => sum + messageTokens(message), 0);
  const added = fresh ? (await countTokens(messageText(fresh), signal)) + overhead : 0;
  const characters = kept.reduce((sum, message) => sum + messageText(message).length, 0);
  if (used > 50 && characters > 100) server.charactersPerToken = Math.max(1, characters / used);
  const limit = server.context, next = used + added, fits = !limit || next + answerRoom() <= limit;
  let skip = conversation.skip ?? 0, alone = added + answerRoom() > limit;
  if (!fits) {
    const tokens = kept.map(messageTokens), roles = kept.map(({ role }) => role);
    if (fresh) {
      tokens.push(added);
      roles.push("user");
    }
    const budget = limit - answerRoom() - Math.ceil(conversation.system.length / 3) - (conversation.summary?.length ?? 0) / 3;
    skip += messagesToSkip(tokens, roles, budget, keep);
    skip = Math.min(skip, path.length - (fresh ? 0 : 1));
    if (!fresh) alone = tokens.slice(-keep).reduce((sum, n) => sum + n, 0) > budget;
  }
  return { used, next, added, limit, fits, skip, alone };
}

// Asks the model for a summary of the messages that will be left out.
export async function summarise(conversation, path, skip, signal) {
  const messages = requestMessages(path.slice(conversation.skip ?? 0, skip), { summary: conversation.summary ?? "" });
  const room = server.context - 2 * answerRoom();
  while (messages.length > 1 && messages.reduce((sum, { content }) => sum + content.length, 0) / (server.charactersPerToken ?? 3.5) > room) messages.shift();
  messages.push({ role: "user", content: "Summarise our conversation so far in a few sentences. Keep names, numbers, decisions and open questions." });
  const answer = await postJSON("v1/chat/completions", { messages, max_tokens: answerRoom(), temperature: 0.3 }, signal);
  return answer.choices[0].message.content?.trim() ?? "";
}
