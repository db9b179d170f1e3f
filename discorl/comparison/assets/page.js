"use strict";
// What pages have in common: names, tables, dots on scales, the theme.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const indexOf = new Map(data.labels.map((label, i) => [label, i]));

const plural = (n, one, many = `${one}s`) => `${n.toLocaleString("en-GB")} ${n === 1 ? one : many}`;
const name = (label) => element("span", { class: "name" }, swatch(indexOf.get(label)), label);
const interval = ({ low, high }) => (low === null ? "one seed" : `${number(low)} to ${number(high)}`);

function table(head, rows) {
  const titles = head.map((title) => element("th", { scope: "col" }, title));
  const body = rows.map(({ label, cells }) => {
    const row = cells.map((cell, i) => element("td", { "data-label": head[i] }, ...[cell].flat()));
    return element("tr", { "data-label": label }, ...row);
  });
  return element("table", {}, element("thead", {}, element("tr", {}, ...titles)), element("tbody", {}, ...body));
}

// A dot on a scale from low to high, with its interval, in the index-th colour.
function track(who, estimate, labels, [low, high], mark, index = indexOf.get(labels[0])) {
  const at = (value) => `${(100 * (value - low)) / (high - low)}%`;
  const scale = element("div", { class: "scale", style: `color:${colour(index)}`, "aria-hidden": "true" });
  if (mark !== undefined) scale.append(element("i", { class: "mark", style: `left:${at(mark)}` }));
  if (estimate.low !== null) {
    const width = (100 * (estimate.high - estimate.low)) / (high - low);
    scale.append(element("i", { class: "range", style: `left:${at(estimate.low)};width:${width}%` }));
  }
  scale.append(element("i", { class: "dot", style: `left:${at(estimate.value)}` }));
  const value = element("div", { class: "value" }, element("b", {}, number(estimate.value)), " ", element("small", {}, `(${interval(estimate)})`));
  return element("div", { class: "track", "data-labels": JSON.stringify(labels) }, who, scale, value);
}

const ends = (low, middle, high) => element("div", { class: "ends", "aria-hidden": "true" },
  element("span", {}, ...[low, middle, high].map((text) => element("b", { style: "font-weight:400" }, text))));

function theme() {
  const button = byId("theme");
  const root = document.documentElement;
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const say = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    say();
  });
  say();
}

function onResize(draw) {
  let width = document.body.clientWidth;
  new ResizeObserver(() => {
    if (document.body.clientWidth !== width) {
      width = document.body.clientWidth;
      draw();
    }
  }).observe(document.body);
}
