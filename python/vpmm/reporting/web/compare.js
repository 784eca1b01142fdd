// page: two recordings: live memory of both on one axis, and tables of the differences.
"use strict";
const COMPARED = [["first", data.names[0]], ["second", data.names[1]]];

async function start() {
  header();
  followTheme();
  const line = readLine(await Columns.read("curves", 0, data.curve), ["t", "index", "first", "second"]);
  const timeline = new Timeline(line, COMPARED);
  section("time", "Live memory over time", "Requested bytes since the beginning of each recording. Drag to zoom, double-click for the whole time.", timeline.box);
  const columns = [["what", "label"], ["first", "n"], ["second", "n"], ["difference", "n"]];
  section("differences", "Differences", null, table("differences", columns, data.differences));
  const below = element("div"), ways = Object.keys(data.groups).filter((way) => data.groups[way].length);
  if (ways.length) {
    const row = choice(ways.map((way) => `by ${way}`), (i) => below.replaceChildren(table(`differences by ${ways[i]}`, [[ways[i], "label"], ...columns.slice(1)], data.groups[ways[i]])));
    section("alive", "What was alive at the peaks", "Each recording at its own peak, the largest difference first.", element("div", { class: "row" }, row), below);
  }
  drawers.push(timeline);
  requestAnimationFrame(() => requestAnimationFrame(() => { document.body.dataset.ready = ""; }));
}

start();
