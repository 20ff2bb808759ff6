// Line plots that move: a plot keeps the last points of its series and draws them as one SVG, over
// time as it passed (a tab that is not looked at has a gap), or over the last steps.

const PLOT_POINTS = 150;
const PLOT_SPAN_MS = 150000;
const PLOT_TIMES = 5; // marks of the axis, both ends included
const PLOT_WIDTH = 320;
const PLOT_HEIGHT = 120;

// The least round number that is not below `value`.
function roundTop(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((part) => part * unit >= value * 0.9999) * unit;
}

class Plot {
  // `series`: names; `text` shows a value; `top`: the axis' least end.
  // `of`: what the points are where they are no times.
  constructor(title, series, { text = numberText, top = 1, note = "", of = "" } = {}) {
    this.of = of;
    this.times = [];
    this.series = series.map((name) => ({ name, points: [] }));
    this.text = text;
    this.top = top;
    this.area = svg("svg", {
      viewBox: `0 0 ${PLOT_WIDTH} ${PLOT_HEIGHT}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": title,
    });
    this.now = el("dl.now");
    this.axis = el("div.times");
    this.peak = el("span.peak");
    this.node = el(
      "section.card.plot",
      { title: note },
      el("h3", null, title),
      this.now,
      el("div.area", null, this.peak, this.area),
      this.axis,
    );
  }

  add(values) {
    const now = performance.now();
    this.times.push(now);
    values.forEach((value, i) => this.series[i].points.push(value));
    while (this.times[0] < now - PLOT_SPAN_MS) {
      this.times.shift();
      for (const one of this.series) one.points.shift();
    }
    this.draw();
  }

  set(rows) {
    rows.forEach((points, i) => {
      this.series[i].points = points.slice(-PLOT_POINTS);
    });
    this.draw();
  }

  // The text of the axis at a share of its length before its end.
  mark(before) {
    if (this.of) {
      const count = Math.round(before * PLOT_POINTS);
      return count === 0 ? "the last" : count === PLOT_POINTS ? `${count} ${this.of} ago` : `−${count}`;
    }
    const at = new Date(Date.now() - before * PLOT_SPAN_MS);
    return at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  }

  draw() {
    const all = this.series.flatMap((one) => one.points).filter(Number.isFinite);
    const top = roundTop(Math.max(this.top, ...all));
    const y = (value) => PLOT_HEIGHT - 1 - (PLOT_HEIGHT - 3) * (value / top);
    const step = PLOT_WIDTH / (PLOT_POINTS - 1);
    const now = this.times[this.times.length - 1];
    const x = (k, count) =>
      this.of
        ? (PLOT_POINTS - count + k) * step
        : PLOT_WIDTH * (1 - (now - this.times[k]) / PLOT_SPAN_MS);
    const lines = this.series.map((one, i) => {
      let path = "";
      one.points.forEach((value, k) => {
        if (!Number.isFinite(value)) return;
        const isGap = !this.of && this.times[k] - this.times[k - 1] > 5000;
        const starts = path === "" || isGap || !Number.isFinite(one.points[k - 1]);
        path += `${starts ? "M" : "L"}${x(k, one.points.length).toFixed(1)} ${y(value).toFixed(1)}`;
        if (starts) path += "h1.5"; // a value without neighbours is a dot
      });
      return svg("path", {
        d: path || "M0 0",
        class: "line s" + i,
        "vector-effect": "non-scaling-stroke",
      });
    });
    const grid = [0.25, 0.5, 0.75].map((part) =>
      svg("path", {
        d: `M0 ${y(top * part)}H${PLOT_WIDTH}`,
        class: "grid",
        "vector-effect": "non-scaling-stroke",
      }),
    );
    const parts = [...Array(PLOT_TIMES).keys()].map((i) => i / (PLOT_TIMES - 1));
    const marks = parts.slice(1, -1).map((part) =>
      svg("path", {
        d: `M${PLOT_WIDTH * part} 0V${PLOT_HEIGHT}`,
        class: "grid",
        "vector-effect": "non-scaling-stroke",
      }),
    );
    fill(this.area, ...grid, ...marks, ...lines);
    fill(this.axis, ...parts.map((part) => el("span", null, this.mark(1 - part))));
    this.peak.textContent = this.text(top);
    fill(
      this.now,
      ...this.series.map((one, i) =>
        el(
          "div",
          null,
          el(`dt.s${i}`, null, one.name),
          el("dd", null, this.text(one.points[one.points.length - 1] ?? NaN)),
        ),
      ),
    );
  }
}
