// page: the columns of numbers behind the page, every allocation in them, and the moment that all sections show.
"use strict";

// Planes of bytes, deflated, in base64, a line of a script without code; see columns.py.
class Columns {
  static async read(id, line, shape) {
    const text = document.getElementById(id).textContent.split("\n")[line];
    const packed = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
    const stream = new DecompressionStream("deflate"), writer = stream.writable.getWriter();
    writer.write(packed);
    writer.close();
    const made = new Columns();
    made.bytes = new Uint8Array(await new Response(stream.readable).arrayBuffer());
    made.shape = shape;
    made.at = {};
    let at = 0;
    for (const [name, [count, width]] of Object.entries(shape)) { made.at[name] = at; at += count * width; }
    return made;
  }

  has(name) { return name in this.shape; }

  numbers(name) {
    const [count, width] = this.shape[name], made = new Float64Array(count);
    for (let place = 0; place < width; place += 1) {
      const from = this.at[name] + place * count, factor = 256 ** place, plane = this.bytes.subarray(from, from + count);
      for (let i = 0; i < count; i += 1) made[i] += plane[i] * factor;
    }
    return made;
  }

  // Sums of differences, which have their sign in the lowest bit.
  sums(name) {
    const made = this.numbers(name);
    let sum = 0;
    for (let i = 0; i < made.length; i += 1) {
      const half = Math.floor(made[i] / 2);
      sum += made[i] === 2 * half ? half : -half - 1;
      made[i] = sum;
    }
    return made;
  }

  texts(name) {
    const from = this.at[name];
    return new TextDecoder().decode(this.bytes.subarray(from, from + this.shape[name][0])).split("\n");
  }
}

// Every allocation, as columns: `begin` is the event that made it, `end` the one that freed it, or Infinity.
class Lives {
  constructor(columns) {
    const [base, grain] = data.map.lives;
    for (const name of ["bytes", "rounding", "stream", "tag", "library", "thread", "stack"]) this[name] = columns.numbers(`lives.${name}`);
    this.begin = columns.sums("lives.begin");
    this.end = ended(this.begin, columns.numbers("lives.end"));
    this.address = columns.numbers("lives.address").map((each) => base + each * grain);
    this.count = this.begin.length;
    this.labels = columns.texts("stacks.label");
    this.frames = columns.texts("frames");
    this.libraries = columns.texts("libraries");
    for (const name of ["stacks.node", "nodes.parent", "nodes.frame"]) this[name.split(".")[1]] = columns.numbers(name);
    this.found = null;
  }

  at(index) {
    const made = [];
    for (let i = 0; i < this.count && this.begin[i] <= index; i += 1) if (index < this.end[i]) made.push(i);
    return made;
  }

  // Frames of a stack, innermost first.
  calls(stack) {
    const made = [];
    for (let node = this.node[stack]; node; node = this.parent[node]) made.push(this.frames[this.frame[node]]);
    return made;
  }

  size(i) { return Math.floor(Math.log2(Math.max(this.bytes[i], 512))); }
  key(i, way) { return way === "size" ? this.size(i) : this[way][i]; }

  name(key, way) {
    if (way === "stack") return this.labels[key];
    if (way === "library") return this.libraries[key];
    if (way === "stream") return key ? data.names.streams[key - 1] : "no stream named";
    if (way === "tag") return key ? data.names.tags[key] : "no tag";
    if (way === "thread") return data.names.threads[key];
    return key < 10 ? "below 1 KiB" : `${bytesText(2 ** key, 0)} to ${bytesText(2 ** (key + 1), 0)}`;
  }

  // Remembers the stacks, libraries, tags and streams that contain a text; an empty one: all.
  filter(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) { this.found = null; return; }
    const has = (what) => what.toLowerCase().includes(wanted), frames = this.frames.map(has), libraries = this.libraries.map(has);
    const nodes = new Uint8Array(this.parent.length);
    for (let i = 1; i < nodes.length; i += 1) nodes[i] = nodes[this.parent[i]] || frames[this.frame[i]];
    const stacks = [...this.node].map((node, i) => Boolean(nodes[node] || has(this.labels[i])));
    const named = (way) => new Set(Object.keys(data.names[`${way}s`]).map(Number).filter((key) => has(data.names[`${way}s`][key])));
    this.found = { stacks, libraries, tags: named("tag"), streams: named("stream") };
  }

  isFound(i) {
    return !this.found || this.found.stacks[this.stack[i]] || this.found.libraries[this.library[i]] || this.found.tags.has(this.tag[i]) || this.found.streams.has(this.stream[i] - 1);
  }

  // All that is known of an allocation, a fact a line.
  lines(i, line) {
    const when = (index) => `at ${timeText(line.t[indexAt(line.index, index)])}, event ${numberText(index + 1)}`;
    const made = [`${bytesText(this.bytes[i])} requested${this.rounding[i] ? `, ${bytesText(this.bytes[i] + this.rounding[i])} taken` : ""}`];
    made.push(`allocated ${when(this.begin[i])}`, this.end[i] === Infinity ? "never freed" : `freed ${when(this.end[i])}`, this.name(this.stream[i], "stream"));
    if (this.tag[i]) made.push(`tag ${this.name(this.tag[i], "tag")}`);
    const library = this.name(this.library[i], "library");
    if (!library.startsWith("no ")) made.push(`library: ${library}`);
    return [...made, ...this.calls(this.stack[i])];
  }
}

function ended(begin, later) { return later.map((each, i) => (each ? begin[i] + each - 1 : Infinity)); }

// Figures after events: `index` has the events.
function readLine(columns, names = ["t", "index", "live", "mapped", "pending", "free"]) {
  const line = { mapped: null, pending: null, free: null };
  for (const name of names) if (columns.has(`time.${name}`)) line[name] = columns.sums(`time.${name}`);
  if (line.free) line.free = line.free.map((each, i) => each - line.live[i]);
  return line;
}

// The event that the sections show, and the sections that follow it.
const moment = {
  index: data.peak ? data.peak.index : 0,
  followers: [],
  go(index) {
    this.index = Math.min(Math.max(Math.round(index), 0), Math.max(data.events - 1, 0));
    this.followers.forEach((each) => each());
  },
};
