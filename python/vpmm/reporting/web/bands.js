// page: each allocation as a band over time, oldest lowest; the smaller ones of a window are one band above them.
"use strict";
const MOST_BANDS = 2000;
const BAND_WAYS = [["stack", "by stack"], ["library", "by library"], ["tag", "by tag"], ["stream", "by stream"], ["size", "by size"]];

class Bands {
  constructor(lives, timeline) {
    Object.assign(this, { lives, timeline, line: timeline.line, height: 320, selected: -1, column: 0 });
    const ways = BAND_WAYS.filter(([way]) => way === "size" || new Set(firstOf(lives, way)).size > 1);
    this.way = ways[0][0];
    this.canvas = element("canvas", { id: "bands" });
    this.over = element("canvas", { id: "bands-over", class: "chart", tabindex: 0, role: "slider", "aria-label": "allocations over time: left and right change the moment, up and down the allocation", "aria-valuemin": 1, "aria-valuemax": Math.max(data.events, 1) });
    this.told = element("p", { class: "lead", id: "bands-told" });
    this.detail = element("pre", { id: "band", hidden: "", tabindex: 0, "aria-label": "the allocation" });
    const select = element("select", { "aria-label": "colours of the bands", onchange: () => { this.way = select.value; this.draw(); } },
      ...ways.map(([value, name]) => element("option", { value }, `coloured ${name}`)));
    this.box = element("div", {}, element("div", { class: "row" }, select), element("div", { class: "stacked" }, this.canvas, this.over), this.told, this.detail);
    this.over.addEventListener("pointermove", (event) => this.hover(event));
    this.over.addEventListener("pointerleave", () => { tip.hide(); this.outline(-1); });
    this.over.addEventListener("keydown", (event) => this.press(event));
    this.over.addEventListener("click", (event) => this.click(event));
    onWidth(this.box, () => this.draw());
    timeline.onZoom = () => this.draw();
  }

  draw() {
    const full = this.box.clientWidth;
    if (!full || !this.line.t.length) return;
    if (!this.timeline.width) { this.timeline.draw(); }
    this.columns = Math.max(Math.floor(this.timeline.width), 1);
    this.pick();
    this.choose();
    const scale = devicePixelRatio || 1;
    for (const canvas of [this.canvas, this.over]) {
      canvas.width = full * scale;
      canvas.height = (this.height + 30) * scale;
      canvas.style.height = `${this.height + 30}px`;
      canvas.getContext("2d").scale(scale, scale);
    }
    this.most = 1;
    for (const point of this.moments) this.most = Math.max(this.most, this.line.live[point]);
    this.most *= 1.04;
    this.paint(this.canvas.getContext("2d"));
    this.tell();
    this.column = Math.min(this.column, this.columns - 1);
    this.say();
  }

  // The point of each column: that with most live memory, or the last before where nothing happened.
  pick() {
    const { at, range } = this.timeline, { live } = this.line, step = (range[1] - range[0]) / this.columns;
    this.moments = new Int32Array(this.columns).fill(-1);
    this.first = indexAt(at, range[0]);
    this.last = indexAt(at, range[1]);
    let before = this.first;
    for (let i = this.first, column = 0; column < this.columns; column += 1) {
      const stop = range[0] + (column + 1) * step;
      let most = -1;
      for (; i <= this.last && (at[i] < stop || column === this.columns - 1); i += 1) {
        if (most < 0 || live[i] > live[most]) most = i;
        before = i;
      }
      this.moments[column] = most < 0 ? before : most;
    }
  }

  // The allocations that hold most for longest in the window, in the order of their beginning.
  choose() {
    const { begin, end, bytes, count } = this.lives, from = this.line.index[this.first], to = this.line.index[this.last] + 1;
    const inside = [];
    for (let i = 0; i < count && begin[i] < to; i += 1) if (end[i] > from) inside.push(i);
    const area = (i) => bytes[i] * (Math.min(end[i], to) - Math.max(begin[i], from));
    this.chosen = inside;
    if (inside.length > MOST_BANDS) {
      const least = Float64Array.from(inside, area).sort()[inside.length - MOST_BANDS];
      this.chosen = inside.filter((i) => area(i) >= least).slice(0, MOST_BANDS);
    }
    this.smaller = inside.length - this.chosen.length;
  }

  tell() {
    const events = this.line.index[this.last] - this.line.index[this.first] + 1, points = this.last - this.first + 1;
    const parts = [`${numberText(this.chosen.length)} allocations of this window are bands of their own, the oldest lowest`];
    if (this.smaller) parts.push(`${numberText(this.smaller)} smaller or shorter ones are the grey band above them`);
    if (data.allocations > this.lives.count) parts.push(`${numberText(data.allocations - this.lives.count)} more are not in this page, and are grey, too`);
    const columns = points > this.columns ? ", and each column of pixels shows the moment in it when most was live" : "";
    this.told.textContent = `${parts.join("; ")}. ${simplifiedText(points, events)}${columns}.`;
  }

  y(size) { return 8 + this.height * (1 - size / this.most); }

  paint(ink) {
    const { left, width } = this.timeline, { begin, end, bytes } = this.lives, { index, live } = this.line;
    const colours = Object.fromEntries(["soft", "line", "mapped", "card"].map((name) => [name, colour(name)]));
    ink.font = "12px sans-serif";
    ink.textAlign = "right";
    for (const size of sizeTicks(this.most)) {
      ink.fillStyle = colours.line;
      ink.fillRect(left, this.y(size), width, 1);
      ink.fillStyle = colours.soft;
      ink.fillText(roundText(size), left - 8, this.y(size) + 4);
    }
    for (const [x, text] of this.timeline.ticks()) {
      ink.textAlign = x > this.timeline.left + this.timeline.width - 24 ? "right" : "center";
      ink.fillText(text, x, this.height + 24);
    }
    const snap = (x) => Math.round(x * devicePixelRatio) / devicePixelRatio; // a part of a pixel would show as a seam
    let alive = [], next = 0, until = Infinity, from = 0, before = null;
    for (let column = 0; column <= this.columns; column += 1) {
      const now = column < this.columns ? index[this.moments[column]] : -1;
      if (now === before) continue;
      if (before !== null) this.stack(ink, alive, snap(left + from), snap(left + column) - snap(left + from), live[this.moments[from]], colours.mapped);
      if (now < 0) break;
      if (until <= now) alive = alive.filter((i) => end[i] > now);
      for (; next < this.chosen.length && begin[this.chosen[next]] <= now; next += 1) if (end[this.chosen[next]] > now) alive.push(this.chosen[next]);
      until = alive.reduce((least, i) => Math.min(least, end[i]), Infinity);
      [from, before] = [column, now];
    }
  }

  // One moment: neighbours thinner than a pixel are drawn together.
  stack(ink, alive, x, width, live, rest) {
    const { bytes } = this.lives;
    let size = 0, from = this.y(0);
    for (const i of alive) {
      size += bytes[i];
      const top = this.y(size);
      if (from - top < 0.75) continue;
      ink.fillStyle = this.colourOf(i);
      ink.globalAlpha = this.lives.isFound(i) ? 1 : 0.18;
      ink.fillRect(x, top, width, from - top > 4 ? from - top - 0.6 : from - top);
      from = top;
    }
    ink.globalAlpha = this.lives.found ? 0.18 : 1;
    ink.fillStyle = rest;
    const top = this.y(Math.max(live, size));
    if (from > top) ink.fillRect(x, top, width, from - top);
    ink.globalAlpha = 1;
  }

  colourOf(i) {
    const key = this.lives.key(i, this.way);
    return PALETTE[(this.way === "stack" ? i * 7 + key : key) % PALETTE.length];
  }

  alive(column) {
    const now = this.line.index[this.moments[column]];
    return this.chosen.filter((i) => this.lives.begin[i] <= now && now < this.lives.end[i]);
  }

  // The allocation under a place, -1: the smaller ones, null: nothing.
  hit(column, y) {
    let size = 0;
    for (const i of this.alive(column)) {
      size += this.lives.bytes[i];
      if (y >= this.y(size)) return i;
    }
    return y >= this.y(this.line.live[this.moments[column]]) ? -1 : null;
  }

  place(event) {
    const box = this.over.getBoundingClientRect();
    return [Math.floor(event.clientX - box.left - this.timeline.left), event.clientY - box.top];
  }

  hover(event) {
    const [column, y] = this.place(event);
    const hit = column < 0 || column >= this.columns || y > this.y(0) ? null : this.hit(column, y);
    this.outline(hit === null ? -1 : hit);
    if (hit === null) tip.hide();
    else tip.show(event, this.text(column, hit));
  }

  click(event) {
    const [column, y] = this.place(event);
    if (column < 0 || column >= this.columns || y > this.y(0)) return;
    this.column = column;
    const hit = this.hit(column, y);
    this.selected = hit === null ? -1 : hit;
    this.show();
  }

  text(column, i) {
    const point = this.moments[column];
    if (i >= 0) return this.lives.lines(i, this.line).join("\n");
    const own = this.alive(column).reduce((sum, each) => sum + this.lives.bytes[each], 0);
    return `smaller allocations, together ${bytesText(this.line.live[point] - own)} at ${timeText(this.line.t[point])}`;
  }

  // Left and right: the moment; up and down: the allocation in it.
  press(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageDown: -50, PageUp: 50, Home: -Infinity, End: Infinity }[event.key];
    if (step) this.column = Math.min(Math.max(this.column + step, 0), this.columns - 1);
    const alive = this.alive(this.column), at = alive.indexOf(this.selected);
    if (event.key === "ArrowUp") this.selected = alive[Math.min(at + 1, alive.length - 1)] ?? -1;
    else if (event.key === "ArrowDown") this.selected = at > 0 ? alive[at - 1] : -1;
    else if (!step) return;
    else if (at < 0) this.selected = -1;
    event.preventDefault();
    this.show();
  }

  show() {
    moment.go(this.line.index[this.moments[this.column]]);
    this.outline(this.selected);
    this.detail.hidden = this.selected < 0;
    this.detail.textContent = this.selected < 0 ? "" : this.text(this.column, this.selected);
    this.say();
  }

  say() {
    const point = this.moments[this.column];
    this.over.setAttribute("aria-valuenow", this.line.index[point] + 1);
    const what = this.selected < 0 ? "no allocation chosen" : this.text(this.column, this.selected).replaceAll("\n", ", ");
    this.over.setAttribute("aria-valuetext", `${timeText(this.line.t[point])}: ${bytesText(this.line.live[point])} live in ${this.alive(this.column).length} bands; ${what}`);
  }

  // The outline of one band, over the others, and the chosen column.
  outline(which) {
    const ink = this.over.getContext("2d"), { left } = this.timeline;
    ink.clearRect(0, 0, this.over.width, this.over.height);
    if (document.activeElement === this.over) {
      ink.fillStyle = colour("ink");
      ink.fillRect(left + this.column, 8, 1, this.height);
    }
    if (which < 0) return;
    ink.fillStyle = colour("ink");
    const { begin, end, bytes } = this.lives, older = this.chosen.slice(0, this.chosen.indexOf(which));
    for (let column = 0; column < this.columns; column += 1) {
      const now = this.line.index[this.moments[column]];
      if (now < begin[which] || now >= end[which]) continue;
      let below = 0;
      for (const i of older) if (begin[i] <= now && now < end[i]) below += bytes[i];
      ink.fillRect(left + column, this.y(below + bytes[which]), 1, 1.5);
      ink.fillRect(left + column, this.y(below) - 1.5, 1, 1.5);
    }
  }
}

// The keys of some thousand allocations, to see whether they differ.
function firstOf(lives, way) {
  const step = Math.max(Math.floor(lives.count / 5000), 1), made = [];
  for (let i = 0; i < lives.count; i += step) made.push(lives.key(i, way));
  return made;
}
