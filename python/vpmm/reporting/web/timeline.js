// page: live, mapped, pending and free memory over time: drag to zoom, hover for values, click to see the address map then.
"use strict";
const SERIES = [["mapped", "mapped"], ["free", "free"], ["pending", "pending"], ["live", "live"]];

class Timeline {
  constructor(onMoment) {
    this.line = data.timeline;
    this.onMoment = onMoment;
    this.shown = new Set(SERIES.map(([key]) => key).filter((key) => this.line[key]));
    this.range = [this.line.t[0], Math.max(this.line.t[this.line.t.length - 1], this.line.t[0] + 1)];
    this.whole = this.range;
    this.svg = drawn("svg", { class: "chart", id: "timeline", role: "img", "aria-label": "memory over time" });
    this.reset = element("button", { type: "button", hidden: "", onclick: () => this.zoom(this.whole) }, "whole time");
    this.box = element("div", {}, element("div", { class: "row" }, ...this.legend(), element("span", { class: "grow" }), this.reset), this.svg);
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", () => { tip.hide(); this.cursor.setAttribute("visibility", "hidden"); });
    this.svg.addEventListener("pointerdown", (event) => this.press(event));
    this.svg.addEventListener("dblclick", () => this.zoom(this.whole));
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  legend() {
    return SERIES.filter(([key]) => this.line[key]).map(([key, name]) => {
      const made = element("button", { type: "button", title: "show or hide" }, element("span", { class: "legend", style: "margin:0" }, element("i", { style: `background:var(--${key})` }), name));
      made.addEventListener("click", () => {
        if (!this.shown.delete(key)) this.shown.add(key);
        made.style.opacity = this.shown.has(key) ? 1 : 0.45;
        this.draw();
      });
      return made;
    });
  }

  zoom(range) {
    this.range = range[1] - range[0] < 10 ? [range[0], range[0] + 10] : range;
    this.reset.hidden = this.range === this.whole;
    this.draw();
  }

  x(ns) { return this.left + ((ns - this.range[0]) / (this.range[1] - this.range[0])) * this.width; }
  time(x) { return this.range[0] + (Math.min(Math.max(x - this.left, 0), this.width) / this.width) * (this.range[1] - this.range[0]); }
  y(size) { return this.top + this.height * (1 - size / this.most); }

  draw() {
    const full = this.box.clientWidth;
    if (full === 0) return;
    Object.assign(this, { left: 74, top: 22, width: full - 74 - 14, height: 300 });
    const begin = indexAt(this.line.t, this.range[0]), end = indexAt(this.line.t, this.range[1]);
    let most = 1;
    for (const key of this.shown) for (let i = begin; i <= end; i += 1) most = Math.max(most, this.line[key][i]);
    const withCapacity = data.capacity && data.capacity < most * 1.6;
    this.most = Math.max(most, withCapacity ? data.capacity : 0) * 1.04;
    this.svg.setAttribute("viewBox", `0 0 ${full} 356`);
    this.svg.style.height = "356px";
    this.svg.replaceChildren(this.grid(), ...this.curves(begin, end), this.events(withCapacity));
    this.cursor = drawn("line", { class: "cursor", y1: this.top, y2: this.top + this.height, visibility: "hidden" });
    this.brush = drawn("rect", { y: this.top, height: this.height, fill: colour("accent"), opacity: 0.18, visibility: "hidden" });
    this.svg.append(this.brush, this.cursor);
  }

  grid() {
    const made = drawn("g");
    const step = 2 ** Math.max(Math.ceil(Math.log2(this.most / 7)), 0);
    for (let size = 0; size < this.most; size += step) {
      made.append(drawn("line", { class: "grid", x1: this.left, x2: this.left + this.width, y1: this.y(size), y2: this.y(size) }),
        drawn("text", { class: "y", x: this.left - 8, y: this.y(size) + 4, "text-anchor": "end" }, bytesText(size, Number.isInteger(size / 1024 ** Math.min(Math.floor(Math.log2(Math.max(size, 1)) / 10), 4)) ? 0 : 1)));
    }
    const span = this.range[1] - this.range[0], tick = nice(span / Math.max(3, this.width / 130));
    for (let at = Math.ceil(this.range[0] / tick) * tick; at <= this.range[1]; at += tick) {
      made.append(drawn("text", { class: "x", x: this.x(at), y: this.top + this.height + 20, "text-anchor": "middle" }, axisTime(at, tick)));
    }
    return made;
  }

  curves(begin, end) {
    return SERIES.filter(([key]) => this.shown.has(key)).map(([key]) => {
      const values = this.line[key], path = [];
      for (let i = begin; i <= end; i += 1) {
        const x = Math.max(this.x(this.line.t[i]), this.left).toFixed(1);
        path.push(i === begin ? `M${x} ${this.y(values[i]).toFixed(1)}` : `H${x}V${this.y(values[i]).toFixed(1)}`);
      }
      path.push(`H${this.x(Math.min(this.range[1], this.whole[1])).toFixed(1)}`);
      const line = drawn("path", { d: path.join(""), fill: "none", stroke: `var(--${key})`, "stroke-width": key === "live" ? 1.7 : 1.3, class: `curve ${key}` });
      if (key !== "live") return line;
      const first = Math.max(this.x(this.line.t[begin]), this.left);
      return drawn("g", {}, drawn("path", { d: `${path.join("")}V${this.y(0)}H${first}Z`, fill: "var(--live)", opacity: 0.13 }), line);
    });
  }

  events(withCapacity) {
    const made = drawn("g"), bottom = this.top + this.height;
    const inside = (ns) => ns >= this.range[0] && ns <= this.range[1];
    if (withCapacity) {
      made.append(drawn("line", { x1: this.left, x2: this.left + this.width, y1: this.y(data.capacity), y2: this.y(data.capacity), stroke: "var(--bad)", "stroke-dasharray": "6 4" }),
        drawn("text", { x: this.left + 6, y: this.y(data.capacity) - 5 }, `capacity ${bytesText(data.capacity)}`));
    }
    let last = -99;
    for (const [ns, text] of data.marks.filter(([ns]) => inside(ns))) {
      const x = this.x(ns), room = x - last > 60;
      made.append(drawn("line", { x1: x, x2: x, y1: this.top, y2: bottom, stroke: "var(--mapped)", "stroke-dasharray": "1 4" }));
      if (room) { made.append(drawn("text", { class: "mark", x: x + 3, y: this.top - 7 }, text.slice(0, 24))); last = x; }
    }
    for (const each of data.failures.filter((each) => inside(each.t)).slice(0, 200)) {
      const x = this.x(each.t);
      made.append(drawn("line", { class: "failure", x1: x, x2: x, y1: this.top, y2: bottom, stroke: "var(--bad)", "stroke-width": 1.5 }),
        drawn("path", { d: `M${x - 5} ${this.top - 8}h10l-5 8z`, fill: "var(--bad)" }));
    }
    if (inside(data.peak.t)) made.append(drawn("circle", { cx: this.x(data.peak.t), cy: this.y(data.peak.live), r: 4, fill: "var(--live)", stroke: "var(--card)", "stroke-width": 1.5 }));
    return made;
  }

  place(event) { return event.clientX - this.svg.getBoundingClientRect().left; }

  hover(event) {
    const x = this.place(event), ns = this.time(x), i = indexAt(this.line.t, ns);
    this.cursor.setAttribute("x1", this.x(ns));
    this.cursor.setAttribute("x2", this.x(ns));
    this.cursor.setAttribute("visibility", "visible");
    const near = (at) => Math.abs(this.x(at) - x) < 5;
    const lines = [`at ${timeText(Math.round(ns))}`, ...SERIES.filter(([key]) => this.line[key]).reverse().map(([key, name]) => `${name}  ${bytesText(this.line[key][i])}`)];
    data.marks.filter(([at]) => near(at)).slice(0, 5).forEach(([, text]) => lines.push(`mark: ${text}`));
    data.failures.filter((each) => near(each.t)).slice(0, 3).forEach((each) => lines.push(`failed: ${bytesText(each.bytes)}`));
    tip.show(event, lines.join("\n"));
  }

  // A drag zooms, a click goes to that moment of the address map.
  press(event) {
    const from = this.place(event);
    this.svg.setPointerCapture(event.pointerId);
    const move = (each) => {
      const [a, b] = [from, this.place(each)].sort((p, q) => p - q);
      this.brush.setAttribute("x", Math.max(a, this.left));
      this.brush.setAttribute("width", Math.max(Math.min(b, this.left + this.width) - Math.max(a, this.left), 0));
      this.brush.setAttribute("visibility", "visible");
    };
    const up = (each) => {
      this.svg.removeEventListener("pointermove", move);
      const to = this.place(each);
      this.brush.setAttribute("visibility", "hidden");
      if (Math.abs(to - from) > 4) this.zoom([this.time(Math.min(from, to)), this.time(Math.max(from, to))]);
      else this.onMoment(this.line.index[indexAt(this.line.t, this.time(to))]);
    };
    this.svg.addEventListener("pointermove", move);
    this.svg.addEventListener("pointerup", up, { once: true });
  }
}

// 1, 2 or 5 times a power of ten.
function nice(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return ([1, 2, 5].find((each) => each * power >= least) || 10) * power;
}

function axisTime(ns, tick) {
  if (tick >= 60e9) return `${(ns / 60e9).toFixed(1)} min`;
  if (tick >= 1e9) return `${Math.round(ns / 1e9)} s`;
  if (tick >= 1e6) return ns >= 1e9 ? `${(ns / 1e9).toFixed(tick >= 1e8 ? 1 : tick >= 1e7 ? 2 : 3)} s` : `${Math.round(ns / 1e6)} ms`;
  return ns >= 1e6 ? `${(ns / 1e6).toFixed(3)} ms` : `${(ns / 1e3).toFixed(tick >= 1e3 ? 0 : 1)} us`;
}
