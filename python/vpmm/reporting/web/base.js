// page: what the other scripts use: the data, texts of sizes and times, elements, the tip beside the pointer, colours.
"use strict";
const page = JSON.parse(document.getElementById("data").textContent);
let data = page.gpus ? page.gpus[page.first] : page; // of the GPU that is shown
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const PALETTE = ["#3b76d6", "#d9772b", "#3a9a63", "#b04fc0", "#c2404a", "#0f93a8", "#8a7a1f", "#6a5fd0", "#b85c8e", "#5c7389"];

function bytesText(size, digits = 2) {
  let unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) { size /= 1024; unit += 1; }
  return `${unit === 0 ? size : size.toFixed(digits)} ${UNITS[unit]}`;
}

// Without digits that say nothing: 1.25 GiB, 2 GiB.
function roundText(size) {
  let unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) { size /= 1024; unit += 1; }
  return `${Number(size.toFixed(4))} ${UNITS[unit]}`;
}

// Whole powers of two and their multiples, below `most`.
function sizeTicks(most) {
  const step = 2 ** Math.max(Math.ceil(Math.log2(most / 7)), 0), made = [];
  for (let size = 0; size < most; size += step) made.push(size);
  return made;
}

// Whether all events of a window are in a curve.
function simplifiedText(points, events) {
  if (points >= events) return `Every event of this window is drawn: ${numberText(events)}`;
  return `Simplified: 1 of ${numberText(Math.round((10 * events) / points) / 10)} events is drawn, with the highest and the lowest value of each part`;
}

function timeText(ns) {
  if (ns < 1e3) return `${ns} ns`;
  if (ns < 1e6) return `${(ns / 1e3).toFixed(1)} us`;
  if (ns < 1e9) return `${(ns / 1e6).toFixed(1)} ms`;
  if (ns < 600e9) return `${(ns / 1e9).toFixed(2)} s`;
  return `${(ns / 60e9).toFixed(1)} min`;
}

const numberText = (n) => n.toLocaleString("en-US");
const percentText = (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(part * 10 < whole ? 1 : 0)} %` : "");

// An element; children are elements or texts, so that nothing of a recording is read as HTML.
function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function drawn(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((each) => each !== null && each !== undefined));
  return made;
}

const tip = {
  at: document.getElementById("tip"),
  show(event, text) {
    this.at.textContent = text;
    this.at.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.at;
    const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 12 : event.clientX + 16;
    this.at.style.left = `${Math.max(left, 4)}px`;
    this.at.style.top = `${Math.max(Math.min(event.clientY + 14, innerHeight - height - 6), 4)}px`;
  },
  hide() { this.at.hidden = true; },
};

function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim(); }

// Draws at once, and again when the width changes: in the next frame, since drawing changes the height.
function onWidth(box, draw) {
  let known = -1;
  new ResizeObserver(() => {
    if (box.clientWidth !== known) requestAnimationFrame(draw);
    known = box.clientWidth;
  }).observe(box);
}

// The last i with values[i] <= what, or 0.
function indexAt(values, what) {
  let low = 0, high = values.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (values[middle] <= what) low = middle; else high = middle - 1;
  }
  return low;
}

function section(id, title, lead, ...children) {
  const made = element("section", { id }, element("h2", {}, title), lead ? element("p", { class: "lead" }, lead) : null, ...children);
  document.getElementById("main").append(made);
  document.getElementById("nav").append(element("a", { href: `#${id}` }, title));
  return made;
}

// Rows are arrays; `columns` are [title, kind] with kind "n" for numbers, "label" for texts, "bars" for shares of 1.
// The roles keep it a table where a narrow window draws its rows as blocks.
function table(name, columns, rows) {
  const cell = (value, [title, kind]) => {
    const shown = kind === "bars" ? element("span", { class: "share", style: `width:${Math.max(value * 100, 0.5)}%` }) : value;
    return element("td", { class: kind, role: "cell", "data-title": title, ...(kind === "bars" ? { "aria-label": `${Math.round(value * 100)} %` } : {}) }, shown);
  };
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name }, element("table", { role: "table" },
    element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...columns.map(([title, kind]) => element("th", { class: kind, role: "columnheader", scope: "col" }, title)))),
    element("tbody", { role: "rowgroup" }, ...rows.map((row) => element("tr", { role: "row" }, ...row.map((value, i) => cell(value, columns[i])))))));
}

// Buttons of which one is on; `chosen(i)` is called at once for the first.
function choice(names, chosen, first = 0) {
  const row = element("span", { class: "row", style: "margin:0" });
  const pick = (which) => {
    [...row.children].forEach((each, i) => { each.classList.toggle("on", i === which); each.setAttribute("aria-pressed", i === which); });
    chosen(which);
  };
  names.forEach((name, i) => row.append(element("button", { type: "button", onclick: () => pick(i) }, name)));
  row.pick = pick;
  pick(first);
  return row;
}

// A slider for the moment that the sections show, which says in words what it stands on.
function momentSlider(id, line) {
  const made = element("input", { type: "range", id, min: 0, max: Math.max(data.events - 1, 0), "aria-label": "moment", oninput: () => moment.go(Number(made.value)) });
  const follow = () => {
    made.value = moment.index;
    const point = indexAt(line.index, moment.index);
    made.setAttribute("aria-valuetext", `after event ${numberText(moment.index + 1)} of ${numberText(data.events)}, at ${timeText(line.t[point] ?? 0)}, ${bytesText(line.live[point] ?? 0)} live`);
  };
  moment.followers.push(follow);
  follow();
  return made;
}

const drawers = []; // redrawn when the colours change

function header() {
  document.title = `VPMM report: ${data.title}`;
  document.getElementById("title").textContent = data.title;
  document.getElementById("summary").textContent = data.summary;
  document.getElementById("facts").replaceChildren(...data.facts.map(([label, value, kind]) => element("div", { class: `fact ${kind}` }, element("b", {}, value), element("span", {}, label))));
  document.getElementById("notes").replaceChildren(...data.notes.map((text) => element("div", { class: "note" }, text)));
}

function followTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = (name) => { document.documentElement.dataset.theme = name; drawers.forEach((each) => each.draw()); };
  const follow = () => theme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", follow);
  follow();
  document.getElementById("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
}
