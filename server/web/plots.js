// Line plots that move: a plot keeps the last points of its series and draws them as one SVG.

const PLOT_POINTS = 150;
const PLOT_WIDTH = 320;
const PLOT_HEIGHT = 120;

// The least round number that is not below `value`.
function roundTop(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((part) => part * unit >= value * 0.9999) * unit;
}

class Plot {
  // `series`: names; `text` shows a value; `top`: the axis' least end.
  constructor(title, series, { text = numberText, top = 1, note = "" } = {}) {
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
    this.peak = el("span.peak");
    this.node = el(
      "section.card.plot",
      { title: note },
      el("h3", null, title),
      this.now,
      el("div.area", null, this.peak, this.area),
    );
  }

  add(values) {
    values.forEach((value, i) => {
      const { points } = this.series[i];
      points.push(value);
      if (points.length > PLOT_POINTS) points.shift();
    });
    this.draw();
  }

  set(rows) {
    rows.forEach((points, i) => {
      this.series[i].points = points.slice(-PLOT_POINTS);
    });
    this.draw();
  }

  draw() {
    const all = this.series.flatMap((one) => one.points).filter(Number.isFinite);
    const top = roundTop(Math.max(this.top, ...all));
    const y = (value) => PLOT_HEIGHT - 1 - (PLOT_HEIGHT - 3) * (value / top);
    const step = PLOT_WIDTH / (PLOT_POINTS - 1);
    const lines = this.series.map((one, i) => {
      const offset = PLOT_POINTS - one.points.length;
      let path = "";
      one.points.forEach((value, k) => {
        if (!Number.isFinite(value)) return;
        const starts = path === "" || !Number.isFinite(one.points[k - 1]);
        path += `${starts ? "M" : "L"}${((offset + k) * step).toFixed(1)} ${y(value).toFixed(1)}`;
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
    fill(this.area, ...grid, ...lines);
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
