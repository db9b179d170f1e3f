"use strict";
// The page: a section for each analysis on each task.

const plots = [];

function curvesCard(figure, card) {
  const host = element("div", { class: "plot" });
  const keys = figure.lines.map(({ label }, i) => element("li", { class: "name" }, swatch(i), label));
  card.append(host, element("ul", { class: "key" }, ...keys));
  plots.push({ figure, draw: curvePlot(host) });
}

function dotsCard(figure, card) {
  const all = figure.rows.flatMap(({ estimate: e }) => [e.value, e.low ?? e.value, e.high ?? e.value]);
  const range = [Math.min(0, ...all), Math.max(...all, 1e-9)];
  const groups = [...new Set(figure.rows.map(({ group }) => group))];
  card.classList.add("tracks");
  card.append(element("p", { class: "what" }, figure.x_label));
  for (const { label, group, estimate } of figure.rows) {
    const who = element("div", { class: "who" }, `${label} `, element("small", {}, group));
    card.append(track(who, estimate, [group], range, undefined, groups.indexOf(group)));
  }
  card.append(ends(number(range[0]), "", number(range[1])));
}

function pictureCard(figure, card) {
  card.append(element("img", { class: "picture", src: figure.picture, alt: figure.title }));
}

const CARDS = { curves: curvesCard, dots: dotsCard };

function section({ task, title, about, findings, figures }) {
  const cards = element("div", { class: "cards" });
  byId("sections").append(element("section", {},
    element("h2", {}, `${title} `, element("small", {}, task)),
    element("p", { class: "hint" }, about),
    element("ul", { class: "found" }, ...findings.map((text) => element("li", {}, text))),
    cards));
  for (const figure of figures) {
    const card = element("article", { class: "card" }, element("h3", {}, figure.title));
    cards.append(card);
    (CARDS[figure.kind] || pictureCard)(figure, card);
  }
}

function drawAll() {
  for (const { figure, draw } of plots) {
    draw({
      series: figure.lines.map(({ label, band }, index) => ({ label, band, index, seeds: [] })),
      withSeeds: false, unit: false, name: figure.title,
      xLabel: figure.x_label, yLabel: figure.y_label, xFormat: short, xUnit: figure.x_label.split(",")[0],
    });
  }
}

byId("lead").textContent = data.lead;
byId("version").textContent = data.version;
theme();
data.sections.forEach(section);
drawAll();
onResize(drawAll);
