// The conversation that is shown, and the answer that is under way, of which there is one at most.

const MAX_FILE = 512 * 1024; // bytes of an attached file; a context holds little more
const SLACK = 60; // pixels from the end within which the log follows the answer

class Chat {
  constructor() {
    this.chat = newChat();
    this.views = [];
    this.files = [];
    this.running = null; // { abort, view, chat }
    $("composer").addEventListener("submit", (e) => {
      e.preventDefault();
      this.send();
    });
    $("prompt").addEventListener("keydown", (e) => {
      if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
        e.preventDefault();
        this.send();
      }
    });
    $("prompt").addEventListener("input", () => this.fitPrompt());
    $("stop").addEventListener("click", () => this.stop());
    $("new-chat").addEventListener("click", () => this.open(newChat()));
    $("attach").addEventListener("click", () => $("files").click());
    $("files").addEventListener("change", (e) => {
      this.attach([...e.target.files]);
      e.target.value = "";
    });
    const section = $("conversation");
    section.addEventListener("dragover", (e) => {
      if (e.dataTransfer.types.includes("Files")) e.preventDefault();
    });
    section.addEventListener("drop", (e) => {
      if (e.dataTransfer.files.length > 0) {
        e.preventDefault();
        this.attach([...e.dataTransfer.files]);
      }
    });
    const current = sessionStorage.getItem(CURRENT_ITEM);
    const chats = storedChats();
    this.open(
      chats.find((chat) => chat.id === current) || (current === null && chats[0]) || newChat(),
      false,
    );
    window.addEventListener("storage", () => this.listChats());
    window.addEventListener("pagehide", () => {
      if (this.running) storeChat(this.running.chat);
    });
  }

  fitPrompt() {
    const area = $("prompt");
    area.style.height = "auto";
    area.style.height = Math.min(area.scrollHeight, window.innerHeight / 3) + "px";
  }

  async loadModels() {
    const list = (await getJson("v1/models")).data;
    const chosen = $("model").value;
    fill(
      $("model"),
      ...list.map((model) => el("option", { value: model.id }, model.id.split("/").pop())),
    );
    if (list.some((model) => model.id === chosen)) $("model").value = chosen;
  }

  open(chat, focuses = true) {
    // What the list has of it is a copy.
    if (chat.id === this.chat.id && this.views.length > 0) {
      this.showDrawer(false);
      return;
    }
    this.stop();
    this.chat = chat;
    sessionStorage.setItem(CURRENT_ITEM, chat.id);
    this.render();
    this.listChats();
    this.showDrawer(false);
    if (focuses) $("prompt").focus();
  }

  showDrawer(isOpen) {
    document.body.classList.toggle("drawer-open", isOpen);
    $("menu").ariaExpanded = String(isOpen);
  }

  listChats() {
    const chats = storedChats();
    fill(
      $("chats"),
      ...chats.map((chat) => {
        const title = chat.title || "Untitled";
        const name = el(
          "button.chat",
          {
            type: "button",
            title,
            onclick: () => this.open(chat),
            ondblclick: () => this.rename(chat),
          },
          title,
        );
        if (chat.id === this.chat.id) name.ariaCurrent = "true";
        return el(
          "li",
          null,
          name,
          el(
            "button.icon",
            {
              type: "button",
              ariaLabel: "Rename " + title,
              title: "Rename",
              onclick: () => this.rename(chat),
            },
            "✎",
          ),
          el(
            "button.icon",
            {
              type: "button",
              ariaLabel: "Delete " + title,
              title: "Delete",
              onclick: () => this.remove(chat),
            },
            "✕",
          ),
        );
      }),
    );
  }

  rename(chat) {
    const title = window.prompt("Name of the conversation", chat.title);
    if (title === null || !title.trim()) return;
    const target = chat.id === this.chat.id ? this.chat : chat;
    target.named = true;
    target.title = title.trim().slice(0, 60);
    storeChat(target);
    this.listChats();
  }

  remove(chat) {
    if (!window.confirm("Delete “" + (chat.title || "Untitled") + "”?")) return;
    const isOpen = chat.id === this.chat.id;
    if (isOpen) this.chat.isDeleted = true; // an answer under way does not bring it back
    deleteChat(chat.id);
    if (isOpen) this.open(storedChats()[0] || newChat());
    this.listChats();
  }

  render() {
    const { messages } = this.chat;
    this.views = messages.map((message, i) => this.viewOf(message, i));
    fill(
      $("log"),
      ...(messages.length > 0
        ? this.views.map((view) => view.node)
        : [
            el(
              "div.empty",
              null,
              el("p", null, "What shall we talk about?"),
              el(
                "p.faint",
                null,
                "Enter sends, Shift+Enter begins a line, Esc stops an answer. Conversations stay in this browser.",
              ),
            ),
          ]),
    );
    this.toEnd();
  }

  viewOf(message, index) {
    const isLast = index === this.chat.messages.length - 1;
    const actions = {};
    if (message.role === "assistant") {
      actions.regenerate = () => this.regenerate(index);
      if (message.content) {
        actions.edit = (text) => {
          message.content = text;
          delete message.logprobs;
          storeChat(this.chat);
          this.render();
        };
      }
      if (message.calls?.length > 0) {
        const answered = new Set(this.chat.messages.slice(index + 1).map((m) => m.callId));
        if (message.calls.some((call) => !answered.has(call.id)))
          actions.result = (call, text) => this.giveResult(index, call, text);
      }
    } else if (message.role === "user") {
      actions.edit = (text) => {
        this.cutAt(index + 1);
        message.content = text;
        this.answer();
      };
      if (isLast && !this.running) actions.regenerate = () => this.answer();
    }
    return new MessageView(message, actions);
  }

  cutAt(index) {
    this.stop();
    this.chat.messages.length = index;
  }

  regenerate(index) {
    this.cutAt(index);
    this.answer();
  }

  regenerateLast() {
    const index = this.chat.messages.findLastIndex((message) => message.role === "assistant");
    if (index > 0) this.regenerate(index);
  }

  // Results go behind the answer that calls; with the last one the model goes on.
  giveResult(index, call, text) {
    this.stop();
    const { messages } = this.chat;
    if (messages.some((m, i) => i > index && m.callId === call.id)) return;
    messages.push({ role: "tool", callId: call.id, callName: call.name, content: text });
    const given = new Set(messages.slice(index + 1).map((m) => m.callId));
    if (messages[index].calls.every((c) => given.has(c.id))) this.answer();
    else {
      storeChat(this.chat);
      this.render();
    }
  }

  async attach(files) {
    for (const file of files) {
      if (file.size > MAX_FILE) {
        toast(file.name + " has more than " + MAX_FILE / 1024 + " KiB.");
        continue;
      }
      try {
        const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
        if (text.includes("\0")) throw new Error("binary");
        this.files.push({ name: file.name, text });
      } catch {
        toast(file.name + " is no text in UTF-8.");
      }
    }
    this.listFiles();
  }

  listFiles() {
    fill(
      $("attached"),
      ...this.files.map((file) =>
        el(
          "li",
          null,
          file.name,
          el(
            "button.icon",
            {
              type: "button",
              ariaLabel: "Remove " + file.name,
              onclick: () => {
                this.files = this.files.filter((other) => other !== file);
                this.listFiles();
              },
            },
            "✕",
          ),
        ),
      ),
    );
  }

  send() {
    const content = $("prompt").value.trim();
    if (this.running || (!content && this.files.length === 0)) return;
    const message = { role: "user", content };
    if (this.files.length > 0) message.files = this.files;
    this.files = [];
    this.listFiles();
    $("prompt").value = "";
    this.fitPrompt();
    this.chat.messages.push(message);
    this.answer();
  }

  stop() {
    if (this.running) this.running.abort.abort();
  }

  requestBody() {
    const { tools, problem } = parsedTools(settings.tools);
    if (problem) throw new ApiError(0, problem);
    const body = {
      messages: requestMessages(this.chat.messages),
      stream: true,
      stream_options: { include_usage: true },
      ...settings.sampling,
    };
    if ($("model").value) body.model = $("model").value;
    if (tools) body.tools = tools;
    if (settings.logprobs) Object.assign(body, { logprobs: true, top_logprobs: 5 });
    return body;
  }

  async answer() {
    const chat = this.chat;
    const message = { role: "assistant", content: "", stats: {} };
    const run = { abort: new AbortController(), chat, message, view: null };
    let body;
    try {
      body = this.requestBody();
    } catch (error) {
      message.error = error.message;
    }
    chat.messages.push(message);
    this.running = run;
    this.render();
    run.view = this.views[this.views.length - 1];
    this.showRunning();
    run.view.update(true);
    try {
      if (body) await this.receive(body, run);
    } catch (error) {
      if (error.name === "AbortError") message.cut = true;
      else message.error = error.message || String(error);
      if (error.status === 401)
        openSettings({
          onKey: this.onKey,
          chat: () => this.chat,
          focus: "set-key",
          reason: keyReason(),
        });
    }
    if (this.running === run) this.running = null;
    storeChat(chat);
    this.showRunning();
    this.listChats();
    if (this.chat === chat) {
      const follows = this.isAtEnd();
      const index = chat.messages.indexOf(message);
      if (index >= 0 && this.views[index] === run.view) {
        const view = this.viewOf(message, index);
        run.view.node.replaceWith(view.node);
        this.views[index] = view;
      }
      if (follows) this.toEnd();
    }
  }

  // What is shown lags behind what has come, and the more the longer a drawing takes.
  async receive(body, run) {
    const { message, view, abort, chat } = run;
    const begin = performance.now();
    let first = 0;
    let last = 0;
    let drawing = 0;
    let stored = begin;
    const draw = () => {
      drawing = 0;
      const from = performance.now();
      const follows = this.chat === chat && this.isAtEnd();
      view.update(true);
      if (follows) this.toEnd();
      run.pause = Math.min(2000, Math.max(30, 6 * (performance.now() - from)));
      if (performance.now() - stored > 3000) {
        storeChat(chat);
        stored = performance.now();
      }
    };
    try {
      const asked = { ...(await chatSampling()), ...body };
      for await (const event of chatEvents(asked, abort.signal)) {
        const now = performance.now();
        if (event.usage) {
          Object.assign(message.stats, {
            prompt: event.usage.prompt_tokens,
            completion: event.usage.completion_tokens,
            cached: event.usage.prompt_tokens_details?.cached_tokens || 0,
          });
        }
        for (const choice of event.choices || []) {
          if (takeDelta(message, choice)) {
            first = first || now;
            last = now;
          }
        }
        if (!drawing) drawing = setTimeout(draw, run.pause || 0);
      }
    } finally {
      clearTimeout(drawing);
      if (first) message.stats.ttft = first - begin;
      const tokens = message.stats.completion - 1;
      if (tokens > 0 && last > first) message.stats.rate = tokens / ((last - first) / 1000);
    }
  }

  showRunning() {
    $("send").hidden = this.running !== null;
    $("stop").hidden = this.running === null;
  }

  isAtEnd() {
    const log = $("log");
    return log.scrollHeight - log.scrollTop - log.clientHeight < SLACK;
  }

  toEnd() {
    $("log").scrollTop = $("log").scrollHeight;
  }
}

// Adds what an event says of the answer. True: a token came.
function takeDelta(message, choice) {
  const delta = choice.delta || {};
  const reasoning = delta.reasoning_content || delta.reasoning;
  if (reasoning) message.reasoning = (message.reasoning || "") + reasoning;
  if (delta.content) message.content += delta.content;
  for (const part of delta.tool_calls || []) {
    message.calls = message.calls || [];
    const call =
      message.calls[part.index] ||
      (message.calls[part.index] = { id: "", name: "", arguments: "" });
    if (part.id) call.id = part.id;
    if (part.function?.name) call.name += part.function.name;
    call.arguments += part.function?.arguments || "";
  }
  const entries = choice.logprobs?.content;
  if (entries?.length > 0) message.logprobs = (message.logprobs || []).concat(entries);
  if (choice.finish_reason) message.stats.finish = choice.finish_reason;
  return Boolean(reasoning || delta.content || delta.tool_calls);
}
