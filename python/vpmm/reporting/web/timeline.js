// page: live, mapped, pending and free memory over time: drag to zoom, hover for values, click for what was alive then.
"use strict";
const SERIES = [["mapped", "mapped"], ["free", "free"], ["pending", "pending"], ["live", "live"]];

class Timeline {
  // `about` has the events, marks and failures; the vertical line stands at `itsMoment`.
  constructor(line, series = SERIES, id = "timeline", about = data, itsMoment = moment) {
    Object.assign(this, { line, series, about, moment: itsMoment });
    this.shown = new Set(this.series.map(([key]) => key).filter((key) => this.line[key]));
    this.onZoom = () => {};
    this.svg = drawn("svg", { class: "chart", id, tabindex: 0, role: "slider", "aria-label": "memory over time: left and right change the moment, plus and minus zoom, 0 shows the whole", "aria-valuemin": 1, "aria-valuemax": Math.max(this.about.events, 1), "aria-valuenow": 1 });
    this.reset = element("button", { type: "button", hidden: "", onclick: () => this.zoom(this.whole) }, "whole time");
    this.told = element("p", { class: "lead", id: "timeline-told" });
    this.axis = choice(["by time", "by event"], (i) => this.lay(i === 0));
    this.box = element("div", {}, element("div", { class: "row" }, ...this.legend(), element("span", { class: "grow" }), this.reset, series === SERIES ? this.axis : null), this.svg, series === SERIES ? this.told : "");
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", () => { tip.hide(); this.mark(); });
    this.svg.addEventListener("pointerdown", (event) => this.press(event));
    this.svg.addEventListener("dblclick", () => this.zoom(this.whole));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.moment.followers.push(() => this.mark());
    onWidth(this.box, () => { if (this.box.clientWidth !== this.full) this.draw(); });
  }

  // By time, or one step for each event, so that bursts are wide.
  lay(byTime) {
    this.byTime = byTime;
    this.at = byTime ? this.line.t : this.line.index;
    this.whole = [this.at[0] ?? 0, Math.max(this.at[this.at.length - 1] ?? 0, (this.at[0] ?? 0) + 1)];
    this.range = this.whole;
    if (this.box) this.zoom(this.whole);
  }

  placeOf(ns, index) { return this.byTime ? ns : index; }

  legend() {
    return this.series.filter(([key]) => this.line[key]).map(([key, name]) => {
      const made = element("button", { type: "button", title: "show or hide", "aria-pressed": true }, element("span", { class: "legend", style: "margin:0" }, element("i", { style: `background:var(--${key})` }), name));
      made.addEventListener("click", () => {
        if (!this.shown.delete(key)) this.shown.add(key);
        made.setAttribute("aria-pressed", this.shown.has(key));
        this.draw();
      });
      return made;
    });
  }

  zoom(range) {
    this.range = range[1] - range[0] < 10 ? [range[0], range[0] + 10] : range;
    this.reset.hidden = this.range === this.whole;
    this.draw();
    this.onZoom();
  }

  x(ns) { return this.left + ((ns - this.range[0]) / (this.range[1] - this.range[0])) * this.width; }
  time(x) { return this.range[0] + (Math.min(Math.max(x - this.left, 0), this.width) / this.width) * (this.range[1] - this.range[0]); }
  y(size) { return this.top + this.height * (1 - size / this.most); }

  draw() {
    const full = this.box.clientWidth;
    if (full === 0 || !this.at.length) return;
    Object.assign(this, { full, left: 74, top: 22, width: full - 74 - 14, height: 300 });
    const begin = indexAt(this.at, this.range[0]), end = indexAt(this.at, this.range[1]);
    let most = 1;
    for (const values of [...this.shown].map((key) => this.line[key])) for (let i = begin; i <= end; i += 1) if (values[i] > most) most = values[i];
    const withCapacity = this.about.capacity && this.about.capacity < most * 1.6;
    this.most = Math.max(most, withCapacity ? this.about.capacity : 0) * 1.04;
    this.svg.setAttribute("viewBox", `0 0 ${full} 356`);
    this.svg.style.height = "356px";
    this.svg.replaceChildren(this.grid(), ...this.curves(begin, end), this.events(withCapacity));
    this.cursor = drawn("line", { class: "cursor", y1: this.top, y2: this.top + this.height, visibility: "hidden" });
    this.brush = drawn("rect", { y: this.top, height: this.height, fill: colour("accent"), opacity: 0.18, visibility: "hidden" });
    this.svg.append(this.brush, this.cursor);
    this.told.textContent = `${simplifiedText(end - begin + 1, this.line.index[end] - this.line.index[begin] + 1)}.`;
    this.mark();
  }

  // The vertical line stands at the moment of the other sections.
  mark() {
    if (!this.cursor) return;
    const point = indexAt(this.line.index, this.moment.index), inside = this.at[point] >= this.range[0] && this.at[point] <= this.range[1];
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, this.x(this.at[point]));
    this.cursor.setAttribute("visibility", inside ? "visible" : "hidden");
    this.svg.setAttribute("aria-valuenow", this.moment.index + 1);
    this.svg.setAttribute("aria-valuetext", this.values(point).join(", "));
  }

  values(point) {
    return [`at ${timeText(this.line.t[point])}, event ${numberText(this.line.index[point] + 1)}`, ...this.series.filter(([key]) => this.line[key]).reverse().map(([key, name]) => `${name}  ${bytesText(this.line[key][point])}`)];
  }

  ticks() {
    const span = this.range[1] - this.range[0], tick = nice(span / Math.max(2, this.width / 130)), made = [];
    for (let at = Math.ceil(this.range[0] / tick) * tick; at <= this.range[1]; at += tick) {
      if (this.byTime || Number.isInteger(at)) made.push([this.x(at), this.byTime ? axisTime(at, tick) : `event ${numberText(at)}`]);
    }
    return made;
  }

  key(event) {
    const point = indexAt(this.line.index, this.moment.index), [from, to] = this.range, here = this.at[point];
    const points = Math.max(Math.round((indexAt(this.at, to) - indexAt(this.at, from)) / 100), 1);
    const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: points, PageDown: -points, Home: -Infinity, End: Infinity }[event.key];
    if (step) this.moment.go(this.line.index[Math.min(Math.max(point + step, 0), this.at.length - 1)]);
    else if (event.key === "+" || event.key === "-") {
      const half = ((to - from) / 2) * (event.key === "+" ? 0.5 : 2);
      const range = [Math.max(here - half, this.whole[0]), Math.min(here + half, this.whole[1])];
      this.zoom(range[0] <= this.whole[0] && range[1] >= this.whole[1] ? this.whole : range);
    } else if (event.key === "0") this.zoom(this.whole);
    else return;
    event.preventDefault();
  }

  grid() {
    const made = drawn("g");
    for (const size of sizeTicks(this.most)) {
      made.append(drawn("line", { class: "grid", x1: this.left, x2: this.left + this.width, y1: this.y(size), y2: this.y(size) }),
        drawn("text", { class: "y", x: this.left - 8, y: this.y(size) + 4, "text-anchor": "end" }, roundText(size)));
    }
    for (const [x, text] of this.ticks()) {
      const anchor = x > this.left + this.width - 24 ? "end" : "middle"; // none leaves the picture
      made.append(drawn("text", { class: "x", x, y: this.top + this.height + 20, "text-anchor": anchor }, text));
    }
    return made;
  }

  // Steps; those within half a pixel are one line from the lowest to the highest.
  path(values, begin, end) {
    const path = [];
    let x = 0, low = 0, high = 0;
    const flush = (i) => path.push(low < high ? `V${this.y(low).toFixed(1)}V${this.y(high).toFixed(1)}V${this.y(values[i]).toFixed(1)}` : `V${this.y(low).toFixed(1)}`);
    const { at, left, range } = this, scale = this.width / (range[1] - range[0]);
    for (let i = begin; i <= end; i += 1) {
      const next = Math.round(Math.max(left + (at[i] - range[0]) * scale, left) * 2) / 2;
      if (i > begin && next === x) { low = Math.min(low, values[i]); high = Math.max(high, values[i]); continue; }
      if (i > begin) flush(i - 1);
      path.push(i > begin ? `H${next}` : `M${next} ${this.y(values[i]).toFixed(1)}`);
      [x, low, high] = [next, values[i], values[i]];
    }
    flush(end);
    path.push(`H${this.x(Math.min(this.range[1], this.whole[1])).toFixed(1)}`);
    return path.join("");
  }

  curves(begin, end) {
    return this.series.filter(([key]) => this.shown.has(key)).map(([key]) => {
      const path = this.path(this.line[key], begin, end);
      const line = drawn("path", { d: path, fill: "none", stroke: `var(--${key})`, "stroke-width": key === this.series.at(-1)[0] ? 1.7 : 1.3, class: `curve ${key}` });
      if (key !== "live") return line;
      const first = Math.max(this.x(this.at[begin]), this.left);
      return drawn("g", {}, drawn("path", { d: `${path}V${this.y(0)}H${first}Z`, fill: "var(--live)", opacity: 0.13 }), line);
    });
  }

  events(withCapacity) {
    const made = drawn("g"), bottom = this.top + this.height;
    const inside = (at) => at >= this.range[0] && at <= this.range[1];
    if (withCapacity) {
      made.append(drawn("line", { x1: this.left, x2: this.left + this.width, y1: this.y(this.about.capacity), y2: this.y(this.about.capacity), stroke: "var(--bad)", "stroke-dasharray": "6 4" }),
        drawn("text", { x: this.left + 6, y: this.y(this.about.capacity) - 5 }, `capacity ${bytesText(this.about.capacity)}`));
    }
    let last = -99;
    for (const [at, text] of this.about.marks.map(([ns, text, index]) => [this.placeOf(ns, index), text]).filter(([at]) => inside(at))) {
      const x = this.x(at), ends = x + 3 + 6.5 * Math.min(text.length, 24);
      const room = x - last > 60 && ends < this.left + this.width + 16; // no half words at the edge
      made.append(drawn("line", { x1: x, x2: x, y1: this.top, y2: bottom, stroke: "var(--mapped)", "stroke-dasharray": "1 4" }));
      if (room) { made.append(drawn("text", { class: "mark", x: x + 3, y: this.top - 7 }, text.slice(0, 24))); last = x; }
    }
    for (const each of this.about.failures.map((each) => this.placeOf(each.t, each.index)).filter(inside).slice(0, 200)) {
      const x = this.x(each);
      made.append(drawn("line", { class: "failure", x1: x, x2: x, y1: this.top, y2: bottom, stroke: "var(--bad)", "stroke-width": 1.5 }),
        drawn("path", { d: `M${x - 5} ${this.top - 8}h10l-5 8z`, fill: "var(--bad)" }));
    }
    const peak = this.about.peak ? this.placeOf(this.about.peak.t, this.about.peak.index) : NaN;
    if (inside(peak)) made.append(drawn("circle", { cx: this.x(peak), cy: this.y(this.about.peak.live), r: 4, fill: "var(--live)", stroke: "var(--card)", "stroke-width": 1.5 }));
    return made;
  }

  place(event) { return event.clientX - this.svg.getBoundingClientRect().left; }

  hover(event) {
    const x = this.place(event), at = this.time(x), i = indexAt(this.at, at);
    this.cursor.setAttribute("x1", this.x(at));
    this.cursor.setAttribute("x2", this.x(at));
    this.cursor.setAttribute("visibility", "visible");
    const near = (ns, index) => Math.abs(this.x(this.placeOf(ns, index)) - x) < 5;
    const lines = this.values(i);
    this.about.marks.filter(([ns, , index]) => near(ns, index)).slice(0, 5).forEach(([, text]) => lines.push(`mark: ${text}`));
    this.about.failures.filter((each) => near(each.t, each.index)).slice(0, 3).forEach((each) => lines.push(`failed: ${bytesText(each.bytes)}`));
    tip.show(event, lines.join("\n"));
  }

  // A drag zooms, a click goes to that moment in all sections.
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
      else this.moment.go(this.line.index[indexAt(this.at, this.time(to))]);
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
