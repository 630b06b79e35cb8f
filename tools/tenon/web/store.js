// Conversations in the browser's IndexedDB. Tokens of a running answer are appended to the store "pieces" as they arrive
// and become part of the message when it ends, so that a reload, a crash or a closed tab loses nothing.
// Writes that fail (storage full or disabled) stay in memory and are tried again with every later write. Writes that are not complete
// when the page goes away are left in localStorage for the next start.

const version = 1;
let database = null;
let unwritten = []; // operations: { store, value } or { store, key } to delete; `message` is the whole message that a value is about
let inWriting = []; // those of the write under way
let writing = null; // its promise
const failure = { error: null, listener: () => {} };

function request(source) {
  return new Promise((resolve, reject) => {
    source.onsuccess = () => resolve(source.result);
    source.onerror = () => reject(source.error);
  });
}

export async function openStore(name = "tenon") {
  const opening = indexedDB.open(name, version);
  opening.onupgradeneeded = () => {
    opening.result.createObjectStore("conversations", { keyPath: "id" });
    opening.result.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
    opening.result.createObjectStore("pieces", { autoIncrement: true }).createIndex("message", "message");
  };
  database = await request(opening);
  database.onversionchange = () => database.close();
  addEventListener("pagehide", leaveUnwritten); // after those of others, who may still write
  await takeLeft();
}

export function onStoreFailure(listener) {
  failure.listener = listener;
}
export function storeFailure() {
  return failure.error;
}

// ---- Writing ----

function writeAll(operations) {
  return new Promise((resolve, reject) => {
    if (!database) throw new Error("this browser gives no storage");
    const transaction = database.transaction(["conversations", "messages", "pieces"], "readwrite");
    transaction.oncomplete = resolve;
    transaction.onabort = transaction.onerror = () => reject(transaction.error ?? new Error("the write was aborted"));
    for (const { store, value, key, piecesOf } of operations) {
      const objects = transaction.objectStore(store);
      if (piecesOf) {
        objects.index("message").openKeyCursor(IDBKeyRange.only(piecesOf)).onsuccess = (event) => {
          const cursor = event.target.result;
          if (!cursor) return;
          objects.delete(cursor.primaryKey);
          cursor.continue();
        };
      } else if (value) objects.put(value);
      else objects.delete(key);
    }
    if (!operations.some(({ piecesOf }) => piecesOf)) transaction.commit?.();
  });
}

// One transaction at a time; what arrives meanwhile goes into the next one.
function write(...operations) {
  unwritten.push(...operations);
  writing ??= (async () => {
    await null;
    while (unwritten.length) {
      const batch = (inWriting = unwritten);
      unwritten = [];
      try {
        await writeAll(batch);
        inWriting = [];
        if (failure.error) recovered();
      } catch (error) {
        unwritten = [...batch, ...unwritten];
        inWriting = [];
        if (!failure.error) addEventListener("beforeunload", askBeforeLeaving);
        failure.error = error;
        failure.listener(error);
        break;
      }
    }
    writing = null;
  })();
  return writing;
}

function recovered() {
  failure.error = null;
  removeEventListener("beforeunload", askBeforeLeaving);
  failure.listener(null);
}

const copy = (value) => structuredClone(value);
export const saveConversation = (conversation) => write({ store: "conversations", value: copy(conversation) });
// A finished message replaces its pieces in the same transaction.
export const saveMessage = (message) => write({ store: "messages", value: copy(message), message }, { store: "pieces", piecesOf: message.id });
export const savePiece = (message, piece) => write({ store: "pieces", value: { message: message.id, ...piece }, message });
export const retryWrites = () => write();

export function removeMessages(ids) {
  unwritten = unwritten.filter(({ message, value }) => !ids.includes(message?.id ?? value?.message));
  return write(...ids.flatMap((id) => [{ store: "messages", key: id }, { store: "pieces", piecesOf: id }]));
}

export async function removeConversation(id) {
  unwritten = unwritten.filter(({ store, value, message }) => (message?.conversation ?? (store === "conversations" ? value?.id : null)) !== id);
  const keys = database ? await request(database.transaction("messages").objectStore("messages").index("conversation").getAllKeys(id)) : [];
  return write({ store: "conversations", key: id }, ...keys.flatMap((key) => [{ store: "messages", key }, { store: "pieces", piecesOf: key }]));
}

// ---- What a page leaves when it goes away ----

const leftPrefix = "left.", leftName = leftPrefix + crypto.getRandomValues(new Uint32Array(2)).join("");
let takenNames = []; // of what could not be stored yet: this page leaves it again

// Whole messages are left, not pieces: whether the last transaction was completed is unknown, and storing a message twice does no harm.
// Returns whether there was room for everything.
function leaveUnwritten() {
  const messages = new Map(), conversations = new Map();
  for (const { store, key, value, message } of [...inWriting, ...unwritten]) {
    if (message) messages.set(message.id, message);
    else if (store === "conversations" && value) conversations.set(value.id, value);
    else if (key) (store === "conversations" ? conversations : messages).delete(key);
  }
  for (const name of takenNames) saveItem(name); // removes it
  return saveItem(leftName, messages.size || conversations.size ? { messages: [...messages.values()], conversations: [...conversations.values()] } : undefined);
}

// Where no storage is left at all, the browser asks whether the page may go.
function askBeforeLeaving(event) {
  if (!leaveUnwritten()) event.preventDefault();
}

// Stores what was left, unless what is stored by now is newer.
async function takeLeft() {
  for (const name of Object.keys(localStorage).filter((key) => key.startsWith("tenon." + leftPrefix)).map((key) => key.slice("tenon.".length))) {
    const { messages = [], conversations = [] } = loadItem(name, {});
    const transaction = database.transaction(["conversations", "messages", "pieces"]), operations = [];
    for (const message of messages) {
      const stored = await request(transaction.objectStore("messages").get(message.id));
      if (stored?.state === "running") applyPieces(stored, await request(transaction.objectStore("pieces").index("message").getAll(stored.id)));
      if (goesOn(stored, message)) operations.push({ store: "messages", value: message, message }, { store: "pieces", piecesOf: message.id });
    }
    for (const value of conversations) {
      const stored = await request(transaction.objectStore("conversations").get(value.id));
      if (!stored || stored.updated <= value.updated) operations.push({ store: "conversations", value });
    }
    await write(...operations);
    if (failure.error) takenNames.push(name);
    else saveItem(name);
  }
}

function goesOn(stored, message) {
  if (!stored) return true;
  const [before, after] = [stored, message].map(({ content, reasoning }) => [reasoning ?? "", content]);
  return before.every((text, i) => after[i].startsWith(text)) && (stored.state === "running" || after.join("").length > before.join("").length);
}

// ---- Reading ----

export async function loadConversations() {
  await writing;
  const list = database ? await request(database.transaction("conversations").objectStore("conversations").getAll()) : [];
  const byId = new Map(list.map((conversation) => [conversation.id, conversation]));
  for (const { store, key, value } of [...inWriting, ...unwritten]) {
    if (store !== "conversations") continue;
    if (value) byId.set(value.id, copy(value));
    else byId.delete(key);
  }
  return [...byId.values()].sort((a, b) => b.updated - a.updated);
}

export function applyPieces(message, pieces) {
  for (const piece of pieces) {
    if (piece.content) message.content += piece.content;
    if (piece.reasoning) message.reasoning = (message.reasoning ?? "") + piece.reasoning;
    if (piece.calls) message.calls = piece.calls;
  }
  return message;
}

// The messages of a conversation, each with the pieces that have arrived, and with what could not be written.
export async function loadMessages(conversation) {
  await writing;
  const messages = await loadStored(conversation);
  for (const { message } of [...inWriting, ...unwritten]) if (message?.conversation === conversation) messages.set(message.id, message);
  return messages;
}
async function loadStored(conversation) {
  const messages = new Map();
  if (!database) return messages;
  const transaction = database.transaction(["messages", "pieces"]);
  for (const message of await request(transaction.objectStore("messages").index("conversation").getAll(conversation))) {
    if (message.state === "running") applyPieces(message, await request(transaction.objectStore("pieces").index("message").getAll(message.id)));
    messages.set(message.id, message);
  }
  return messages;
}

// Ids of conversations with a message that contains the text, found one message at a time to take little memory.
export function searchMessages(wanted, signal) {
  const found = new Map(), needle = wanted.toLowerCase();
  const look = ({ conversation, content, reasoning, attachments = [], id }) => {
    if (!found.has(conversation) && [content, reasoning, ...attachments.flatMap(({ name, text }) => [name, text])].some((text) => text?.toLowerCase().includes(needle))) found.set(conversation, id);
  };
  for (const { message } of [...inWriting, ...unwritten]) if (message) look(message);
  return new Promise((resolve) => {
    if (!database) return resolve(found);
    const walk = database.transaction("messages").objectStore("messages").openCursor();
    walk.onerror = () => resolve(found);
    walk.onsuccess = () => {
      const cursor = walk.result;
      if (!cursor || signal?.aborted) return resolve(found);
      look(cursor.value);
      cursor.continue();
    };
  });
}

// ---- Small settings ----

export function loadItem(name, fallback) {
  try {
    return JSON.parse(localStorage.getItem("tenon." + name)) ?? fallback;
  } catch {
    return fallback;
  }
}
// What belongs to the tab survives its reload; a new tab begins with the last value of any tab.
export function loadTabItem(name, fallback) {
  try {
    return JSON.parse(sessionStorage.getItem("tenon." + name)) ?? loadItem(name, fallback);
  } catch {
    return loadItem(name, fallback);
  }
}
export function saveTabItem(name, value) {
  saveItem(name, value);
  try {
    sessionStorage.setItem("tenon." + name, JSON.stringify(value ?? ""));
  } catch { /* the storage says so elsewhere */ }
}
// Returns whether there was room.
export function saveItem(name, value) {
  try {
    if (value === undefined) localStorage.removeItem("tenon." + name);
    else localStorage.setItem("tenon." + name, JSON.stringify(value));
    return true;
  } catch (error) {
    failure.listener(error);
    return false;
  }
}

// ---- Other tabs ----

const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("tenon");
export function tellTabs(message) {
  channel?.postMessage(message);
}
export function onTabMessage(listener) {
  channel?.addEventListener("message", ({ data }) => listener(data));
}
// Whether another tab answers within a moment that it receives the answer, or writes the conversation, with this id.
export function runsElsewhere(id) {
  if (!channel) return Promise.resolve(false);
  return new Promise((resolve) => {
    const heard = ({ data }) => data.kind === "running" && data.id === id && done(true);
    const timer = setTimeout(() => done(false), 400);
    const done = (answer) => {
      clearTimeout(timer);
      channel.removeEventListener("message", heard);
      resolve(answer);
    };
    channel.addEventListener("message", heard);
    channel.postMessage({ kind: "who-runs", id });
  });
}
