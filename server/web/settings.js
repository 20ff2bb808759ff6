// The dialog: key, system prompt, sampling, tools. A field that is empty leaves the value to the
// model, whose defaults /openapi.json tells.

const SAMPLING = [
  ["temperature", "Temperature", 0.05],
  ["top_p", "Top p", 0.01],
  ["top_k", "Top k", 1],
  ["min_p", "Min p", 0.01],
  ["max_tokens", "Most tokens", 1],
  ["repetition_penalty", "Repetition penalty", 0.01],
  ["presence_penalty", "Presence penalty", 0.1],
  ["frequency_penalty", "Frequency penalty", 0.1],
  ["seed", "Seed", 1],
];

function samplingField([name, label, step]) {
  const input = el("input", {
    id: "set-" + name,
    type: "number",
    step: name === "seed" ? 1 : step,
    inputMode: "decimal",
    value: settings.sampling[name] ?? "",
    placeholder: { seed: "random", max_tokens: "all" }[name] || "model's",
    onchange: () => {
      const value = input.value.trim();
      if (value === "") delete settings.sampling[name];
      else if (Number.isFinite(Number(value))) settings.sampling[name] = Number(value);
      storeSettings();
    },
  });
  return el("label.field", null, el("span", null, label), input);
}

// Bounds and defaults of the numbers, from the server's own document.
async function fillSamplingHints() {
  const properties = (await apiDocument()).components.schemas.ChatCompletionRequest.properties;
  const ofChats = await chatSampling();
  for (const [name] of SAMPLING) {
    const schema = properties[name];
    const input = $("set-" + name);
    if (!schema || !input) continue;
    const range = schema.anyOf?.[0] || {};
    if (range.minimum !== undefined) input.min = range.minimum;
    if (range.maximum !== undefined && range.maximum < 1e15) input.max = range.maximum;
    const value = ofChats[name] ?? schema.default;
    if (value !== undefined) input.placeholder = String(value);
    input.title = range.description || "";
  }
}

// An array of tools as the API takes them, or what is wrong with the text.
function parsedTools(text) {
  if (!text.trim()) return { tools: null };
  try {
    const tools = JSON.parse(text);
    if (!Array.isArray(tools)) return { problem: "Tools are a JSON array." };
    return { tools: tools.length > 0 ? tools : null };
  } catch (error) {
    return { problem: "Tools are no JSON: " + error.message };
  }
}

function keyFields(onKey) {
  const key = el("input", {
    id: "set-key",
    type: "password",
    autocomplete: "off",
    spellcheck: false,
    value: apiKey(),
    placeholder: "none",
  });
  const keep = el("input", {
    id: "keep-key",
    type: "checkbox",
    checked: localStorage.getItem(KEY_ITEM) !== null,
  });
  const update = () => {
    setApiKey(key.value.trim(), keep.checked);
    onKey();
  };
  key.addEventListener("change", update);
  keep.addEventListener("change", update);
  return [
    el("label.field.long", null, el("span", null, "API key"), key),
    el(
      "label.check",
      null,
      keep,
      "Keep the key in this browser (otherwise until the tab is closed)",
    ),
  ];
}

const keyReason = () =>
  apiKey()
    ? "The server does not take this API key; give the one it was started with."
    : "This server needs an API key, so nothing can be asked before you give it here.";

// `reason`: why the dialog opened by itself.
function openSettings({ onKey, chat, focus, reason }) {
  const problem = el("p.problem", { role: "alert" });
  const area = (id, label, rows, name, placeholder) => {
    const node = el("textarea", {
      id,
      rows,
      value: settings[name],
      placeholder,
      spellcheck: name === "system",
      onchange: () => {
        settings[name] = node.value;
        problem.textContent = parsedTools(settings.tools).problem || "";
        storeSettings();
      },
    });
    return el("label.field.long", null, el("span", null, label), node);
  };
  const dialog = fill(
    $("settings"),
    el(
      "form",
      { method: "dialog" },
      el("h2", null, "Settings"),
      reason && el("p.reason", { id: "settings-reason", role: "alert" }, reason),
      ...keyFields(onKey),
      area("set-system", "System prompt", 3, "system", "none"),
      el("div.fields", null, ...SAMPLING.map(samplingField)),
      el(
        "label.check",
        null,
        el("input", {
          id: "set-logprobs",
          type: "checkbox",
          checked: settings.logprobs,
          onchange: (e) => {
            settings.logprobs = e.target.checked;
            storeSettings();
          },
        }),
        "Log-probabilities (point at a word of an answer)",
      ),
      area(
        "set-tools",
        "Tools (JSON array)",
        3,
        "tools",
        '[{"type":"function","function":{"name":"weather","parameters":{"type":"object"}}}]',
      ),
      problem,
      el(
        "div.actions",
        null,
        el(
          "button.plain",
          { type: "button", onclick: () => saveToFile(chat()) },
          "Save conversation to a file",
        ),
        el("span.grow"),
        el("button", { value: "done" }, "Done"),
      ),
    ),
  );
  problem.textContent = parsedTools(settings.tools).problem || "";
  if (!dialog.open) dialog.showModal();
  fillSamplingHints().catch(() => {}); // without the document the fields have no hints
  if (focus) $(focus).focus();
}

function saveToFile(chat) {
  const text = JSON.stringify(requestMessages(chat.messages), null, 2);
  const link = el("a", {
    href: URL.createObjectURL(new Blob([text], { type: "application/json" })),
    download: "conversation.json",
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
