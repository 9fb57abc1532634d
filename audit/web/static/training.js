// The charts of the training page: numbers from the page's JSON twin, drawn by uPlot.
"use strict";

document.addEventListener("htmx:afterSettle", (event) => {
  const root = document.querySelector("#training");
  if (!root || root.dataset.drawn) return;
  root.dataset.drawn = "1";
  fetch(root.dataset.source).then((answer) => answer.json()).then((data) => draw(root, data));
});

function colour(name) {
  return getComputedStyle(document.body).getPropertyValue(name).trim();
}

function axes(x, y) {
  const shared = { stroke: colour("--dim"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { stroke: colour("--rule") } };
  return [{ ...shared, label: x }, { ...shared, label: y }];
}

function opens(root, rows) {
  return (plot) => plot.over.addEventListener("click", () => {
    const row = rows[plot.cursor.idx];
    if (row) window.location.assign("/run/" + encodeURIComponent(root.dataset.run) + "/trace/" + row.index + "?" + new URLSearchParams({ epoch: row.epoch, visit: row.visit }));
  });
}

function plot(place, options, columns) {
  const width = place.clientWidth;
  const made = new uPlot({ width, height: 280, ...options }, columns, place);
  new ResizeObserver(() => made.setSize({ width: place.clientWidth, height: 280 })).observe(place);
  return made;
}

function draw(root, data) {
  const loss = document.querySelector("#plot-loss");
  if (loss) {
    const rows = data.steps;
    const monotone = rows.every((row, n) => n === 0 || row.step > rows[n - 1].step);
    const phases = [...new Set(rows.map((row) => row.phase))];
    const positive = (value) => Math.max(value, 1e-6);
    plot(loss, {
      axes: axes("step", "loss"), scales: { x: { time: false }, y: { distr: 3 } },
      series: [{ label: "step" },
        ...phases.map((phase, n) => ({ label: phase ? "mean, " + phase : "mean", stroke: colour(n ? "--good" : "--accent"), width: 1.5, spanGaps: true, points: { show: false } })),
        { label: "largest", stroke: colour("--bad"), width: 0, paths: () => null, points: { show: true, size: 3, fill: colour("--bad") } }],
      hooks: { init: [opens(root, rows)] },
    }, [rows.map((row, n) => (monotone ? row.step : n)), ...phases.map((phase) => rows.map((row) => (row.phase === phase ? positive(row.mean) : null))), rows.map((row) => positive(row.max))]);
  }
  const map = document.querySelector("#plot-map");
  if (map) {
    const rows = data.cartography.slice().sort((a, b) => a.variability - b.variability);
    const share = (test) => rows.map((row) => (test(row.correctness) ? row.confidence : null));
    const dots = (label, name) => ({ label, stroke: colour(name), paths: () => null, points: { show: true, size: 4, fill: colour(name) } });
    plot(map, {
      axes: axes("variability", "confidence in the label"), scales: { x: { time: false }, y: { range: [0, 1] } },
      series: [{ label: "variability" }, dots("always right", "--good"), dots("sometimes right", "--cool"), dots("never right", "--bad")],
      hooks: { init: [opens(root, rows)] },
    }, [rows.map((row) => row.variability), share((c) => c === 1), share((c) => c > 0 && c < 1), share((c) => c === 0)]);
  }
  const layers = document.querySelector("#plot-layers");
  if (layers) {
    const chosen = document.querySelector("#layer-value");
    const redraw = () => { layers.replaceChildren(); drawLayers(layers, data.layers, chosen.value); };
    chosen.addEventListener("change", redraw);
    redraw();
  }
}

function drawLayers(place, rows, value) {
  const named = new Map();
  for (const row of rows) {
    const name = [row.layer, row.direction === "backward" ? "backward" : "", row.port].filter(Boolean).join(" ");
    if (!named.has(name)) named.set(name, new Map());
    named.get(name).set(row.step, row[value]);
  }
  const steps = [...new Set(rows.map((row) => row.step))].sort((a, b) => a - b);
  const names = [...named.keys()].slice(0, 12);
  const hue = (n) => "hsl(" + Math.round((n * 360) / names.length) + " 55% 50%)";
  plot(place, {
    axes: axes("step", value.replace("_", " ")), scales: { x: { time: false } },
    series: [{ label: "step" }, ...names.map((name, n) => ({ label: name, stroke: hue(n), width: 1.5, spanGaps: true, points: { show: false } }))],
  }, [steps, ...names.map((name) => steps.map((at) => named.get(name).get(at) ?? null))]);
}
