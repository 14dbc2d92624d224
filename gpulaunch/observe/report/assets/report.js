"use strict";
/* Draws the timeline, the attempts' list and one attempt's facts from the page's own data.
   Whatever comes from the data is set as text, never as markup. */
(() => {
const D = JSON.parse(document.getElementById("data").textContent);
const A = D.attempts, COUNT = A.job.length;
const $ = (id) => document.getElementById(id);
const MANY = 6; /* groups with a colour of their own */
const SIGN = { succeeded: "✓", failed: "✕", cancelled: "⊘", interrupted: "‖", lost: "?", running: "▶", unknown: "?" };
const SAID = { unknown: "cut off" };
const services = new Set(D.service);
const plots = [];
let palette = {}, came; /* what is drawn of the results, if there are any */
let view = [D.start, D.start + Math.max(D.length, 1)];
const WHOLE = [...view];

/* ── Words ─────────────────────────────────────────────────────────────────────────────────── */

function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds)), two = (n) => String(n).padStart(2, "0");
  if (whole >= 172800) return `${Math.floor(whole / 86400)} d ${Math.floor(whole % 86400 / 3600)} h`;
  if (whole >= 3600) return `${Math.floor(whole / 3600)}:${two(Math.floor(whole % 3600 / 60))}:${two(whole % 60)}`;
  return whole < 10 && seconds < 10 ? `${Math.max(0, seconds).toFixed(1)} s` : `${Math.floor(whole / 60)}:${two(whole % 60)}`;
}
/* On the clock of the machine that wrote this. */
const wall = (utc) => new Date((utc + D.zone) * 1000).toISOString();
const clock = (utc) => wall(utc).slice(11, 19);
const size = (mib) => mib === null ? "" : mib < 1024 ? `${mib} MiB` : `${(mib / 1024).toFixed(1)} GiB`;
const energy = (joules) => joules < 3597300 ? `${(joules / 3600).toPrecision(3)} Wh` : `${(joules / 3.6e6).toFixed(2)} kWh`;
const name = (i) => D.names[A.job[i]];
const kind = (i) => D.kinds[A.kind[i]];
const length = (i) => A.end[i] - A.start[i];
const how = (i) => kind(i) === "succeeded" ? "succeeded" : D.texts[A.how[i]];
const card = (i) => D.texts[A.cards[i]];
const numbered = (i) => A.number[i] > 1 ? `${name(i)}, attempt ${A.number[i]}` : name(i);

function facts(i) {
  const said = [["Card", card(i)], ["Begun", clock(D.start + A.start[i])],
    [kind(i) === "running" ? "So far" : "Time", duration(length(i))]];
  if (A.memory[i]) said.push(["Most GPU memory", size(A.memory[i])]);
  if (A.busy[i] !== null && A.memory[i]) said.push(["Utilisation", `${A.busy[i]} %, mean of its cards`]);
  if (A.energy[i] !== null) said.push(["Energy", energy(A.energy[i])]);
  if (A.resident[i] !== null) said.push(["Most resident memory", size(A.resident[i])]);
  if (services.has(A.job[i])) said.push(["Kind", "a service beside the jobs"]);
  return said;
}
const spoken = (i) => `${numbered(i)}: ${how(i)}, ${facts(i).map(([k, v]) => `${k.toLowerCase()} ${v}`).join(", ")}`;

function element(tag, text, cls) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (cls) made.className = cls;
  return made;
}

/* ── Colours ───────────────────────────────────────────────────────────────────────────────── */

function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const get = (key) => style.getPropertyValue(`--${key}`).trim();
  palette = { groups: Array.from({ length: MANY + 1 }, (_, n) => get(`g${n}`)) };
  for (const key of ["bad", "paper", "ink", "muted", "faint", "line", "soft", "stripe", "onbar", "hatch", "use", "usefill", "memory", "accent", "warn"]) palette[key] = get(key);
}
const colour = (i) => palette.groups[Math.min(D.group[A.job[i]], MANY)];

/* ── Bars ──────────────────────────────────────────────────────────────────────────────────── */

const rowHeight = (rows) => rows === 1 ? 24 : rows <= 4 ? 16 : rows <= 12 ? 9 : Math.max(3, Math.floor(110 / rows));

function prepare(lane) {
  lane.byRow = Array.from({ length: lane.height }, () => []);
  lane.rowOf = new Map();
  lane.bars.forEach((bar, n) => { lane.byRow[lane.rows[n]].push(bar); lane.rowOf.set(bar, lane.rows[n]); });
  lane.rowPixels = rowHeight(lane.height);
}

function hatch(ctx, x, y, w, h, step, style) {
  ctx.save(); ctx.beginPath(); ctx.rect(x, y, w, h); ctx.clip();
  ctx.strokeStyle = style; ctx.lineWidth = Math.max(1, step / 4); ctx.beginPath();
  for (let at = Math.floor((x - h) / step) * step; at < x + w; at += step) { ctx.moveTo(at, y + h); ctx.lineTo(at + h, y); }
  ctx.stroke(); ctx.restore();
}

function drawIdle(u, lane, scale) {
  const top = u.bbox.top, height = u.bbox.height, left = u.bbox.left, right = left + u.bbox.width;
  for (const [from, to] of lane.idle) {
    const x = Math.max(left, u.valToPos(D.start + from, "x", true)), end = Math.min(right, u.valToPos(D.start + to, "x", true));
    if (end - x < 1) continue;
    u.ctx.fillStyle = palette.soft; u.ctx.fillRect(x, top, end - x, height);
    hatch(u.ctx, x, top, end - x, height, 7 * scale, palette.stripe);
  }
}

function drawBar(u, lane, i, scale, left, right) {
  let x = u.valToPos(D.start + A.start[i], "x", true), end = u.valToPos(D.start + A.end[i], "x", true);
  if (end < left || x > right) return;
  const ctx = u.ctx, state = kind(i), service = services.has(A.job[i]);
  x = Math.max(left - 2, x); end = Math.min(right + 2, end);
  const gap = end - x > 4 * scale ? scale : 0, w = Math.max(state === "failed" ? 2 * scale : scale * .75, end - x - gap);
  const pitch = lane.rowPixels * scale, inset = lane.rowPixels > 6 ? scale : 0;
  let y = u.bbox.top + lane.rowOf.get(i) * pitch + inset, h = pitch - 2 * inset;
  if (service) { y += h * .28; h *= .44; }
  const own = colour(i);
  if (state === "failed") {
    ctx.fillStyle = palette.bad; ctx.fillRect(x, y, w, h);
    if (w > 5 * scale) hatch(ctx, x, y, w, h, 6 * scale, palette.hatch);
  } else if (state === "succeeded" || state === "running") {
    ctx.fillStyle = own; ctx.fillRect(x, y, w, h);
    if (state === "running" && w > 6 * scale) {
      const cut = Math.min(h / 2, w / 2); ctx.fillStyle = palette.paper; ctx.beginPath();
      ctx.moveTo(x + w - cut, y); ctx.lineTo(x + w, y); ctx.lineTo(x + w, y + h / 2); ctx.fill(); ctx.beginPath();
      ctx.moveTo(x + w, y + h / 2); ctx.lineTo(x + w, y + h); ctx.lineTo(x + w - cut, y + h); ctx.fill();
    }
  } else {
    const lost = state === "lost" || state === "unknown";
    ctx.fillStyle = palette.soft; ctx.fillRect(x, y, w, h);
    ctx.strokeStyle = lost ? palette.bad : own; ctx.lineWidth = 1.5 * scale;
    ctx.setLineDash(lost ? [1.5 * scale, 3 * scale] : state === "interrupted" ? [5 * scale, 3 * scale] : []);
    ctx.strokeRect(x + scale, y + scale, Math.max(0, w - 2 * scale), h - 2 * scale); ctx.setLineDash([]);
    if (state === "cancelled" && w > 3 * scale) { ctx.beginPath(); ctx.moveTo(x, y + h / 2); ctx.lineTo(x + w, y + h / 2); ctx.stroke(); }
  }
  if (w > 44 * scale && h > 12 * scale) label(ctx, i, state, x, y, w, h, scale);
}

function label(ctx, i, state, x, y, w, h, scale) {
  ctx.save(); ctx.beginPath(); ctx.rect(x, y, w - 4 * scale, h); ctx.clip();
  const solid = state === "succeeded" || state === "running" || state === "failed";
  ctx.fillStyle = solid ? palette.onbar : palette.ink;
  ctx.font = `${state === "failed" ? "600 " : ""}${11 * scale}px ${getComputedStyle(document.body).fontFamily}`;
  ctx.textBaseline = "middle"; ctx.textAlign = "left";
  ctx.fillText((state === "succeeded" ? "" : `${SIGN[state]} `) + name(i), x + 6 * scale, y + h / 2 + scale * .5);
  ctx.restore();
}

function drawLane(u, lane) {
  const scale = uPlot.pxRatio, left = u.bbox.left, right = left + u.bbox.width;
  u.ctx.save(); u.ctx.beginPath(); u.ctx.rect(left, u.bbox.top, u.bbox.width, u.bbox.height); u.ctx.clip();
  drawIdle(u, lane, scale);
  for (const i of lane.bars) if (kind(i) !== "failed") drawBar(u, lane, i, scale, left, right);
  for (const i of lane.bars) if (kind(i) === "failed") drawBar(u, lane, i, scale, left, right); /* never hidden */
  for (const [at] of lane.marks) {
    const x = u.valToPos(D.start + at, "x", true), y = u.bbox.top, r = 5 * scale;
    u.ctx.fillStyle = palette.warn; u.ctx.strokeStyle = palette.paper; u.ctx.lineWidth = scale; u.ctx.beginPath();
    u.ctx.moveTo(x - r, y); u.ctx.lineTo(x + r, y); u.ctx.lineTo(x, y + 1.6 * r); u.ctx.closePath(); u.ctx.fill(); u.ctx.stroke();
  }
  if (lane.chosen !== undefined) {
    const i = lane.chosen, x = u.valToPos(D.start + A.start[i], "x", true), end = u.valToPos(D.start + A.end[i], "x", true);
    u.ctx.strokeStyle = palette.ink; u.ctx.lineWidth = 2 * scale;
    u.ctx.strokeRect(x, u.bbox.top + lane.rowOf.get(i) * lane.rowPixels * scale + scale, Math.max(2 * scale, end - x), lane.rowPixels * scale - 2 * scale);
  }
  u.ctx.restore();
}

/* The bar under the pointer, or next to it: thin ones are hard to hit. */
function barAt(lane, u, left, top) {
  const row = lane.byRow[Math.floor(top / lane.rowPixels)];
  if (!row) return null;
  const at = u.posToVal(left, "x") - D.start, slack = Math.abs(u.posToVal(left + 3, "x") - D.start - at);
  let low = 0, high = row.length;
  while (low < high) { const mid = (low + high) >> 1; if (A.start[row[mid]] <= at) low = mid + 1; else high = mid; }
  const near = [row[low - 1], row[low]].filter((i) => i !== undefined && A.start[i] - slack <= at && A.end[i] + slack >= at);
  const off = (i) => Math.max(0, A.start[i] - at, at - A.end[i]);
  return near.length ? near.sort((a, b) => off(a) - off(b))[0] : null;
}

/* ── The tip and the dialog ────────────────────────────────────────────────────────────────── */

function tip(title, lines, x, y) {
  const box = $("tip");
  box.replaceChildren(element("b", title), ...lines.filter(Boolean).map((line) => element("span", line)));
  box.hidden = false;
  const wide = box.offsetWidth, high = box.offsetHeight;
  box.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - wide - 12))}px`;
  box.style.top = `${y + 18 + high > innerHeight ? Math.max(8, y - high - 12) : y + 18}px`;
}
const hideTip = () => { $("tip").hidden = true; };
const tipOf = (i, x, y) => tip(numbered(i), [`${SIGN[kind(i)]} ${how(i)}`, ...facts(i).map(([k, v]) => `${k}: ${v}`), D.texts[A.shown[i]].slice(0, 160)], x, y);

function logAddress(i) {
  const file = D.files[A.job[i]] ?? encodeURIComponent(name(i));
  return `${D.logs}${file}.${A.number[i]}.log`;
}

function open(i) {
  hideTip();
  $("d-name").textContent = numbered(i);
  $("d-state").textContent = `${SIGN[kind(i)]} ${how(i)}`;
  $("d-facts").replaceChildren(...facts(i).map(([k, v]) => { const row = element("div"); row.append(element("dt", k), element("dd", v)); return row; }));
  $("d-shown").textContent = D.texts[A.shown[i]];
  const lines = D.tails[i];
  $("d-log").textContent = lines ? lines.join("\n") : "Not kept in this page: it is empty, or one of very many. The file has it.";
  $("d-link").href = logAddress(i);
  $("detail").showModal();
}
$("detail").addEventListener("click", (event) => { if (event.target === $("detail")) $("detail").close(); });

/* ── Zoom ──────────────────────────────────────────────────────────────────────────────────── */

function show(from, to) {
  const least = Math.max(.5, (WHOLE[1] - WHOLE[0]) / 5000), span = Math.min(WHOLE[1] - WHOLE[0], Math.max(least, to - from));
  const start = Math.min(Math.max(WHOLE[0], from), WHOLE[1] - span);
  view = [start, start + span];
  for (const plot of plots) plot.setScale("x", { min: view[0], max: view[1] });
}
function zoom(factor) {
  const middle = (view[0] + view[1]) / 2, half = (view[1] - view[0]) * factor / 2;
  show(middle - half, middle + half);
}
const zooms = { in: () => zoom(.5), out: () => zoom(2), all: () => show(...WHOLE) };
function zoomButtons() {
  const group = element("div", undefined, "zoom");
  group.setAttribute("role", "group"); group.setAttribute("aria-label", "Zoom");
  for (const [by, text, said] of [["in", "+", "Closer"], ["out", "−", "Farther"], ["all", "Whole run", ""]]) {
    const button = element("button", text);
    button.type = "button"; if (said) button.setAttribute("aria-label", said);
    button.addEventListener("click", zooms[by]); group.append(button);
  }
  return group;
}

/* ── Lanes ─────────────────────────────────────────────────────────────────────────────────── */

function ticks(u, splits) {
  const span = view[1] - view[0];
  let day = "";
  return splits.map((at) => {
    const place = (at - view[0]) / span * u.width;
    if (at === null || place < 14 || place > u.width - 18) return ""; /* would be cut */
    const said = wall(at), today = said.slice(5, 10), midnight = said.slice(11, 16) === "00:00";
    if (span > 4 * 86400) return midnight ? today : "";
    const text = span < 20 ? said.slice(14, 21) : span < 600 ? said.slice(11, 19) : said.slice(11, 16);
    const fresh = day !== "" && today !== day; day = today;
    return fresh ? `${today} ${text}` : text;
  });
}

const base = (height) => ({
  width: 600, height, pxAlign: false, padding: [0, 0, 0, 0], legend: { show: false },
  tzDate: (utc) => uPlot.tzDate(new Date((utc + D.zone) * 1000), "Etc/UTC"),
  cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false }, sync: { key: "run", scales: ["x", null] } },
  scales: { x: { time: true, range: () => view }, y: { range: [0, 100] } },
  axes: [{ show: false }, { show: false }], series: [{}, {}],
});

function selected(u) {
  const { left, width } = u.select;
  if (!u.dragging) return;
  u.dragging = false;
  if (width > 4) show(u.posToVal(left, "x"), u.posToVal(left + width, "x"));
  for (const plot of plots) plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
}

function mount(options, data, into) {
  const plot = new uPlot({ ...options, hooks: { ...options.hooks, setSelect: [selected] } }, data, into);
  plot.over.addEventListener("mousedown", () => { plot.dragging = true; });
  plot.over.addEventListener("dblclick", zooms.all);
  plots.push(plot);
  return plot;
}

const EMPTY = () => [WHOLE, [null, null]];

function addAxis(into) {
  const row = element("div", undefined, "lane axis");
  const holder = element("div", undefined, "plots");
  holder.setAttribute("aria-hidden", "true");
  row.append(zoomButtons(), holder); into.append(row);
  const axis = { side: 0, size: 26, gap: 2, space: 84, stroke: () => palette.muted, values: ticks, font: `12px ${getComputedStyle(document.body).fontFamily}`,
    ticks: { size: 5, stroke: () => palette.line, width: 1 }, grid: { show: false } };
  mount({ ...base(28), axes: [axis, { show: false }], cursor: { show: false } }, EMPTY(), holder);
}

const grid = { show: true, stroke: () => palette.line, width: 1 };
const gridAxes = () => [{ show: true, size: 0, space: 84, grid, ticks: { show: false }, values: () => [] }, { show: false }];

function addCurve(lane, holder) {
  const { at, busy, memory, most } = lane.curve;
  const known = most ? memory.map((value) => value === null ? null : value / most * 100) : memory.map(() => null);
  const options = base(58);
  options.padding = [6, 0, 2, 0];
  options.axes = [gridAxes()[0], { show: true, size: 0, grid, splits: () => [0, 50, 100], ticks: { show: false }, values: () => [] }];
  options.series = [{}, { stroke: () => palette.use, fill: () => palette.usefill, width: 1.25, points: { show: false } },
    { stroke: () => palette.memory, width: 1.5, dash: [5, 4], points: { show: false } }];
  lane.curvePlot = mount(options, [at.map((t) => D.start + t), busy, known], holder);
  lane.curvePlot.over.addEventListener("mousemove", (event) => {
    const n = lane.curvePlot.cursor.idx;
    if (n === null || n === undefined || (busy[n] === null && memory[n] === null)) { hideTip(); return; }
    tip(`${lane.name}, ${clock(D.start + at[n])}`, [busy[n] === null ? "" : `Utilisation ${busy[n]} %`, memory[n] === null ? "" : `Memory ${size(memory[n])} of ${size(most)}`], event.clientX, event.clientY);
  });
  lane.curvePlot.over.addEventListener("mouseleave", hideTip);
}

function laneLabel(lane) {
  const label = element("div", lane.name, "name");
  const count = new Set(lane.bars).size;
  label.append(element("small", `${count.toLocaleString("en")} attempt${count === 1 ? "" : "s"}`));
  if (lane.curve) {
    const known = lane.curve.busy.filter((v) => v !== null), memory = lane.curve.memory.filter((v) => v !== null);
    if (known.length) label.append(element("small", `${Math.round(known.reduce((a, b) => a + b, 0) / known.length)} % utilised`));
    if (memory.length) label.append(element("small", `${size(memory.reduce((a, b) => Math.max(a, b), 0))} at most`));
  }
  return label;
}

function addLane(lane, into) {
  prepare(lane);
  const row = element("div", undefined, "lane"), holder = element("div", undefined, "plots");
  row.append(laneLabel(lane), holder); into.append(row);
  const options = base(lane.height * lane.rowPixels + 4);
  options.axes = gridAxes();
  options.hooks = { draw: [(u) => drawLane(u, lane)] };
  const plot = lane.plot = mount(options, EMPTY(), holder);
  lane.row = row;
  plot.over.addEventListener("mousemove", (event) => point(lane, event));
  plot.over.addEventListener("mouseleave", () => { hideTip(); row.classList.remove("pointing"); });
  let down = 0;
  plot.over.addEventListener("mousedown", (event) => { down = event.clientX; });
  plot.over.addEventListener("click", (event) => {
    if (Math.abs(event.clientX - down) > 3) return;
    const { left, top } = within(plot, event), bar = barAt(lane, plot, left, top);
    if (bar !== null) { choose(lane, bar); open(bar); }
  });
  holder.tabIndex = 0;
  holder.setAttribute("role", "application");
  holder.setAttribute("aria-label", `${lane.name}: ${lane.bars.length} attempts. Left and right arrow go from one to the next, Enter opens one.`);
  holder.addEventListener("keydown", (event) => key(lane, event));
  holder.addEventListener("blur", () => { hideTip(); choose(lane, undefined); });
  if (lane.curve) addCurve(lane, holder);
}

function within(plot, event) {
  const box = plot.over.getBoundingClientRect();
  return { left: event.clientX - box.left, top: event.clientY - box.top };
}

function point(lane, event) {
  const { left, top } = within(lane.plot, event), bar = barAt(lane, lane.plot, left, top);
  lane.row.classList.toggle("pointing", bar !== null);
  const at = lane.plot.posToVal(left, "x") - D.start, slack = lane.plot.posToVal(left + 6, "x") - D.start - at;
  const mark = top < 10 && lane.marks.find(([when]) => Math.abs(when - at) <= slack);
  if (mark) tip(`${lane.name}, ${clock(D.start + mark[0])}`, ["The driver reported:", mark[1]], event.clientX, event.clientY);
  else if (bar !== null) tipOf(bar, event.clientX, event.clientY);
  else {
    const gap = lane.idle.find(([from, to]) => from <= at && at < to);
    if (gap) tip(`${lane.name}: ${D.causes[gap[2]]}`, [`${clock(D.start + gap[0])} to ${clock(D.start + gap[1])}, ${duration(gap[1] - gap[0])}`], event.clientX, event.clientY);
    else hideTip();
  }
}

function choose(lane, bar) {
  lane.chosen = bar;
  lane.plot.redraw(false);
}

function key(lane, event) {
  const { key: pressed } = event, bars = lane.bars;
  const zoomed = { "+": "in", "=": "in", "-": "out", "0": "all" }[pressed];
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (zoomed) { zooms[zoomed](); event.preventDefault(); return; }
  if (pressed === "Enter" && lane.chosen !== undefined) { open(lane.chosen); event.preventDefault(); return; }
  if (pressed === "Escape") { hideTip(); choose(lane, undefined); return; }
  const at = lane.chosen === undefined ? -1 : bars.indexOf(lane.chosen);
  const next = { ArrowRight: Math.min(at + 1, bars.length - 1), ArrowLeft: Math.max(at - 1, 0), Home: 0, End: bars.length - 1 }[pressed];
  if (next === undefined || !bars.length) return;
  event.preventDefault();
  const bar = bars[next], from = D.start + A.start[bar], to = D.start + A.end[bar];
  choose(lane, bar);
  if (from < view[0] || to > view[1]) { const half = (view[1] - view[0]) / 2; show((from + to) / 2 - half, (from + to) / 2 + half); }
  const box = lane.plot.over.getBoundingClientRect();
  const x = Math.min(box.right, Math.max(box.left, box.left + lane.plot.valToPos((from + to) / 2, "x")));
  tipOf(bar, x, box.top + (lane.rowOf.get(bar) + 1) * lane.rowPixels - 10);
  $("said").textContent = spoken(bar);
}

function legend() {
  const add = (cls, text, style) => {
    const item = element("li"), mark = element("i", undefined, cls);
    if (style) mark.style.background = style;
    mark.setAttribute("aria-hidden", "true"); item.append(mark, text); $("legend").append(item);
  };
  const used = new Set(D.group);
  D.groups.slice(0, MANY).forEach((text, n) => { if (used.has(n)) add("", text, `var(--g${n})`); });
  if (D.groups.length > MANY) add("", "other jobs", `var(--g${MANY})`);
  const kinds = new Set(A.kind.map((n) => D.kinds[n]));
  for (const each of D.kinds) if (each !== "succeeded" && kinds.has(each)) add(`k-${each}`, `${SIGN[each]} ${SAID[each] ?? each}`);
  if (services.size) add("k-service", "a service");
  if (D.lanes.some((lane) => lane.idle.length)) add("k-idle", "not to be had");
  if (D.lanes.some((lane) => lane.curve)) { add("l-use", "utilisation"); add("l-memory", "memory, of all that the card has"); }
}

function fit() {
  for (const plot of plots) {
    const width = plot.root.parentElement.clientWidth;
    if (width > 0 && Math.abs(width - plot.width) > .5) plot.setSize({ width, height: plot.height });
  }
  came?.fit();
}
function repaint() { readPalette(); for (const plot of plots) plot.redraw(false); came?.repaint(); }

/* ── The list ──────────────────────────────────────────────────────────────────────────────── */

const PAGE = 50;
const list = { by: "start", down: false, page: 0, rows: [] };
const value = { job: (i) => name(i), cards: card, start: (i) => A.start[i], length, kind: how, memory: (i) => A.memory[i] ?? -1, busy: (i) => A.memory[i] ? A.busy[i] ?? -1 : -1 };
const measured = A.memory.some((mib) => mib);
const order = new Intl.Collator("en", { numeric: true }).compare;

function sift() {
  const wanted = $("find").value.trim().toLowerCase(), only = $("kind").value;
  list.rows = [];
  for (let i = 0; i < COUNT; i++) {
    if (only && kind(i) !== only) continue;
    if (wanted && !`${name(i)}\n${card(i)}\n${how(i)}`.toLowerCase().includes(wanted)) continue;
    list.rows.push(i);
  }
  const of = value[list.by], text = ["job", "cards", "kind"].includes(list.by);
  list.rows.sort((a, b) => (text ? order(of(a), of(b)) : of(a) - of(b)) * (list.down ? -1 : 1) || a - b);
  list.page = 0;
  fill();
}

function fill() {
  const body = document.querySelector("#list tbody"), from = list.page * PAGE, some = list.rows.slice(from, from + PAGE);
  body.replaceChildren(...some.map((i) => {
    const row = element("tr"), head = element("th"), button = element("button", numbered(i));
    head.scope = "row"; button.type = "button"; button.addEventListener("click", () => open(i)); head.append(button);
    const busy = A.memory[i] && A.busy[i] !== null ? `${A.busy[i]} %` : "–";
    row.append(head, element("td", card(i)), element("td", clock(D.start + A.start[i]), "n"), element("td", duration(length(i)), "n"), element("td", `${SIGN[kind(i)]} ${how(i)}`));
    if (measured) row.append(element("td", size(A.memory[i]) || "–", "n"), element("td", busy, "n"));
    return row;
  }));
  const many = list.rows.length.toLocaleString("en");
  $("found").textContent = list.rows.length === COUNT ? `${many} attempt${COUNT === 1 ? "" : "s"}` : `${many} of ${COUNT.toLocaleString("en")} attempts`;
  $("where").textContent = list.rows.length > PAGE ? `${from + 1} to ${from + some.length} of ${many}` : "";
  $("pager").hidden = list.rows.length <= PAGE;
  const [back, on] = document.querySelectorAll("[data-page]");
  back.disabled = list.page === 0; on.disabled = from + PAGE >= list.rows.length;
  for (const button of document.querySelectorAll("[data-by]")) {
    const head = button.parentElement;
    if (button.dataset.by === list.by) head.setAttribute("aria-sort", list.down ? "descending" : "ascending"); else head.removeAttribute("aria-sort");
  }
}

function begin() {
  for (const each of new Set(A.kind.map((n) => D.kinds[n]))) { const option = element("option", SAID[each] ?? each); option.value = each; $("kind").append(option); }
  for (const head of document.querySelectorAll("#list .gpu")) head.hidden = !measured;
  $("find").addEventListener("input", sift); $("kind").addEventListener("change", sift);
  $("filter").addEventListener("submit", (event) => event.preventDefault());
  for (const button of document.querySelectorAll("[data-by]")) button.addEventListener("click", () => { list.down = list.by === button.dataset.by && !list.down; list.by = button.dataset.by; sift(); });
  for (const button of document.querySelectorAll("[data-page]")) button.addEventListener("click", () => { list.page += Number(button.dataset.page); fill(); });
  $("filter").hidden = $("list").hidden = false;
  sift();
}

/* ── Go ────────────────────────────────────────────────────────────────────────────────────── */

readPalette();
legend();
addAxis($("lanes"));
for (const lane of D.lanes) addLane(lane, $("lanes"));
if (D.results) came = drawResults(D, { element, tip, hideTip, open, duration, size, energy, order, palette: () => palette });
fit();
begin();
new ResizeObserver(fit).observe($("lanes"));
for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", () => { repaint(); fit(); });
addEventListener("beforeprint", () => { repaint(); fit(); });
addEventListener("afterprint", () => { repaint(); fit(); });
document.documentElement.dataset.drawn = "yes";
})();
