"use strict";
// The page: what there is to see, and what can be switched.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const indexOf = new Map(data.labels.map((label, i) => [label, i]));
const hidden = new Set();
const plots = [];
const METRICS = { success: "Success rate", return: "Return" };

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

function taskCard(task) {
  const host = element("div", { class: "plot" });
  const best = Math.max(...task.groups.map((g) => g.score.value));
  const estimate = (e, top) => [element("span", { class: top ? "best" : undefined }, number(e.value)), " ", element("small", {}, interval(e))];
  const several = task.groups.length > 1;
  const rows = task.groups.map((g) => ({
    label: g.label,
    cells: [
      name(g.label), String(g.runs.length), estimate(g.score, several && g.score.value === best),
      estimate(g.area), duration(g.seconds),
    ],
  }));
  const metric = METRICS[task.metric];
  const card = element("article", { class: "card" },
    element("h3", {}, task.task),
    element("p", { class: "what" }, `${metric}, up to ${plural(Math.round(task.budget), "environment step")}`),
    host, table(["Rule", "Seeds", "Final score", "Area", "Wall-clock"], rows));
  byId("curves").append(card);
  plots.push({ host, task, draw: curvePlot(host) });
}

function drawAll() {
  const bySeconds = document.querySelector("input[name=axis]:checked").value === "seconds";
  const withSeeds = byId("seeds").checked;
  for (const { task, draw } of plots) {
    const series = task.groups.filter((g) => !hidden.has(g.label)).map((g) => ({
      label: g.label,
      index: indexOf.get(g.label),
      band: bySeconds ? g.by_seconds : g.by_steps,
      seeds: g.runs.map((run) => run.points.map((p) => [bySeconds ? p[1] : p[0], p[2]])),
    }));
    const end = Math.max(0, ...series.map(({ band }) => band.x[band.x.length - 1]));
    const [divisor, unit] = !bySeconds || end < 120 ? [1, "s"] : end < 7200 ? [60, "min"] : [3600, "h"];
    draw({
      series, withSeeds, name: task.task, unit: task.metric === "success", yLabel: METRICS[task.metric],
      xLabel: bySeconds ? `Wall-clock (${unit})` : "Environment steps",
      xFormat: (x) => (bySeconds ? `${+(x / divisor).toPrecision(3)}` : short(Math.round(x))),
      xUnit: bySeconds ? unit : "steps",
    });
  }
}

function legend() {
  for (const label of data.labels) {
    const button = element("button", { type: "button", "aria-pressed": "true", "data-label": label }, swatch(indexOf.get(label)), label);
    button.addEventListener("click", () => {
      if (!hidden.delete(label)) hidden.add(label);
      button.setAttribute("aria-pressed", String(!hidden.has(label)));
      for (const row of document.querySelectorAll("tr[data-label], .track")) {
        const labels = JSON.parse(row.dataset.labels || JSON.stringify([row.dataset.label]));
        row.classList.toggle("off", labels.some((l) => hidden.has(l)));
      }
      drawAll();
    });
    byId("legend").append(button);
  }
}

// A dot on a scale from low to high, with its interval.
function track(who, estimate, labels, [low, high], mark) {
  const at = (value) => `${(100 * (value - low)) / (high - low)}%`;
  const scale = element("div", { class: "scale", style: `color:${colour(indexOf.get(labels[0]))}`, "aria-hidden": "true" });
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

function overall() {
  if (!data.overall.length) return;
  byId("overall").hidden = false;
  byId("overall-hint").textContent = `Interquartile mean over runs and tasks, of final scores on these scales. ${data.overall_scale}.`;
  const all = data.overall.flatMap(({ score }) => [score.value, score.low ?? score.value, score.high ?? score.value]);
  const range = [Math.min(0, ...all), Math.max(1, ...all)];
  const host = byId("overall").querySelector(".tracks");
  for (const { label, score } of data.overall) host.append(track(element("div", { class: "who" }, name(label)), score, [label], range));
  host.append(ends(number(range[0]), "", number(range[1])));
}

function improvement() {
  if (!data.improvements.length) return;
  byId("improvement").hidden = false;
  const host = byId("improvement").querySelector(".tracks");
  for (const { better, worse, tasks, chance } of data.improvements) {
    const count = data.tasks.length > 1 ? element("small", {}, ` (${plural(tasks.length, "task")})`) : "";
    const who = element("div", { class: "who" }, name(better), " over ", worse, count);
    host.append(track(who, chance, [better, worse], [0, 1], 0.5));
  }
  host.append(ends("0", "0.5", "1"));
}

function runs() {
  const rows = data.tasks.flatMap((task) => task.groups.flatMap((g) => g.runs.map((run) => ({
    label: g.label,
    cells: [name(g.label), task.task, String(run.seed), number(run.score), number(run.area), duration(run.seconds), short(run.env_steps), run.folder],
  }))));
  byId("runs-summary").textContent = `All ${plural(rows.length, "run")}, one by one`;
  byId("runs").append(table(["Rule", "Task", "Seed", "Final score", "Area", "Wall-clock", "Ended at", "Folder"], rows));
}

function words() {
  const counts = data.tasks.flatMap((t) => t.groups.map((g) => g.runs.length));
  const [fewest, most] = [Math.min(...counts), Math.max(...counts)];
  const seeds = fewest === most ? plural(most, "seed") : `${fewest} to ${plural(most, "seed")}`;
  byId("lead").textContent = `${plural(counts.reduce((a, b) => a + b), "run")}, ${seeds} of each rule on a task.`;
  byId("samples").textContent = data.samples.toLocaleString("en-GB");
  byId("version").textContent = data.version;
  byId("notes").hidden = !data.notes.length;
  byId("notes").querySelector("ul").append(...data.notes.map((note) => element("li", {}, note)));
}

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

words();
theme();
legend();
data.tasks.forEach(taskCard);
overall();
improvement();
runs();
drawAll();
byId("axis").addEventListener("change", drawAll);
byId("seeds").addEventListener("change", drawAll);
let width = document.body.clientWidth;
new ResizeObserver(() => {
  if (document.body.clientWidth !== width) {
    width = document.body.clientWidth;
    drawAll();
  }
}).observe(document.body);
