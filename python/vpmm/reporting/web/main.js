// page: puts the report together, section by section.
"use strict";

function advice() {
  section("advice", "What to change", null, ...data.advice.map((each) => element("div", { class: `advice ${each.level}` }, element("i"),
    element("div", {}, element("b", {}, each.title), element("p", { class: "why" }, each.reason), each.action ? element("p", {}, each.action) : null))));
}

function failures() {
  if (!data.failures.length) return;
  const made = section("failures", "Out of memory", `${data.failureCount === 1 ? "One request was" : `${numberText(data.failureCount)} requests were`} not served. This is what there was then.`);
  const below = element("div");
  const show = (i) => {
    const each = data.failures[i];
    below.replaceChildren(element("p", {}, each.why), table("memory then", [["what", "label"], ["share of the largest", "bars"], ["memory", "n"]], each.figures.map(([name, size]) => [name, size / Math.max(...each.figures.map((one) => one[1]), 1), bytesText(size)])),
      each.report ? element("pre", { class: "report", tabindex: 0, "aria-label": "the pool's report" }, each.report) : "");
  };
  const row = choice(data.failures.slice(0, 12).map((each) => `${bytesText(each.bytes)} at ${timeText(each.t)}`), show);
  made.append(element("div", { class: "row" }, row), below);
}

function driver() {
  if (!data.driver.length && !data.pauses.calls) return;
  const most = Math.max(...data.driver.map((each) => each.ns), data.pauses.ns, 1);
  const row = (name, each) => [name, each.ns / most, timeText(each.ns), percentText(each.ns, data.duration), numberText(each.calls), timeText(each.longest), each.bytes ? bytesText(each.bytes) : ""];
  section("driver", "Time in the driver", "What the calls cost that map memory and give it back, and how long requests waited for the GPU.",
    table("time in the driver", [["calls", "label"], ["share of the longest", "bars"], ["time", "n"], ["of the whole", "n"], ["number", "n"], ["longest", "n"], ["memory", "n"]],
      [...data.driver.map((each) => row(each.name, each)), ...(data.pauses.calls ? [row("waits for the GPU", data.pauses)] : [])]));
}

function leaks() {
  if (!data.leaks.length) return;
  section("leaks", "Never freed", data.leakTold,
    table("never freed", [[data.hasStacks ? "allocated at" : "size", "label"], ["memory", "n"], ["allocations", "n"], ["oldest", "n"], ["newest", "n"]],
      data.leaks.map((each) => [each.label, bytesText(each.bytes), numberText(each.count), timeText(each.oldest), timeText(each.newest)])));
}

function streams() {
  if (data.streams.length < 2) return;
  section("streams", "Streams", "Who allocates, what each stream holds at the end, and when it was last used.",
    table("streams", [["stream", "label"], ["allocations", "n"], ["allocated in all", "n"], ["peak", "n"], ["live at the end", "n"], ["last used", "n"]],
      data.streams.map((each) => [each.name, numberText(each.allocations), bytesText(each.bytes), bytesText(each.peak), bytesText(each.live), timeText(each.last)])));
}

// The browser has drawn what the page has now.
function isSeen() { return new Promise((seen) => requestAnimationFrame(() => setTimeout(seen))); }

// The page has been read to its end.
function isWhole() {
  return new Promise((whole) => {
    if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", whole, { once: true }); else whole();
  });
}

let shows = 0; // how often another GPU was chosen

// The sections of `data`; `told(line)` is called once the curve can be read.
async function show(told = () => {}) {
  const mine = shows += 1;
  header();
  advice();
  const [curve, rest] = data.lines ?? [0, 0];
  const line = readLine(await Columns.read("curves", curve, data.curve));
  if (mine !== shows) return;
  told(line);
  const timeline = new Timeline(line);
  const time = section("time", "Memory over time", "Drag to zoom, double-click for the whole time, click for what was alive then. Live memory is what was requested.", timeline.box);
  timeline.draw();
  await isSeen(); // the curve, before a million allocations are read
  await isWhole();
  const columns = await Columns.read("columns", rest, data.columns);
  if (mine !== shows) return;
  const lives = new Lives(columns), bands = new Bands(lives, timeline);
  time.append(element("h3", {}, "Each allocation"), element("p", { class: "lead" }, "A band is an allocation, as high as its requested bytes. Point at it, or press up and down, for its stack."), bands.box);
  failures();
  const alive = new Alive(lives, line, () => bands.draw());
  section("alive", "What was alive", "Live memory after any event. The text also dims the bands above.", alive.box);
  const map = new AddressMap(lives, line, columns);
  section("addresses", "Address map", data.map.told, map.box);
  driver();
  streams();
  leaks();
  drawers.push(timeline, bands, alive, map);
  requestAnimationFrame(() => requestAnimationFrame(() => { document.body.dataset.ready = ""; })); // the sections are drawn
}

followTheme();
if (page.gpus) showGpus(); else show();
