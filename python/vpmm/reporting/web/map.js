// page: the pool's address space after any event: the pool's notation, and coloured bars row by row.
"use strict";

class AddressMap {
  constructor(lives, line, columns) {
    this.map = data.map;
    this.line = line;
    this.lives = lives;
    this.chunks = unpacked(columns);
    const ways = [["stream", "by stream"], ["tag", "by tag"], ["library", "by library"], ["stack", "by stack"], ["size", "by size"]];
    this.by = (ways.find(([way]) => new Set(firstOf(lives, way)).size > 1) || ways[ways.length - 1])[0];
    this.canvas = element("canvas", { id: "map", role: "img", "aria-label": "address map" });
    this.text = element("pre", { id: "notation", tabindex: 0, "aria-label": "the pool's notation" });
    this.told = element("p", { class: "lead", id: "map-told" });
    this.slider = momentSlider("moment", line);
    const select = element("select", { "aria-label": "colours", onchange: () => { this.by = select.value; this.draw(); } },
      ...ways.map(([value, name]) => element("option", { value }, `coloured ${name}`)));
    select.value = this.by;
    const step = (by) => element("button", { type: "button", title: `${by > 0 ? "next" : "previous"} event`, "aria-label": `${by > 0 ? "next" : "previous"} event`, onclick: () => moment.go(moment.index + by) }, by > 0 ? "\u25b6" : "\u25c0");
    const jump = (name, index) => element("button", { type: "button", onclick: () => moment.go(index) }, name);
    this.box = element("div", {},
      element("div", { class: "row" }, step(-1), this.slider, step(1), jump("peak", data.peak.index), ...data.failures.slice(0, 1).map((each) => jump("failure", each.index)), select),
      this.told, this.canvas, this.text);
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => tip.hide());
    moment.followers.push(() => this.draw());
    onWidth(this.box, () => this.draw());
  }

  // Segments in order of address: {kind, at, bytes, life}; kind is used, small, free, zombie or hole.
  segments() {
    const { index } = moment, all = this.lives;
    const now = (each) => each.begin <= index && index < each.end;
    const lives = all.at(index).map((i) => ({ i, address: all.address[i], bytes: all.bytes[i], rounding: all.rounding[i] })).sort((a, b) => a.address - b.address);
    if (!this.map.hasMaps) return laid(lives, lives.map((each) => ({ address: each.address, bytes: each.bytes })), 512, 512);
    const chunks = this.chunks.filter(now).sort((a, b) => a.address - b.address);
    return laid(lives, chunks.map((each) => ({ address: each.address, bytes: each.bytes, old: each.moved <= index })), this.map.page, this.map.grain);
  }

  draw() {
    const width = this.box.clientWidth;
    if (!width) return;
    const found = this.segments();
    this.tell(found);
    const page = this.map.hasMaps ? this.map.page : 512, longest = this.longestHole(found);
    const shown = found.map((each) => ({ ...each, length: each.kind === "hole" ? Math.min(each.bytes, longest) : each.bytes }));
    const total = shown.reduce((sum, each) => sum + each.length, 0) || 1;
    const rows = Math.max(1, Math.min(14, Math.ceil(total / page / 4))), rowHeight = 24, gap = 5, scale = devicePixelRatio || 1;
    this.canvas.width = width * scale;
    this.canvas.height = rows * (rowHeight + gap) * scale;
    this.canvas.style.height = `${rows * (rowHeight + gap)}px`;
    const ink = this.canvas.getContext("2d");
    ink.scale(scale, scale);
    const colours = Object.fromEntries(["free", "mapped", "card", "line", "ink", "faint"].map((name) => [name, colour(name)]));
    this.drawn = [];
    let at = 0;
    for (const each of shown) {
      let left = (each.length / total) * rows * width;
      while (left > 0.01) {
        const row = Math.min(Math.floor(at / width + 1e-9), rows - 1), x = at - row * width, part = row === rows - 1 ? left : Math.min(left, width - x);
        this.bar(ink, each, x, row * (rowHeight + gap), part, rowHeight, colours);
        this.drawn.push([row, x, x + part, each]);
        at += part;
        left -= part;
      }
    }
    this.rowStep = rowHeight + gap;
  }

  // All holes together are drawn as a fifth of what is mapped.
  longestHole(found) {
    const used = found.reduce((sum, each) => sum + (each.kind === "hole" ? 0 : each.bytes), 0);
    const holes = found.filter((each) => each.kind === "hole").length;
    return Math.max(used / 5 / Math.max(holes, 4), 1);
  }

  bar(ink, each, x, y, width, height, colours) {
    const edge = width > 3 ? 0.8 : 0;
    if (each.kind === "used" || each.kind === "small") ink.fillStyle = this.colourOf(each);
    else ink.fillStyle = { free: colours.line, zombie: colours.mapped, hole: colours.faint }[each.kind];
    ink.fillRect(x, y, Math.max(width - edge, 0.4), height);
    if (each.kind === "free" || each.kind === "zombie") {
      ink.fillStyle = each.kind === "free" ? colours.free : colours.card;
      ink.fillRect(x, y + height - 4, Math.max(width - edge, 0.4), 4);
    }
    const text = this.notation(each);
    ink.font = "11px sans-serif";
    if (width > ink.measureText(text).width + 8) {
      ink.fillStyle = each.kind === "used" || each.kind === "small" ? "#fff" : colours.ink;
      ink.fillText(text, x + 4, y + 15);
    }
  }

  colourOf(each) {
    if (!each.life) return PALETTE[9];
    return PALETTE[this.lives.key(each.life.i, this.by) % PALETTE.length];
  }

  notation(each) {
    const sign = { used: "", small: "", free: "-", zombie: "~", hole: "*" }[each.kind];
    if (!this.map.hasMaps) return `[${sign}${bytesText(each.bytes, each.bytes < 1024 ? 0 : 1).replace(" ", "")}]`;
    return `[${sign}${each.bytes % this.map.page ? bytesText(each.bytes).replace(" ", "") : each.bytes / this.map.page}]`;
  }

  tell(found) {
    const sum = (...kinds) => found.reduce((all, each) => all + (kinds.includes(each.kind) ? each.bytes : 0), 0);
    const free = found.filter((each) => each.kind === "free").map((each) => each.bytes);
    const { bytes } = this.lives, requested = this.lives.at(moment.index).reduce((all, i) => all + bytes[i], 0);
    const parts = [`After event ${numberText(moment.index + 1)} of ${numberText(data.events)}: requested ${bytesText(requested)}`];
    if (this.map.hasMaps) parts.push(`taken ${bytesText(sum("used", "small"))}`);
    if (this.map.hasMaps) parts.push(`free ${bytesText(sum("free"))} in ${free.length} pieces, the largest ${bytesText(free.reduce((most, each) => Math.max(most, each), 0))}, trapped ${bytesText(found.trapped)}`, `old addresses ${bytesText(sum("zombie"))}`);
    this.told.textContent = `${parts.join("; ")}.`;
    const most = 1200, texts = found.slice(0, most).map((each) => this.notation(each));
    this.text.textContent = texts.join("") + (found.length > most ? ` and ${found.length - most} more` : "") || "nothing";
  }

  hover(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, row = Math.floor((event.clientY - box.top) / this.rowStep);
    const hit = (this.drawn || []).find(([at, from, to]) => at === row && x >= from && x < to);
    if (!hit) { tip.hide(); return; }
    const each = hit[3], lines = [`${this.notation(each)}  ${bytesText(each.bytes)} at 0x${each.at.toString(16)}`];
    const words = { small: `${each.count} requests below a page`, free: "free: mapped and nobody's", zombie: "old address of memory that has moved", hole: "no memory here" };
    if (words[each.kind]) lines.push(words[each.kind]);
    if (each.life && each.kind === "used") lines.push(...this.lives.lines(each.life.i, this.line));
    tip.show(event, lines.filter((line) => line).join("\n"));
  }
}

// Chunks as objects; they are few.
function unpacked(columns) {
  const [base, grain] = data.map.chunks, begin = columns.sums("chunks.begin"), bytes = columns.numbers("chunks.bytes"), address = columns.numbers("chunks.address");
  const end = ended(begin, columns.numbers("chunks.end")), moved = ended(begin, columns.numbers("chunks.moved"));
  return [...begin].map((each, i) => ({ begin: each, end: end[i], moved: moved[i], address: base + address[i] * grain, bytes: bytes[i] }));
}

// What lies where: `lives` and `chunks` are sorted by address; from a page up an allocation takes whole grains.
function laid(lives, chunks, page, grain) {
  const made = [];
  let next = 0, last = null, unused = 0, isUsed = false;
  made.trapped = 0; // free in chunks that are used in part
  const push = (kind, at, bytes, life) => {
    const before = made[made.length - 1];
    if (kind === "free") unused += bytes; else isUsed = isUsed || kind !== "hole";
    if (before && before.kind === kind && kind !== "used" && before.at + before.bytes >= at) {
      before.bytes = Math.max(before.bytes, at + bytes - before.at);
      before.count += life ? 1 : 0;
    } else made.push({ kind, at, bytes, life, count: life ? 1 : 0 });
  };
  for (const chunk of chunks) {
    if (last !== null && chunk.address > last) push("hole", last, chunk.address - last);
    const end = chunk.address + chunk.bytes;
    let at = Math.max(chunk.address, last === null ? chunk.address : last);
    last = Math.max(end, last === null ? end : last);
    [unused, isUsed] = [0, false];
    if (chunk.old) { push("zombie", at, end - at); continue; }
    while (next < lives.length && lives[next].address + Math.max(lives[next].bytes, 1) <= at) next += 1;
    for (let i = next; i < lives.length && lives[i].address < end; i += 1) {
      const life = lives[i], unit = life.bytes < page ? page : grain, begin = Math.max(Math.floor(life.address / unit) * unit, at);
      const stop = Math.min(Math.ceil((life.address + Math.max(life.bytes + life.rounding, 1)) / unit) * unit, end);
      const kind = life.bytes < page && page > 512 ? "small" : "used";
      if (begin > at) push("free", at, begin - at);
      const before = made[made.length - 1];
      if (stop > at) {
        isUsed = true;
        if (kind === "used" && before && before.life === life) before.bytes = stop - before.at;
        else push(kind, begin, stop - begin, life);
        at = stop;
      } else if (kind === "small" && before && before.kind === "small") before.count += 1;
    }
    if (at < end) push("free", at, end - at);
    if (isUsed) made.trapped += unused;
  }
  return made;
}
