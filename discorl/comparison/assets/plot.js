"use strict";
// Drawing: nothing here knows what is drawn, only series of (x, middle, low, high).

const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "8 5", "2 5", "10 4 2 4"];
const COLOURS = 8;

function element(tag, attributes = {}, ...children) {
  const made = tag.startsWith("svg:")
    ? document.createElementNS(SVG, tag.slice(4))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

// Colour and dash of the n-th series; both together stay different for 32 of them.
const colour = (n) => `var(--s${n % COLOURS})`;
const dash = (n) => DASHES[(n + Math.floor(n / COLOURS)) % DASHES.length];

function swatch(n) {
  const line = element("svg:line", {
    x1: 1, x2: 25, y1: 6, y2: 6, style: `stroke:${colour(n)}`, "stroke-width": 3, "stroke-dasharray": dash(n),
  });
  return element("svg:svg", { class: "swatch", viewBox: "0 0 26 12", "aria-hidden": "true" }, line);
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-4) return value.toExponential(digits - 1);
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return value.toLocaleString("en-GB", {
    minimumFractionDigits: Math.min(decimals, digits), maximumFractionDigits: Math.min(decimals, digits),
  });
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${+(value / 1e9).toFixed(2)}G`;
  if (size >= 1e6) return `${+(value / 1e6).toFixed(2)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toFixed(1)}k`;
  return `${+value.toPrecision(4)}`;
}

function duration(seconds) {
  if (seconds < 120) return `${number(seconds)} s`;
  const minutes = seconds / 60;
  if (minutes < 120) return `${number(minutes)} min`;
  return `${number(minutes / 60)} h`;
}

function ticks(low, high, about) {
  const span = high - low || 1;
  const rough = span / Math.max(1, about);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(+(k * step).toPrecision(12));
  return found;
}

// Value of a band at x, straight lines between its points; null where it is not known.
function valueAt(band, x, key) {
  const values = band[key];
  const xs = band.x;
  if (!values || x < xs[0] || x > xs[xs.length - 1]) return null;
  let low = 0;
  let high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  const width = xs[high] - xs[low];
  const share = width > 0 ? (x - xs[low]) / width : 0;
  return values[low] + share * (values[high] - values[low]);
}

function valueRange(series, unit, withSeeds) {
  if (unit) return [0, 1];
  let low = Infinity;
  let high = -Infinity;
  for (const { band, seeds } of series) {
    const all = [band.middle, band.low || [], band.high || []];
    if (withSeeds) all.push(seeds.flatMap((points) => points.map((p) => p[1])));
    for (const values of all) for (const v of values) {
      low = Math.min(low, v);
      high = Math.max(high, v);
    }
  }
  if (low > high) return [0, 1];
  const pad = (high - low) * 0.05 || Math.abs(high) * 0.1 || 1;
  return [low - pad, high + pad];
}

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// One plot. Returns how to draw it again: draw({series, xLabel, xFormat, yLabel, unit, withSeeds, name, mark}).
function curvePlot(host) {
  const tip = element("div", { class: "tip", role: "status", hidden: true });
  const svg = element("svg:svg", { role: "img", tabindex: 0 });
  host.append(svg, tip);
  let now = null; // what is drawn: options and scales
  let at = null; // where the cursor is, in units of x

  function draw(options) {
    const width = Math.max(220, host.clientWidth);
    const height = Math.round(Math.min(320, Math.max(210, width * 0.58)));
    const { series, unit, withSeeds } = options;
    const [y0, y1] = valueRange(series, unit, withSeeds);
    const yTicks = ticks(y0, y1, 5);
    const left = 14 + 7 * Math.max(...yTicks.map((t) => short(t).length));
    const box = { left, right: width - 14, top: 24, bottom: height - 42 };
    const x0 = Math.min(0, ...series.map(({ band }) => band.x[0]));
    const x1 = Math.max(...series.map(({ band }) => band.x[band.x.length - 1]), 1e-9);
    const sx = (x) => box.left + ((x - x0) / (x1 - x0)) * (box.right - box.left);
    const sy = (y) => box.bottom - ((y - y0) / (y1 - y0)) * (box.bottom - box.top);
    now = { ...options, box, x0, x1, sx, sy };
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    svg.setAttribute("aria-label", describe(options));
    svg.replaceChildren(frame(now, yTicks, width, height), ...markedEnd(now), ...series.map((s) => drawSeries(now, s)));
    if (!series.length) {
      svg.append(element("svg:text", { class: "empty", x: width / 2, y: height / 2 }, "All rules are hidden"));
    }
    svg.append(element("svg:g", { class: "cursor", "aria-hidden": "true" }));
    showCursor();
  }

  function showCursor() {
    const cursor = svg.querySelector(".cursor");
    cursor.replaceChildren();
    const rows = at === null ? [] : now.series.filter(({ band }) => valueAt(band, at, "middle") !== null);
    tip.hidden = !rows.length;
    if (tip.hidden) return;
    const { sx, sy, box } = now;
    cursor.append(element("svg:line", { x1: sx(at), x2: sx(at), y1: box.top, y2: box.bottom }));
    const list = element("dl");
    for (const { band, index, label } of rows) {
      const [middle, low, high] = ["middle", "low", "high"].map((key) => valueAt(band, at, key));
      cursor.append(element("svg:circle", { cx: sx(at), cy: sy(middle), r: 5, style: `fill:${colour(index)}` }));
      const range = element("small", {}, low === null ? "one seed" : `${number(low)} to ${number(high)}`);
      list.append(swatch(index), element("dt", {}, label), element("dd", {}, `${number(middle)} `, range));
    }
    tip.replaceChildren(element("p", {}, `${now.xFormat(at)} ${now.xUnit}`.trim()), list);
    // Below the plot, where it hides none of the curves.
    const room = host.clientWidth - tip.offsetWidth;
    const left = Math.max(0, Math.min(room, sx(at) - tip.offsetWidth / 2));
    tip.style.transform = `translate(${left}px, ${box.bottom + 24}px)`;
  }

  function point(event) {
    const frameBox = svg.getBoundingClientRect();
    const share = (event.clientX - frameBox.left - now.box.left) / (now.box.right - now.box.left);
    at = Math.min(now.x1, Math.max(now.x0, now.x0 + share * (now.x1 - now.x0)));
    showCursor();
  }
  const leave = () => {
    at = null;
    showCursor();
  };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 };
    if (event.key === "Escape") return leave();
    if (!(event.key in moves)) return undefined;
    event.preventDefault();
    const step = (now.x1 - now.x0) / 40;
    const from = at === null ? now.x0 + (now.x1 - now.x0) / 2 : at;
    at = Math.min(now.x1, Math.max(now.x0, from + moves[event.key] * step));
    return showCursor();
  });
  return draw;
}

function describe({ name, yLabel, xLabel, series }) {
  const ends = series.map(({ label, band }) => `${label} ends at ${number(band.middle[band.middle.length - 1])}`);
  return `${name}: ${yLabel} against ${xLabel}. ${ends.join("; ") || "Nothing is shown"}.`;
}

// Where the shortest of the curves ends, if others go on.
function markedEnd({ box, x1, sx, mark }) {
  if (!mark || mark.x > x1 * (1 - 1e-6)) return [];
  const inside = sx(mark.x) < (box.left + box.right) / 2;
  const [x, anchor] = [sx(mark.x) + (inside ? 5 : -5), inside ? "start" : "end"];
  return [element("svg:g", { class: "limit" },
    element("svg:line", { x1: sx(mark.x), x2: sx(mark.x), y1: box.top, y2: box.bottom }),
    element("svg:text", { x, y: box.top + 11, "text-anchor": anchor }, mark.label))];
}

function frame({ box, x0, x1, sx, sy, xFormat, xLabel, yLabel }, yTicks, width, height) {
  const lines = element("svg:g", { class: "grid" });
  for (const t of yTicks) {
    lines.append(
      element("svg:line", { x1: box.left, x2: box.right, y1: sy(t), y2: sy(t) }),
      element("svg:text", { x: box.left - 7, y: sy(t) + 4, "text-anchor": "end" }, short(t)),
    );
  }
  for (const t of ticks(x0, x1, (box.right - box.left) / 90)) {
    lines.append(
      element("svg:line", { x1: sx(t), x2: sx(t), y1: box.top, y2: box.bottom }),
      element("svg:text", { x: sx(t), y: box.bottom + 17, "text-anchor": "middle" }, xFormat(t)),
    );
  }
  return element("svg:g", {}, lines,
    element("svg:line", { class: "base", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    element("svg:text", { x: 4, y: 12 }, yLabel),
    element("svg:text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, xLabel));
}

function drawSeries({ sx, sy, withSeeds }, { band, seeds, index, label }) {
  const stroke = `stroke:${colour(index)}`;
  const group = element("svg:g", { class: "series", "data-label": label });
  const line = (values) => band.x.map((x, i) => [sx(x), sy(values[i])]);
  if (band.low) {
    const outline = path([...line(band.high), ...line(band.low).reverse()]);
    group.append(element("svg:path", { class: "band", d: `${outline}Z`, style: `fill:${colour(index)}` }));
  }
  if (withSeeds) {
    for (const points of seeds) {
      group.append(element("svg:path", { class: "seed", d: path(points.map(([x, y]) => [sx(x), sy(y)])), style: stroke }));
    }
  }
  group.append(element("svg:path", { class: "middle", d: path(line(band.middle)), style: stroke, "stroke-dasharray": dash(index) }));
  if (band.x.length === 1) {
    group.append(element("svg:circle", { cx: sx(band.x[0]), cy: sy(band.middle[0]), r: 4, style: `fill:${colour(index)}` }));
  }
  return group;
}
