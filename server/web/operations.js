// The second view: what the server does now, from /metrics and, where the key allows it,
// /debug/state, once a second while it is looked at.

const EVERY_MS = 1000;

// The Prometheus text: name -> sum over labels, and name{labels} -> value.
function parsedMetrics(text) {
  const sums = new Map();
  const rows = [];
  for (const line of text.split("\n")) {
    if (line === "" || line[0] === "#") continue;
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const value = Number(match[3]);
    sums.set(match[1], (sums.get(match[1]) || 0) + value);
    if (match[2]) rows.push({ name: match[1], labels: match[2], value });
  }
  return { at: performance.now(), sums, rows, get: (name) => sums.get(name) ?? NaN };
}

const labelOf = (row, name) =>
  new RegExp(`(?:^|,)${name}="((?:[^"\\\\]|\\\\.)*)"`).exec(row.labels)?.[1] || "";

class Operations {
  constructor() {
    this.before = null;
    this.timer = 0;
    this.tiles = {};
    this.plots = {
      requests: new Plot("Requests", ["running", "waiting"], { top: 4 }),
      tokens: new Plot("Tokens a second", ["generated", "prompt"], { top: 10 }),
      kv: new Plot("KV in use", ["in use", "cached"], {
        top: 100,
        text: (v) => (Number.isFinite(v) ? v.toFixed(1) + " %" : "–"),
        note: "Blocks that requests hold, and blocks that are kept for later prompts",
      }),
      hits: new Plot("Prefix cache hits", ["of tokens asked"], {
        top: 100,
        text: (v) => (Number.isFinite(v) ? v.toFixed(1) + " %" : "–"),
      }),
      latency: new Plot("Time to first token, and between tokens", ["first", "between"], {
        top: 1,
        text: timeText,
        note: "Means over the last second with any",
      }),
      steps: new Plot("Time of a step", ["all", "execute", "sample"], {
        top: 1,
        text: timeText,
        note: "The last steps, one point each",
        of: "steps",
      }),
    };
    this.problem = el("p.problem", { role: "status" });
    this.list = el("div.scroll");
    this.workers = el("div.scroll");
    fill(
      $("operations-view"),
      el(
        "div.page",
        null,
        this.problem,
        el(
          "div.tiles",
          null,
          ...[
            "Running",
            "Waiting",
            "KV in use",
            "Cache hits",
            "Tokens/s",
            "Answers",
            "Preempted",
            "Step",
          ].map((name) => {
            this.tiles[name] = el("b", null, "–");
            return el("div.card.tile", null, this.tiles[name], el("span", null, name));
          }),
        ),
        el("div.plots", null, ...Object.values(this.plots).map((plot) => plot.node)),
        el("section.card", null, el("h3", null, "Requests under way"), this.list),
        this.workers,
      ),
    );
  }

  start() {
    if (this.timer) return;
    const tick = async () => {
      if (document.visibilityState === "visible") await this.poll();
      if (this.timer) this.timer = setTimeout(tick, EVERY_MS);
    };
    this.timer = setTimeout(tick, 0);
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = 0;
  }

  async poll() {
    try {
      const metrics = parsedMetrics(await getText("metrics"));
      this.problem.textContent = "";
      this.showMetrics(metrics);
    } catch (error) {
      this.problem.textContent = error.message;
      return;
    }
    try {
      this.showState(await getJson("debug/state"));
    } catch (error) {
      this.plots.kv.add([this.kv, NaN]);
      fill(
        this.list,
        el(
          "p.faint",
          null,
          error.status === 401
            ? "Steps and requests need the API key: give it under Settings."
            : error.message,
        ),
      );
    }
  }

  // Of what grew since the last look: its rate, its mean.
  showMetrics(now) {
    const before = this.before;
    this.before = now;
    const { plots, tiles } = this;
    const running = now.get("vllm:num_requests_running");
    const waiting = now.get("vllm:num_requests_waiting");
    const kv = now.get("vllm:kv_cache_usage_perc") * 100;
    tiles.Running.textContent = numberText(running);
    tiles.Waiting.textContent = numberText(waiting);
    tiles["KV in use"].textContent = Number.isFinite(kv) ? kv.toFixed(1) + " %" : "–";
    tiles.Answers.textContent = numberText(now.get("vllm:request_success_total"));
    tiles.Preempted.textContent = numberText(now.get("vllm:num_preemptions_total"));
    plots.requests.add([running, waiting]);
    this.kv = kv;
    this.showWorkers(now);
    const all =
      now.get("vllm:prefix_cache_hits_total") / now.get("vllm:prefix_cache_queries_total");
    tiles["Cache hits"].textContent = Number.isFinite(all) ? (all * 100).toFixed(1) + " %" : "–";
    if (!before) return;
    const seconds = (now.at - before.at) / 1000;
    const grown = (name) => Math.max(0, now.get(name) - before.get(name));
    const mean = (name) => (grown(name + "_sum") / grown(name + "_count")) * 1000;
    const generated = grown("vllm:generation_tokens_total") / seconds;
    tiles["Tokens/s"].textContent = numberText(generated);
    plots.tokens.add([generated, grown("vllm:prompt_tokens_total") / seconds]);
    const asked = grown("vllm:prefix_cache_queries_total");
    plots.hits.add([asked > 0 ? (grown("vllm:prefix_cache_hits_total") / asked) * 100 : NaN]);
    plots.latency.add([
      mean("vllm:time_to_first_token_seconds"),
      mean("vllm:inter_token_latency_seconds"),
    ]);
  }

  showState(state) {
    const blocks = state.kv_blocks;
    this.plots.kv.add([this.kv, blocks.total > 0 ? (blocks.cached / blocks.total) * 100 : NaN]);
    const { steps } = state;
    this.plots.steps.set(
      ["ms", "execute_ms", "sample_ms"].map((name) => steps.map((step) => step[name])),
    );
    this.tiles.Step.textContent = steps.length > 0 ? timeText(steps[steps.length - 1].ms) : "–";
    if (state.requests.length === 0) {
      fill(this.list, el("p.faint", null, "None."));
      return;
    }
    const columns = [
      ["Request", (r) => r.id],
      ["State", (r) => r.status],
      ["Age", (r) => timeText(r.age_ms)],
      ["Prompt", (r) => r.prompt_tokens],
      ["Cached", (r) => r.cached_tokens],
      ["Generated", (r) => r.generated_tokens],
      ["Most", (r) => r.max_tokens],
      ["Blocks", (r) => r.blocks],
    ];
    fill(
      this.list,
      el(
        "table",
        null,
        el("thead", null, el("tr", null, ...columns.map(([name]) => el("th", null, name)))),
        el(
          "tbody",
          null,
          ...state.requests
            .slice(0, 200)
            .map((request) =>
              el("tr", null, ...columns.map(([, of]) => el("td", null, String(of(request))))),
            ),
        ),
      ),
      state.requests.length > 200 && el("p.faint", null, `and ${state.requests.length - 200} more`),
    );
  }

  // A router's workers; elsewhere there are none.
  showWorkers(metrics) {
    const states = metrics.rows.filter(
      (row) => row.name === "sluice:router_worker_state" && row.value === 1,
    );
    if (states.length === 0) {
      fill(this.workers);
      return;
    }
    const requests = new Map(
      metrics.rows
        .filter((row) => row.name === "sluice:router_worker_requests")
        .map((row) => [labelOf(row, "worker"), row.value]),
    );
    fill(
      this.workers,
      el(
        "section.card",
        null,
        el("h3", null, "Workers"),
        el(
          "table",
          null,
          el(
            "thead",
            null,
            el("tr", null, ...["Worker", "State", "Requests"].map((name) => el("th", null, name))),
          ),
          el(
            "tbody",
            null,
            ...states.map((row) =>
              el(
                "tr",
                null,
                el("td", null, labelOf(row, "worker")),
                el("td", null, labelOf(row, "status")),
                el("td", null, String(requests.get(labelOf(row, "worker")) ?? 0)),
              ),
            ),
          ),
        ),
      ),
    );
  }
}
