// One message on the page, and messages as a request has them.

// The text of a user's message with its files in front, as a request has it.
function textWithFiles(message) {
  const files = (message.files || []).map(({ name, text }) => {
    const longest = Math.max(
      2,
      ...[...text.matchAll(/`{3,}/g)].slice(0, 1000).map((run) => run[0].length),
    );
    const fence = "`".repeat(longest + 1); // what the file has of them ends nothing
    return `File ${name}:\n${fence}\n${text}\n${fence}\n\n`;
  });
  return files.join("") + message.content;
}

function requestMessages(messages) {
  const out = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  for (const message of messages) {
    if (message.error && !message.content && !message.calls?.length) continue;
    if (message.role === "tool") {
      out.push({ role: "tool", tool_call_id: message.callId, content: message.content });
    } else if (message.role === "user") {
      out.push({ role: "user", content: textWithFiles(message) });
    } else {
      const one = { role: "assistant", content: message.content };
      if (message.calls?.length) {
        one.tool_calls = message.calls.map((call) => ({
          id: call.id,
          type: "function",
          function: { name: call.name, arguments: call.arguments },
        }));
      }
      out.push(one);
    }
  }
  return out;
}

function statsText(stats) {
  if (!stats) return "";
  const parts = [];
  if (stats.completion !== undefined) parts.push(`${stats.prompt} + ${stats.completion} tokens`);
  if (stats.cached) parts.push(`${stats.cached} cached`);
  if (stats.ttft !== undefined) parts.push("first after " + timeText(stats.ttft));
  if (stats.rate) parts.push(numberText(stats.rate) + " tokens/s");
  if (stats.finish && !["stop", "tool_calls"].includes(stats.finish)) {
    parts.push(stats.finish === "length" ? "cut at the most tokens" : stats.finish);
  }
  return parts.join(" · ");
}

// Tokens one by one, each with its probability under the pointer or the focus.
function logprobNodes(entries) {
  return entries.map((entry) => {
    const chance = (lp) => (Math.exp(lp) * 100).toFixed(1) + " %";
    const level = entry.logprob > -0.2 ? 0 : entry.logprob > -1 ? 1 : entry.logprob > -2.5 ? 2 : 3;
    const lines = [
      `${JSON.stringify(entry.token)}  ${chance(entry.logprob)}  (${entry.logprob.toFixed(3)})`,
      ...(entry.top_logprobs || [])
        .filter((top) => top.token !== entry.token)
        .map((top) => `${JSON.stringify(top.token)}  ${chance(top.logprob)}`),
    ];
    const node = el(
      `span.token.p${level}`,
      { onmouseenter: () => showTip(node, lines), onmouseleave: hideTip },
      entry.token,
    );
    return node;
  });
}

class MessageView {
  // `actions`: { regenerate, edit(text), remove, result(call, text) }; those that are absent have no button.
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.body = el("div.body");
    this.reasoning = el("div.body");
    this.thinking = el("span", null, "Reasoning");
    this.fold = el(
      "details.fold",
      { hidden: true },
      el("summary", null, this.thinking),
      this.reasoning,
    );
    this.calls = el("div");
    this.error = el("p.problem", { hidden: true, role: "alert" });
    this.stats = el("span.stats.faint");
    this.buttons = el("span.buttons");
    this.node = el(
      `article.message.${message.role}`,
      { ariaLabel: message.role },
      this.fold,
      this.body,
      this.calls,
      this.error,
      el("footer", null, this.buttons, el("span.grow"), this.stats),
    );
    this.showsTokens = true; // where there are log-probabilities
    this.update(false);
  }

  update(isRunning) {
    const { message } = this;
    const isUser = message.role !== "assistant";
    this.node.classList.toggle("running", isRunning);
    this.node.ariaBusy = String(isRunning);
    this.fold.hidden = !message.reasoning;
    if (message.reasoning && (this.fold.open || !isRunning || !this.reasoning.firstChild))
      showMarkdown(this.reasoning, message.reasoning);
    this.thinking.textContent = isRunning && !message.content ? "Reasoning …" : "Reasoning";
    if (this.fold.ontoggle === null)
      this.fold.ontoggle = () => showMarkdown(this.reasoning, message.reasoning || "");
    if (isUser) this.showUser();
    else if (this.showsTokens && message.logprobs && !isRunning) {
      this.body.shownBlocks = [];
      fill(this.body, el("div.tokens", null, ...logprobNodes(message.logprobs)));
    } else {
      if (!this.body.shownBlocks?.length) this.body.replaceChildren();
      showMarkdown(this.body, message.content || "");
    }
    this.showCalls(isRunning);
    this.error.hidden = !message.error;
    this.error.textContent = message.error || "";
    this.stats.textContent = message.cut
      ? ["stopped", statsText(message.stats)].filter(Boolean).join(" · ")
      : statsText(message.stats);
    this.showButtons(isRunning);
  }

  showUser() {
    const { message } = this;
    fill(
      this.body,
      message.role === "tool" &&
        el("div.faint", null, "Result of " + (message.callName || "a tool")),
      ...(message.files || []).map((file) =>
        el(
          "details.fold",
          null,
          el("summary", null, `${file.name} (${numberText(file.text.length, 0)} characters)`),
          el("pre", null, ...plainText(file.text)),
        ),
      ),
      el("div.plain-text", null, ...plainText(message.content)),
    );
  }

  showCalls(isRunning) {
    const calls = this.message.calls || [];
    if (calls.length === 0) return;
    fill(
      this.calls,
      ...calls.map((call) => {
        let shown = call.arguments;
        if (!isRunning) {
          try {
            shown = JSON.stringify(JSON.parse(call.arguments), null, 2);
          } catch {
            /* shown as it came */
          }
        }
        const answer =
          this.actions.result &&
          !isRunning &&
          el(
            "form.result",
            {
              onsubmit: (e) => {
                e.preventDefault();
                this.actions.result(call, e.target.elements.result.value);
              },
            },
            el("input", {
              name: "result",
              placeholder: "Result of this call",
              ariaLabel: "Result of " + call.name,
            }),
            el("button", null, "Give"),
          );
        return el(
          "details.fold.call",
          { open: true },
          el("summary", null, "Calls ", el("code", null, call.name)),
          el("pre", { tabIndex: 0 }, ...plainText(shown)),
          answer,
        );
      }),
    );
  }

  showButtons(isRunning) {
    const { message, actions } = this;
    if (isRunning) {
      fill(this.buttons);
      return;
    }
    const button = (label, onclick, title) =>
      el("button.plain", { type: "button", onclick, title }, label);
    fill(
      this.buttons,
      message.content && button("Copy", (e) => copyText(message.content, e.target)),
      actions.edit && button("Edit", () => this.edit()),
      actions.regenerate && button("Regenerate", actions.regenerate, "Alt+R"),
      message.logprobs &&
        button(this.showsTokens ? "As text" : "As tokens", () => {
          this.showsTokens = !this.showsTokens;
          this.update(false);
        }),
    );
  }

  edit() {
    const area = el("textarea", {
      rows: Math.min(12, this.message.content.split("\n").length + 1),
      value: this.message.content,
      ariaLabel: "Edit the message",
    });
    const close = () => {
      this.update(false);
    };
    const send = () => {
      if (area.value.trim()) this.actions.edit(area.value);
    };
    area.addEventListener("keydown", (e) => {
      if (e.key === "Escape") {
        e.stopPropagation();
        close();
      }
      if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) {
        e.preventDefault();
        send();
      }
    });
    fill(
      this.body,
      area,
      el(
        "div.actions",
        null,
        el(
          "button",
          { type: "button", onclick: send, title: "Ctrl+Enter" },
          this.message.role === "user" ? "Ask again" : "Keep",
        ),
        el("button.plain", { type: "button", onclick: close }, "Cancel"),
      ),
    );
    this.body.shownBlocks = [];
    area.focus();
  }
}
