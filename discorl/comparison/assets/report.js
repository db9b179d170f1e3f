"use strict";
// The page: what there is to see, and what can be switched.

const hidden = new Set();
const plots = [];
const METRICS = { success: "Success rate", return: "Return" };


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
      mark: bySeconds ? null : { x: task.budget, label: "compared up to here" },
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
onResize(drawAll);
