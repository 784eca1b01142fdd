// page: what the other scripts use: the data, texts of sizes and times, elements, the tip beside the pointer, colours.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const PALETTE = ["#3b76d6", "#d9772b", "#3a9a63", "#b04fc0", "#c2404a", "#0f93a8", "#8a7a1f", "#6a5fd0", "#b85c8e", "#5c7389"];

function bytesText(size, digits = 2) {
  let unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) { size /= 1024; unit += 1; }
  return `${unit === 0 ? size : size.toFixed(digits)} ${UNITS[unit]}`;
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
function table(columns, rows) {
  const cell = (value, kind) => {
    if (kind !== "bars") return element("td", { class: kind }, value);
    return element("td", { class: kind }, element("span", { class: "share", style: `width:${Math.max(value * 100, 0.5)}%` }));
  };
  return element("div", { class: "scroll" }, element("table", {},
    columns.some(([title]) => title) ? element("thead", {}, element("tr", {}, ...columns.map(([title, kind]) => element("th", { class: kind }, title)))) : null,
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((value, i) => cell(value, columns[i][1])))))));
}

// Buttons of which one is on; `chosen(i)` is called at once for the first.
function choice(names, chosen, first = 0) {
  const row = element("span", { class: "row", style: "margin:0" });
  const pick = (which) => {
    [...row.children].forEach((each, i) => each.classList.toggle("on", i === which));
    chosen(which);
  };
  names.forEach((name, i) => row.append(element("button", { type: "button", onclick: () => pick(i) }, name)));
  row.pick = pick;
  pick(first);
  return row;
}
