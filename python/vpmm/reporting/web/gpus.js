// page: several GPUs: a curve for each on one axis of time, and the choice of the one that the sections show.
"use strict";

// The moment on the axis of all GPUs. It is that of the sections, at the time of the chosen GPU.
const common = {
  index: 0,
  followers: [],
  time: null, // null: nothing was shown yet
  line: null,
  own: null, // the line of the chosen GPU
  go(index) {
    const point = Math.min(Math.max(Math.round(index), 0), this.line.t.length - 1);
    moment.go(this.own ? this.own.index[indexAt(this.own.t, this.line.t[point] - data.offset)] : 0);
    this.stand(point);
  },
  follow() { this.stand(indexAt(this.line.t, (this.own.t[indexAt(this.own.index, moment.index)] ?? 0) + data.offset)); },
  stand(point) {
    this.index = point;
    this.time = this.line.t[point];
    this.followers.forEach((each) => each());
  },
};

function choose(gpu) {
  data = page.gpus[gpu];
  delete document.body.dataset.ready;
  document.querySelectorAll("#main > section:not(#gpus), #nav > a:not([href='#gpus'])").forEach((each) => each.remove());
  drawers.splice(1);
  common.own = null;
  moment.followers = [];
  show((line) => {
    common.own = line;
    moment.index = common.time === null ? data.peak.index : line.index[indexAt(line.t, common.time - data.offset)] ?? 0;
    moment.followers.push(() => common.follow());
    common.follow();
  });
}

async function showGpus() {
  const names = page.gpus.map((each) => each.gpu), keys = names.map((_, i) => `gpu${i}`);
  keys.forEach((key, i) => document.documentElement.style.setProperty(`--${key}`, PALETTE[i % PALETTE.length]));
  common.line = readLine(await Columns.read("curves", 0, page.curve), ["t", "index", ...keys]);
  const about = { events: common.line.t.length, capacity: 0, marks: [], failures: [], peak: null };
  const timeline = new Timeline(common.line, keys.map((key, i) => [key, names[i]]), "gpus-timeline", about, common);
  const row = element("div", { class: "row" }, element("span", {}, "The rest of the page is of"));
  section("gpus", "Live memory of each GPU", "Requested bytes on one axis of time. Drag to zoom, double-click for the whole time, click for what was alive then.", timeline.box, row);
  drawers.push(timeline);
  row.append(choice(names, choose, page.first));
}
