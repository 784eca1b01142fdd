// page: what lived at a moment: a treemap of groups or a flame graph of calls, and the same as a table.
"use strict";
const WAYS = [["size", "by size"], ["stack", "by stack"], ["stream", "by stream"], ["tag", "by tag"], ["thread", "by thread"]];

class Alive {
  constructor() {
    this.moment = data.moments[0];
    this.svg = drawn("svg", { id: "treemap", role: "img", "aria-label": "what lived, by area" });
    this.told = element("p", { class: "lead", id: "alive-told" });
    this.below = element("div");
    this.ways = WAYS.filter(([way]) => data.moments.some((each) => each.groups[way].length > 1 || this.isTold(each.groups[way])));
    if (data.hasStacks) this.ways.push(["flame", "flame graph"]);
    const first = Math.max(this.ways.findIndex(([way]) => way === (data.hasStacks ? "flame" : "size")), 0);
    this.box = element("div");
    this.wayRow = choice(this.ways.map(([, name]) => name), (i) => { this.way = this.ways[i][0]; this.draw(); }, first);
    this.momentRow = choice(data.moments.map((each) => each.title), (i) => { this.moment = data.moments[i]; this.draw(); });
    this.box.append(element("div", { class: "row" }, this.momentRow, element("span", { class: "grow" }), this.wayRow), this.told, this.svg, this.below);
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  // One group alone says something if it has a name.
  isTold(groups) { return groups.length === 1 && !/^no |^thread |^stream /.test(groups[0][0]); }

  draw() {
    if (!this.way || !this.box || !this.box.clientWidth) return;
    const { live, count, t } = this.moment;
    this.told.textContent = `${bytesText(live)} in ${numberText(count)} allocations at ${timeText(t)}.`;
    this.width = this.box.clientWidth;
    if (this.way === "flame") this.drawFlame(); else this.drawGroups();
  }

  drawGroups() {
    const groups = this.moment.groups[this.way];
    this.begin(240);
    const cells = squarified(groups.filter((each) => each[1] > 0).slice(0, 60), { x: 0, y: 0, w: this.width, h: 240 });
    for (const [group, box, i] of cells) this.cell(box, group[0], group[1], group[2], PALETTE[i % PALETTE.length]);
    const most = groups.length ? groups[0][1] : 1;
    this.below.replaceChildren(table([[WAYS.find(([way]) => way === this.way)[1], "label"], ["", "bars"], ["memory", "n"], ["share", "n"], ["allocations", "n"]],
      groups.map(([label, size, count]) => [label, size / most, bytesText(size), percentText(size, this.moment.live), numberText(count)])));
  }

  begin(height) {
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.svg.style.height = `${height}px`;
    this.svg.replaceChildren();
    this.below.replaceChildren();
  }

  cell(box, label, size, count, fillColour, onclick) {
    const text = `${label}\n${bytesText(size)} (${percentText(size, this.moment.live)}) in ${numberText(count)} allocations`;
    const rect = drawn("rect", { class: "cell", x: box.x, y: box.y, width: box.w, height: box.h, fill: fillColour, rx: 2,
      onpointermove: (event) => tip.show(event, text), onpointerleave: () => tip.hide() });
    if (onclick) { rect.style.cursor = "pointer"; rect.addEventListener("click", onclick); }
    this.svg.append(rect);
    const letters = Math.floor((box.w - 12) / 6.6);
    if (letters < 4 || box.h < 18) return;
    const line = (what, y) => this.svg.append(drawn("text", { class: "cell", x: box.x + 6, y: box.y + y }, what.length > letters ? `${what.slice(0, letters - 1)}\u2026` : what));
    line(label, 14);
    if (box.h >= 36) line(bytesText(size), 30);
  }

  // Nodes are [label, bytes, count, [nodes]]; the outermost call is at the top. A click makes a node the root.
  drawFlame(root = this.moment.tree, above = []) {
    const rowHeight = 22, depth = depthOf(root);
    this.begin((depth + above.length) * rowHeight + 4);
    above.forEach((node, row) => this.cell({ x: 0, y: row * rowHeight, w: this.width, h: rowHeight }, node[0], node[1], node[2], colour("mapped"), () => this.drawFlame(node, above.slice(0, row))));
    const place = (node, x, w, row) => {
      if (w < 1.5) return;
      const shade = PALETTE[hash(node[0]) % PALETTE.length];
      this.cell({ x, y: row * rowHeight, w, h: rowHeight }, node[0], node[1], node[2], row === 0 ? colour("mapped") : shade, () => this.drawFlame(node, node === root ? above : [...above, root]));
      for (const each of node[3]) {
        const part = (w * each[1]) / Math.max(node[1], 1);
        place(each, x, part, row + 1);
        x += part;
      }
    };
    place(root, 0, this.width, above.length);
    this.below.replaceChildren(element("p", { class: "lead" }, "Callers above, what they call below; the width is the memory that lives. Click a call to look at it alone, one above it to go back."));
  }
}

const depthOf = (node) => 1 + Math.max(0, ...node[3].map(depthOf));
const hash = (text) => [...text].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) >>> 0, 7);

// Boxes of areas in proportion, as square as they get: rows are filled while that makes their boxes squarer.
function squarified(groups, box) {
  const total = groups.reduce((sum, each) => sum + each[1], 0), made = [];
  let rest = groups.map((group, i) => [group, (group[1] / total) * box.w * box.h, i]);
  while (rest.length) {
    const side = Math.min(box.w, box.h);
    let count = 1;
    while (count < rest.length && worst(rest.slice(0, count + 1), side) <= worst(rest.slice(0, count), side)) count += 1;
    const row = rest.slice(0, count), area = row.reduce((sum, each) => sum + each[1], 0), thick = side > 0 ? area / side : 0;
    let at = 0;
    for (const [group, part, i] of row) {
      const long = thick > 0 ? part / thick : 0;
      made.push([group, box.w >= box.h ? { x: box.x, y: box.y + at, w: thick, h: long } : { x: box.x + at, y: box.y, w: long, h: thick }, i]);
      at += long;
    }
    box = box.w >= box.h ? { x: box.x + thick, y: box.y, w: box.w - thick, h: box.h } : { x: box.x, y: box.y + thick, w: box.w, h: box.h - thick };
    rest = rest.slice(count);
  }
  return made;
}

function worst(row, side) {
  const area = row.reduce((sum, each) => sum + each[1], 0), thick = area / side;
  return Math.max(...row.map((each) => Math.max(thick / (each[1] / thick), each[1] / thick / thick)));
}
