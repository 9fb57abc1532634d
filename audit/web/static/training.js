// The charts of the training page: numbers from the page's JSON twin, drawn by plot.js.
"use strict";

document.addEventListener("partial:placed", () => {
  const root = document.querySelector("#training");
  if (!root || root.dataset.drawn) return;
  root.dataset.drawn = "1";
  fetch(root.dataset.source).then((answer) => answer.json()).then((data) => draw(root, data));
});

function opens(root, rows) {
  return (n) => {
    const row = rows[n];
    window.location.assign("/run/" + encodeURIComponent(root.dataset.run) + "/trace/" + row.index + "?" + new URLSearchParams({ epoch: row.epoch, visit: row.visit }));
  };
}

function draw(root, data) {
  const loss = document.querySelector("#plot-loss");
  if (loss) drawLoss(root, loss, data.steps);
  const map = document.querySelector("#plot-map");
  if (map) drawMap(root, map, data.cartography.slice().sort((a, b) => a.variability - b.variability));
  const layers = document.querySelector("#plot-layers");
  if (layers) {
    const chosen = document.querySelector("#layer-value");
    const redraw = () => drawLayers(layers, data.layers, chosen.value);
    chosen.addEventListener("change", redraw);
    redraw();
  }
}

function drawLoss(root, place, rows) {
  const monotone = rows.every((row, n) => n === 0 || row.step > rows[n - 1].step);
  const phases = [...new Set(rows.map((row) => row.phase))];
  const lines = phases.map((phase, n) => ({
    label: phase ? "mean, " + phase : "mean", colour: colour(n ? "--good" : "--accent"), values: rows.map((row) => (row.phase === phase ? row.mean : null)),
  }));
  const largest = { label: "largest", colour: colour("--bad"), dots: true, values: rows.map((row) => row.max) };
  new Plot(place, { xs: rows.map((row, n) => (monotone ? row.step : n)), series: [...lines, largest], xLabel: "step", yLabel: "loss", logarithmic: true, open: opens(root, rows) });
}

function drawMap(root, place, rows) {
  const share = (test) => rows.map((row) => (test(row.correctness) ? row.confidence : null));
  const dots = (label, name, test) => ({ label, colour: colour(name), dots: true, values: share(test) });
  const series = [dots("always right", "--good", (c) => c === 1), dots("sometimes right", "--cool", (c) => c > 0 && c < 1), dots("never right", "--bad", (c) => c === 0)];
  new Plot(place, { xs: rows.map((row) => row.variability), series, xLabel: "variability", yLabel: "confidence in the label", range: [0, 1], open: opens(root, rows) });
}

function drawLayers(place, rows, value) {
  const named = new Map();
  for (const row of rows) {
    const name = [row.layer, row.direction === "backward" ? "backward" : "", row.port].filter(Boolean).join(" ");
    if (!named.has(name)) named.set(name, new Map());
    named.get(name).set(row.step, row[value]);
  }
  const xs = [...new Set(rows.map((row) => row.step))].sort((a, b) => a - b);
  const names = [...named.keys()].slice(0, 12);
  const hue = (n) => "hsl(" + Math.round((n * 360) / names.length) + " 55% 50%)";
  const series = names.map((name, n) => ({ label: name, colour: hue(n), values: xs.map((at) => named.get(name).get(at) ?? null) }));
  new Plot(place, { xs, series, xLabel: "step", yLabel: value.replace("_", " ") });
}
