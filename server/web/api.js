// Requests to the server that this page came from. Paths are relative to the page's own folder, so
// that a proxy may put it under a prefix.

const BASE = location.pathname.replace(/\/docs\/?$/, "/").replace(/[^/]*$/, "");
const KEY_ITEM = "sluice.key";

const apiKey = () => sessionStorage.getItem(KEY_ITEM) || localStorage.getItem(KEY_ITEM) || "";

function setApiKey(key, isKept) {
  localStorage.removeItem(KEY_ITEM);
  sessionStorage.removeItem(KEY_ITEM);
  if (key) (isKept ? localStorage : sessionStorage).setItem(KEY_ITEM, key);
}

class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (apiKey()) headers.Authorization = "Bearer " + apiKey();
  let response;
  try {
    response = await fetch(BASE + path, { cache: "no-store", ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  if (response.ok) return response;
  let message = response.status + " " + response.statusText;
  try {
    message = (await response.json()).error.message || message;
  } catch {
    /* its status says enough */
  }
  throw new ApiError(response.status, message);
}

const getJson = async (path) => (await request(path)).json();
const getText = async (path) => (await request(path)).text();

// The events of a chat completion, parsed, one by one, until [DONE] or the end.
async function* chatEvents(body, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    signal,
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json" },
  });
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The connection was lost.");
    }
    rest += decoder.decode(part.value, { stream: !part.done });
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error)
        throw new ApiError(event.error.code, event.error.message || "The answer failed.");
      yield event;
    }
    if (part.done) throw new ApiError(0, "The connection ended before the answer did.");
  }
}

// The document of the API, asked for once.
let document_ = null;
const apiDocument = () => {
  if (!document_) {
    document_ = getJson("openapi.json");
    document_.catch(() => {
      document_ = null;
    });
  }
  return document_;
};

// Sampling where the settings say nothing: the model's own or, if it has none, what `sluice chat`
// takes. A model without any is read as 1 and nothing cut off, with which small models talk noise.
async function chatSampling() {
  try {
    const { properties } = (await apiDocument()).components.schemas.ChatCompletionRequest;
    const [temperature, topP, topK, minP] = ["temperature", "top_p", "top_k", "min_p"].map(
      (name) => properties[name]?.default,
    );
    const isOwn = (temperature ?? 1) !== 1 || (topP ?? 1) !== 1 || (topK ?? 0) > 0 || (minP ?? 0) > 0;
    return isOwn ? {} : { temperature: 0.7, top_p: 0.95 };
  } catch {
    return {}; // without the document nobody knows
  }
}
