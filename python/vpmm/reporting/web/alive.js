// page: what lived at any moment: a treemap of groups or a flame graph of calls, and the same as a table.
"use strict";
const WAYS = [["size", "by size"], ["stack", "by stack"], ["library", "by library"], ["stream", "by stream"], ["tag", "by tag"], ["thread", "by thread"]];
const MOST_GROUPS = 40;
const LEAST_SHARE = 1 / 500; // of the flame graph, for a call in it

class Alive {
  constructor(lives, line, refilter) {
    Object.assign(this, { lives, line });
    this.svg = drawn("svg", { id: "treemap", role: "group", "aria-label": "what lived, by area" });
    this.told = element("p", { class: "lead", id: "alive-told", role: "status" });
    this.below = element("div");
    this.ways = WAYS.filter(([way]) => this.isTold(way));
    if (data.hasStacks) this.ways.push(["flame", "flame graph"]);
    if (this.ways.length === 0) this.ways.push(WAYS[0]); // nothing was allocated
    const first = Math.max(this.ways.findIndex(([way]) => way === (data.hasStacks ? "flame" : "size")), 0);
    this.box = element("div");
    this.slider = momentSlider("alive-moment", line);
    this.search = element("input", { type: "search", id: "filter", placeholder: "file, function, library, tag, stream", "aria-label": "only allocations with this text in stack, library, tag or stream", oninput: () => {
      lives.filter(this.search.value);
      this.draw();
      refilter();
    } });
    this.wayRow = choice(this.ways.map(([, name]) => name), (i) => { this.way = this.ways[i][0]; this.draw(); }, first);
    const jumps = data.moments.map(([name, index]) => element("button", { type: "button", onclick: () => moment.go(index) }, name));
    this.box.append(element("div", { class: "row" }, ...jumps, this.slider), element("div", { class: "row" }, this.search, element("span", { class: "grow" }), this.wayRow), this.told, this.svg, this.below);
    moment.followers.push(() => this.draw());
    onWidth(this.box, () => this.draw());
  }

  // One group alone says something if it has a name.
  isTold(way) {
    const keys = new Set(firstOf(this.lives, way));
    return keys.size > 1 || (keys.size === 1 && !/^no |^the program|^thread |^stream /.test(this.lives.name([...keys][0], way)));
  }

  draw() {
    if (!this.way || !this.box || !this.box.clientWidth) return;
    const all = this.lives.at(moment.index), found = all.filter((i) => this.lives.isFound(i));
    const sum = (list) => list.reduce((size, i) => size + this.lives.bytes[i], 0), point = indexAt(this.line.index, moment.index);
    this.found = found;
    this.live = sum(found);
    const missing = this.lives.count < data.allocations && this.line.index[point] === moment.index ? this.line.live[point] - sum(all) : 0;
    const filtered = this.lives.found ? ` of ${bytesText(sum(all))} in ${numberText(all.length)}` : "";
    const left = missing > 0 ? ` Another ${bytesText(missing)} is of small or short allocations that are not in this page.` : "";
    this.told.textContent = `${bytesText(this.live)} requested in ${numberText(found.length)} allocations${filtered}, after event ${numberText(moment.index + 1)} at ${timeText(this.line.t[point] ?? 0)}.${left}`;
    this.width = this.box.clientWidth;
    if (this.way === "flame") this.drawFlame(this.tree()); else this.drawGroups();
  }

  // [label, bytes, count], largest first; all beyond MOST_GROUPS are one.
  groups() {
    const { lives, way } = this, sums = new Map();
    for (const i of this.found) {
      const key = lives.key(i, way), known = sums.get(key);
      if (known) { known[1] += lives.bytes[i]; known[2] += 1; } else sums.set(key, [key, lives.bytes[i], 1]);
    }
    const named = new Map();
    for (const [key, size, count] of sums.values()) {
      const label = lives.name(key, way), known = named.get(label);
      if (known) { known[1] += size; known[2] += count; } else named.set(label, [label, size, count]);
    }
    const ordered = [...named.values()].sort((a, b) => b[1] - a[1]), rest = ordered.slice(MOST_GROUPS);
    if (!rest.length) return ordered;
    const total = (place) => rest.reduce((sum, each) => sum + each[place], 0);
    return [...ordered.slice(0, MOST_GROUPS), [`${rest.length} others`, total(1), total(2)]];
  }

  // Nodes are [label, bytes, count, [nodes]], without those that are too narrow to see.
  tree() {
    const { lives } = this, root = ["all that lives", 0, 0, []], nodes = new Map([[0, root]]);
    const node = (which) => {
      if (!nodes.has(which)) {
        nodes.set(which, [lives.frames[lives.frame[which]], 0, 0, []]);
        node(lives.parent[which])[3].push(nodes.get(which));
      }
      return nodes.get(which);
    };
    const none = ["no stack recorded", 0, 0, []];
    for (const i of this.found) {
      const add = (each) => { each[1] += lives.bytes[i]; each[2] += 1; };
      for (let at = lives.node[lives.stack[i]]; at; at = lives.parent[at]) add(node(at));
      add(root);
      if (!lives.node[lives.stack[i]]) add(none);
    }
    if (none[2]) root[3].push(none);
    const prune = (each) => {
      each[3] = each[3].filter((below) => below[1] >= root[1] * LEAST_SHARE).sort((a, b) => b[1] - a[1]);
      each[3].forEach(prune);
    };
    prune(root);
    return root;
  }

  drawGroups() {
    const groups = this.groups(), [, title] = WAYS.find(([way]) => way === this.way);
    this.begin(240);
    const cells = squarified(groups.filter((each) => each[1] > 0), { x: 0, y: 0, w: this.width, h: 240 });
    for (const [group, box, i] of cells) this.cell(box, group[0], group[1], group[2], PALETTE[i % PALETTE.length]);
    const most = groups.length ? groups[0][1] : 1;
    this.below.replaceChildren(table(`live memory ${title}`, [[title, "label"], ["share of the largest", "bars"], ["requested", "n"], ["share", "n"], ["allocations", "n"]],
      groups.map(([label, size, count]) => [label, size / most, bytesText(size), percentText(size, this.live), numberText(count)])));
  }

  begin(height) {
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.svg.style.height = `${height}px`;
    this.svg.replaceChildren();
    this.below.replaceChildren();
  }

  // A cell with `onclick` is a button for the keyboard, too.
  cell(box, label, size, count, fillColour, onclick) {
    const text = `${label}\n${bytesText(size)} (${percentText(size, this.live)}) in ${numberText(count)} allocations`;
    const rect = drawn("rect", { class: "cell", x: box.x, y: box.y, width: box.w, height: box.h, fill: fillColour, rx: 2,
      onpointermove: (event) => tip.show(event, text), onpointerleave: () => tip.hide() });
    if (onclick) {
      fill(rect, { style: "cursor:pointer", tabindex: 0, role: "button", "aria-label": text.replace("\n", ": "), onclick }, []);
      rect.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); onclick(); this.svg.querySelector("rect")?.focus(); } });
    }
    this.svg.append(rect);
    const letters = Math.floor((box.w - 12) / 6.6);
    if (letters < 4 || box.h < 18) return;
    const line = (what, y) => this.svg.append(drawn("text", { class: "cell", x: box.x + 6, y: box.y + y }, what.length > letters ? `${what.slice(0, letters - 1)}\u2026` : what));
    line(label, 14);
    if (box.h >= 36) line(bytesText(size), 30);
  }

  // The outermost call is at the top. A click makes a node the root.
  drawFlame(root, above = []) {
    const rowHeight = 22, depth = depthOf(root);
    this.begin((depth + above.length) * rowHeight + 4);
    above.forEach((node, row) => this.cell({ x: 0, y: row * rowHeight, w: this.width, h: rowHeight }, node[0], node[1], node[2], "#5c7389", () => this.drawFlame(node, above.slice(0, row))));
    const place = (node, x, w, row) => {
      if (w < 1.5) return;
      const shade = PALETTE[hash(node[0]) % PALETTE.length];
      this.cell({ x, y: row * rowHeight, w, h: rowHeight }, node[0], node[1], node[2], row === 0 ? "#5c7389" : shade, () => this.drawFlame(node, node === root ? above : [...above, root]));
      for (const each of node[3]) {
        const part = (w * each[1]) / Math.max(node[1], 1);
        place(each, x, part, row + 1);
        x += part;
      }
    };
    place(root, 0, this.width, above.length);
    this.below.replaceChildren(element("p", { class: "lead" }, "Callers above, what they call below; the width is the memory that lives. Click a call, or press Enter on it, to look at it alone, one above it to go back."));
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
