// What the browser keeps: conversations, one item each, and settings. Nothing of it leaves the
// browser but as messages of a request.
//
// A conversation: { id, title, changed, messages }; a message: { role, content } and, where there
// are any, reasoning, calls [{ id, name, arguments }], callId and callName (of a tool's result), files
// [{ name, text }], stats, error, cut (stopped by the reader).

const CHAT_PREFIX = "sluice.chat.";
const SETTINGS_ITEM = "sluice.settings";
const CURRENT_ITEM = "sluice.current";

function readItem(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null;
  }
}

function writeItem(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    $("storage-note").textContent = "";
    return true;
  } catch {
    $("storage-note").textContent =
      "The browser's storage is full: this conversation is not kept. Delete others, or save it to a file.";
    return false;
  }
}

const newId = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
const newChat = () => ({ id: newId(), title: "", changed: Date.now(), messages: [] });

// Other tabs write too: the list is read anew each time.
function storedChats() {
  const chats = [];
  for (let i = 0; i < localStorage.length; i += 1) {
    const name = localStorage.key(i);
    if (!name.startsWith(CHAT_PREFIX)) continue;
    const chat = readItem(name);
    if (chat && Array.isArray(chat.messages)) chats.push(chat);
  }
  return chats.sort((a, b) => b.changed - a.changed);
}

function storeChat(chat) {
  if (chat.messages.length === 0 || chat.isDeleted) return;
  chat.changed = Date.now();
  const first = chat.messages.find((message) => message.role === "user");
  if (!chat.named && first)
    chat.title = (first.content || first.files?.[0]?.name || "").slice(0, 60);
  // Log-probabilities are many times the text.
  writeItem(CHAT_PREFIX + chat.id, {
    ...chat,
    messages: chat.messages.map(({ logprobs, ...kept }) => kept),
  });
}

const deleteChat = (id) => localStorage.removeItem(CHAT_PREFIX + id);

const settings = {
  system: "",
  tools: "",
  logprobs: false,
  sampling: {},
  ...readItem(SETTINGS_ITEM),
};
const storeSettings = () => writeItem(SETTINGS_ITEM, settings);
