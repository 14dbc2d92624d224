"use strict";
/* Draws what jobs came to: a table to sort and to search, and a plot of two of its columns.
   `page` lends what the rest of the page's script has. Whatever comes from the data is set as text. */
function drawResults(D, page) {
const R = D.results, columns = R.columns, COUNT = R.jobs.length;
const { element, order } = page;
const $ = (id) => document.getElementById(`r-${id}`);
const SIGN = { succeeded: "✓", failed: "✕", cancelled: "⊘", skipped: "–", running: "▶", waiting: "…" };
const PAGE = 50, MANY = 30; /* rows on a page; texts that an axis can have */
const UNITS = { seconds: page.duration, peak_gpu_memory: page.size, peak_resident: page.size, energy: page.energy,
  mean_gpu_utilization: (part) => `${Math.round(part)} %` };

/* The last attempt of each job, which is what a click opens. */
const last = new Map();
D.attempts.job.forEach((job, attempt) => {
  if (!(D.attempts.number[last.get(job)] > D.attempts.number[attempt])) last.set(job, attempt);
});

/* ── Values ────────────────────────────────────────────────────────────────────────────────── */

const isNumber = (column) => column.kind === "number" || column.kind === "integer";
const name = (row) => D.names[R.jobs[row]];
const cell = (column, row) => column.kind === "text" && column.cells[row] !== null ? column.texts[column.cells[row]] : column.cells[row];
const short = (value) => typeof value === "number" ? String(Math.abs(value) < 1e15 ? value : value.toPrecision(6)) : String(value);
function shown(column, value) {
  if (value === null || value === undefined) return "–";
  if (column.own && UNITS[column.name]) return UNITS[column.name](value);
  return column.own && column.name === "state" ? `${SIGN[value] ?? "?"} ${value}` : short(value);
}
/* Where a row stands on a column's axis; null where it has no place there. */
function place(column, row) {
  const value = column.cells[row];
  if (typeof value === "boolean") return Number(value);
  return typeof value === "number" && Math.abs(value) < 1e300 ? value : null; /* NaN and infinity are texts here */
}
const named = (column) => column.kind === "boolean" ? ["false", "true"] : column.texts;
const known = (column) => column.cells.some((_, row) => place(column, row) !== null);
const varies = (column) => new Set(column.cells.filter((value) => value !== null)).size > 1;

/* ── The table ─────────────────────────────────────────────────────────────────────────────── */

const list = { by: undefined, /* a column; null: the job's name; undefined: none */ down: false, page: 0, rows: [] };

function sift() {
  const wanted = $("find").value.trim().toLowerCase();
  list.rows = [];
  for (let row = 0; row < COUNT; row++) {
    const texts = wanted ? [name(row), ...columns.map((column) => shown(column, cell(column, row)))] : [];
    if (!wanted || texts.join("\n").toLowerCase().includes(wanted)) list.rows.push(row);
  }
  sort();
  plotted();
}

function sort() {
  const column = list.by, text = !column || column.kind === "text";
  const of = !column ? name : text ? (row) => cell(column, row) : (row) => place(column, row);
  const key = new Map(column === undefined ? [] : list.rows.map((row) => [row, of(row)]));
  list.rows.sort((a, b) => {
    if (column === undefined) return a - b;
    const one = key.get(a), other = key.get(b);
    if (one === null || other === null) return (one === null) - (other === null) || a - b; /* unknown: last */
    return (text ? order(one, other) : one - other) * (list.down ? -1 : 1) || a - b;
  });
  list.page = 0;
  fill();
}

const wide = (text) => text.length > 36 ? "long" : "";

function fill() {
  const from = list.page * PAGE, some = list.rows.slice(from, from + PAGE);
  $("list").tBodies[0].replaceChildren(...some.map((row) => {
    const line = element("tr"), head = element("th", undefined, wide(name(row))), attempt = last.get(R.jobs[row]);
    head.scope = "row";
    if (attempt === undefined) head.textContent = name(row);
    else {
      const button = element("button", name(row));
      button.type = "button"; button.addEventListener("click", () => page.open(attempt)); head.append(button);
    }
    line.append(head, ...columns.map((column) => element("td", shown(column, cell(column, row)), isNumber(column) ? "n" : wide(shown(column, cell(column, row))))));
    return line;
  }));
  const many = list.rows.length.toLocaleString("en"), every = COUNT.toLocaleString("en");
  $("found").textContent = list.rows.length === COUNT ? `${every} job${COUNT === 1 ? "" : "s"}` : `${many} of ${every} jobs`;
  $("where").textContent = `${from + 1} to ${from + some.length} of ${many}`;
  $("pager").hidden = list.rows.length <= PAGE;
  const [back, on] = $("pager").querySelectorAll("button");
  back.disabled = list.page === 0; on.disabled = from + PAGE >= list.rows.length;
}

function heads() {
  const row = $("list").tHead.rows[0];
  const add = (column) => {
    const head = element("th", undefined, column !== null && isNumber(column) ? "n" : ""), button = element("button", column === null ? "Job" : column.name);
    head.scope = "col"; button.type = "button"; head.append(button); row.append(head);
    button.addEventListener("click", () => {
      list.down = list.by === column && !list.down; list.by = column;
      for (const other of row.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", list.down ? "descending" : "ascending");
      sort();
    });
  };
  add(null); columns.forEach(add);
}

/* ── The plot ──────────────────────────────────────────────────────────────────────────────── */

const axes = columns.filter((column) => known(column) && (column.kind !== "text" || column.texts.length <= MANY));
let plot = null, points = [], chosen = -1;

function choose(id, column) {
  for (const [n, each] of axes.entries()) { const option = element("option", each.name); option.value = n; $(id).append(option); }
  $(id).value = String(axes.indexOf(column));
}
const axis = (id) => axes[Number($(id).value)];
const isLog = (id) => $(`${id}-log`).checked && !$(`${id}-log`).disabled;

const pen = document.createElement("canvas").getContext("2d");
const cut = (text) => text.length > 14 ? `${text.slice(0, 13)}…` : text;
/* The same digits for all numbers of an axis, as many as tell two of them apart. */
function written(value, step) {
  const digits = Math.floor(Math.log10(Math.abs(value) || 1)) - Math.floor(Math.log10(step));
  return Math.abs(value) < 1e15 ? String(Number(value.toPrecision(14))) : value.toExponential(Math.max(0, digits));
}

/* Round numbers in a range, about so many: each with its words. */
function rounds(from, to, most, say = written) {
  const rough = (to - from) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((n) => n * power >= rough), first = Math.ceil(from / step);
  return Array.from({ length: Math.floor(to / step) - first + 1 }, (_, n) => [(first + n) * step, say((first + n) * step, step)]);
}

/* Powers of ten, or 1, 2 and 5 of each, or round numbers: as near to each other as the range is narrow. From, to: exponents. */
function logarithmic(from, to, most, say = written) {
  const every = [1, 2, 3, 5, 10, 20, 50, 100].find((n) => n * most >= to - from) ?? 200, many = (to - from) * 3 <= most ? [1, 2, 5] : [1];
  const found = [];
  for (let power = Math.floor(from / every) * every; power <= to; power += every) {
    for (const n of many) { const value = Number(`${n}e${power}`); found.push([value, say(value, value)]); }
  }
  const fit = found.filter(([value]) => Math.log10(value) >= from && Math.log10(value) <= to);
  return fit.length < 3 && to - from < 1 ? rounds(10 ** from, 10 ** to, most, say) : fit;
}

/* Where a column's values stand along an axis, from 0 to 1, and what is written there. The library is given these places
   alone: by itself it draws nothing, or goes round for ever, where numbers are beyond 1e±32 or close to each other and large. */
function scaleOf(column, values, log, room, upwards) {
  if (!isNumber(column)) {
    const texts = named(column), at = (value) => (value + .5) / texts.length;
    return { at, marks: texts.map((text, value) => [at(value), cut(text)]) };
  }
  const to = log ? Math.log10 : (value) => value;
  let [least, most] = values.reduce(([a, b], value) => [Math.min(a, to(value)), Math.max(b, to(value))], [Infinity, -Infinity]);
  if (least > most) [least, most] = log ? [0, 1] : [.5, .5];
  const large = Math.max(Math.abs(least), Math.abs(most));
  const by = most > least ? Math.max((most - least) * .06, large * 1e-12, 1e-300) : log ? .5 : large * .1 || 1;
  const from = least - by, end = most + by, at = (value) => (to(value) - from) / (end - from);
  const unit = column.own ? UNITS[column.name] : undefined;
  const say = unit && ((value) => unit(Number(value.toPrecision(6))));
  const tooWide = (some) => !upwards && some.reduce((all, [, text]) => all + pen.measureText(text).width + 16, 0) > room;
  let some = [];
  for (let count = upwards ? 6 : Math.floor(room / 80); count > 0 && (!some.length || tooWide(some)); count >>= 1) {
    const fewer = (log ? logarithmic : rounds)(from, end, count, say);
    if (fewer.length) some = fewer;
  }
  return { at, marks: some.map(([value, text], n) => [at(value), n && some[n - 1][1] === text ? "" : text]) };
}

function axisOf(column, side, marks, room) {
  const stroke = () => page.palette().muted, line = () => page.palette().line, widths = marks.map(([, text]) => pen.measureText(text).width);
  const longest = Math.max(10, ...widths), upright = side === 2 && widths.reduce((all, width) => all + width + 10, 0) > room;
  const every = upright ? Math.ceil(marks.length * 14 / room) : 1;
  return { side, font: pen.font, labelFont: pen.font, stroke, label: column.name.slice(0, 60), labelSize: 20, size: 16 + (side === 3 || upright ? longest : 16),
    over: upright ? 0 : Math.max(0, ...widths.map((wide, n) => wide / 2 - (1 - marks[n][0]) * room)), /* what goes beyond its end */
    grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 5 }, rotate: upright ? -90 : 0,
    splits: () => marks.map(([where]) => where), values: () => marks.map(([, text], n) => n % every ? "" : text) };
}

/* Draws the plot anew, of the rows that are found. */
function plotted() {
  if (!axes.length) return;
  const x = axis("x"), y = axis("y");
  for (const [id, column] of [["x", x], ["y", y]]) $(`${id}-log`).disabled = !isNumber(column) || !column.cells.some((value) => value > 0);
  const log = { x: isLog("x"), y: isLog("y") };
  const fits = (value, on) => value !== null && (!on || value > 0);
  points = list.rows.map((row) => ({ row, x: place(x, row), y: place(y, row) })).filter((p) => fits(p.x, log.x) && fits(p.y, log.y));
  chosen = -1;
  const without = list.rows.length - points.length;
  $("plotted").textContent = without ? `${without.toLocaleString("en")} job${without === 1 ? " has" : "s have"} no place on these axes` : "";
  const holder = $("plot");
  holder.setAttribute("aria-label", `${y.name} over ${x.name}: ${points.length} jobs. Left and right arrow go from one to the next, Enter opens one.`);
  plot?.destroy();
  pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const tall = Math.max(340, 15 * (isNumber(y) ? 0 : named(y).length) + 60), width = Math.max(200, holder.clientWidth);
  const upwards = scaleOf(y, points.map((p) => p.y), log.y, tall, true), left = axisOf(y, 3, upwards.marks, tall);
  const room = width - left.size - left.labelSize - 14, across = scaleOf(x, points.map((p) => p.x), log.x, room, false);
  const below = axisOf(x, 2, across.marks, room);
  points = points.map((p) => ({ row: p.row, x: across.at(p.x), y: upwards.at(p.y) })).sort((a, b) => a.x - b.x || a.y - b.y);
  plot = new uPlot({
    width, height: tall + below.size - 32, padding: [10, Math.max(14, below.over), 0, 0], legend: { show: false }, cursor: { show: false },
    scales: { x: { time: false, range: [0, 1] }, y: { range: [0, 1] } },
    axes: [below, left], series: [{}, { paths: () => null, points: { show: false } }],
    hooks: { draw: [drawPoints] },
  }, [points.map((p) => p.x), points.map((p) => p.y)], holder);
}

const at = (p, canvas) => [plot.valToPos(p.x, "x", canvas), plot.valToPos(p.y, "y", canvas)];

function drawPoints(u) {
  plot = u; /* the first drawing comes before the constructor has returned */
  const scale = uPlot.pxRatio, r = (points.length > 2000 ? 2.2 : points.length > 300 ? 3 : 4.5) * scale, ctx = u.ctx, palette = page.palette();
  const state = columns[0];
  ctx.save(); ctx.lineWidth = 1.6 * scale;
  for (const p of points) {
    const [left, top] = at(p, true), how = cell(state, p.row);
    ctx.beginPath();
    if (how === "succeeded") {
      ctx.globalAlpha = points.length > 300 ? .6 : .85; ctx.fillStyle = palette.use; ctx.arc(left, top, r, 0, 7); ctx.fill();
    } else {
      ctx.globalAlpha = 1; ctx.strokeStyle = how === "failed" ? palette.bad : palette.muted;
      ctx.moveTo(left - r, top - r); ctx.lineTo(left + r, top + r); ctx.moveTo(left + r, top - r); ctx.lineTo(left - r, top + r); ctx.stroke();
    }
  }
  ctx.globalAlpha = 1;
  if (chosen >= 0) {
    const [left, top] = at(points[chosen], true);
    ctx.strokeStyle = palette.ink; ctx.lineWidth = 2 * scale; ctx.beginPath(); ctx.arc(left, top, r + 4 * scale, 0, 7); ctx.stroke();
  }
  ctx.restore();
}

/* The point under the pointer, or close to it. */
function near(event) {
  const box = plot.over.getBoundingClientRect(), left = event.clientX - box.left, top = event.clientY - box.top;
  let best = -1, least = 12 ** 2;
  points.forEach((p, n) => {
    const [x, y] = at(p, false), off = (x - left) ** 2 + (y - top) ** 2;
    if (off < least) { least = off; best = n; }
  });
  return best;
}

const facts = (row) => [axis("y"), axis("x")].map((column) => `${column.name}: ${shown(column, cell(column, row))}`);

function point(n, x, y) {
  const { row } = points[n], rest = columns.filter((column) => column !== axis("x") && column !== axis("y") && column.cells[row] !== null);
  page.tip(name(row), [...facts(row), ...rest.slice(0, 8).map((column) => `${column.name}: ${shown(column, cell(column, row)).slice(0, 80)}`)], x, y);
}

function openPoint(n) {
  const attempt = last.get(R.jobs[points[n].row]);
  if (attempt !== undefined) page.open(attempt);
}

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !points.length) return;
  if (event.key === "Enter" && chosen >= 0) { openPoint(chosen); event.preventDefault(); return; }
  if (event.key === "Escape") { leave(); return; }
  const next = { ArrowRight: Math.min(chosen + 1, points.length - 1), ArrowLeft: Math.max(chosen - 1, 0), Home: 0, End: points.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  chosen = next; plot.redraw(false);
  const box = plot.over.getBoundingClientRect(), [x, y] = at(points[chosen], false), { row } = points[chosen];
  point(chosen, box.left + x, box.top + y);
  $("said").textContent = `${name(row)}: ${shown(columns[0], cell(columns[0], row))}, ${facts(row).join(", ")}`;
}
function leave() { page.hideTip(); chosen = -1; plot?.redraw(false); }

function beginPlot() {
  if (!axes.length) return;
  const numbers = axes.filter((column) => isNumber(column) && !column.own && varies(column));
  const y = numbers.find((column) => !column.param) ?? numbers[0] ?? axes.find(isNumber) ?? axes[0];
  const x = axes.find((column) => column.param && isNumber(column) && varies(column)) ?? axes.find((column) => column.param && varies(column))
    ?? axes.find((column) => column.name === "seconds" && column.own) ?? axes[0];
  choose("y", y); choose("x", x);
  const values = isNumber(x) ? x.cells.filter((value) => typeof value === "number") : [];
  const [least, most] = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, 0]);
  $("x-log").checked = least > 0 && most / least >= 100; /* learning rates and their like */
  for (const id of ["x", "y"]) { $(id).addEventListener("change", plotted); $(`${id}-log`).addEventListener("change", plotted); }
  $("axes").addEventListener("submit", (event) => event.preventDefault());
  const holder = $("plot");
  holder.tabIndex = 0; holder.setAttribute("role", "application");
  holder.addEventListener("mousemove", (event) => {
    const n = near(event);
    holder.classList.toggle("pointing", n >= 0);
    if (n < 0) page.hideTip(); else point(n, event.clientX, event.clientY);
  });
  holder.addEventListener("mouseleave", page.hideTip);
  holder.addEventListener("click", (event) => { const n = near(event); if (n >= 0) openPoint(n); });
  holder.addEventListener("keydown", key);
  holder.addEventListener("blur", leave);
  $("axes").hidden = holder.hidden = false;
}

/* ── Go ────────────────────────────────────────────────────────────────────────────────────── */

heads();
$("find").addEventListener("input", sift);
$("filter").addEventListener("submit", (event) => event.preventDefault());
$("pager").querySelectorAll("button").forEach((button, n) => button.addEventListener("click", () => { list.page += n ? 1 : -1; fill(); }));
$("filter").hidden = $("list").hidden = false;
beginPlot();
sift();
return {
  repaint: () => plot?.redraw(false),
  fit: () => {
    const width = $("plot").clientWidth;
    if (plot && width > 0 && Math.abs(width - plot.width) > .5) plotted();
  },
};
}
