// Precision-recall and ROC curves on the page of a run: numbers from the panel's JSON twin, drawn by plot.js.
"use strict";

(function () {
  const hues = ["--accent", "--bad", "--good", "--drew", "--warn", "--cool", "--dim", "--ink"];

  function lines(curves, xs, ys) {
    const total = curves.reduce((sum, one) => sum + one.recall.length, 0);
    let start = 0;
    return curves.map((one, n) => {
      const values = new Array(total).fill(null);
      ys(one).forEach((value, at) => { values[start + at] = value; });
      start += one.recall.length;
      return { label: one.name, colour: colour(hues[n % hues.length]), values };
    });
  }

  function draw(root, { curves }) {
    const recall = curves.flatMap((one) => one.recall), rate = curves.flatMap((one) => one.false_positive_rate);
    new Plot(root.querySelector("#plot-pr"), { xs: recall, series: lines(curves, recall, (one) => one.precision), xLabel: "recall", yLabel: "precision", range: [0, 1] });
    new Plot(root.querySelector("#plot-roc"), { xs: rate, series: lines(curves, rate, (one) => one.recall), xLabel: "false positive rate", yLabel: "true positive rate", range: [0, 1] });
  }

  document.addEventListener("partial:placed", () => {
    const root = document.querySelector("#curves[data-source]");
    if (!root || root.dataset.drawn) return;
    root.dataset.drawn = "1";
    fetch(root.dataset.source).then((answer) => answer.json()).then((data) => draw(root, data));
  });

  document.addEventListener("change", (event) => {
    if (event.target.id !== "curve-class") return;
    const root = document.querySelector("#curves"), part = document.createElement("div"), address = event.target.dataset.curves;
    part.className = "wait card";
    part.textContent = "Counting…";
    root.replaceWith(part);
    fetch(address + (event.target.value ? (address.includes("?") ? "&" : "?") + "class=" + encodeURIComponent(event.target.value) : ""), { headers: { "X-Partial": "1" } })
      .then((answer) => answer.text())
      .then((text) => {
        part.replaceWith(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
        document.dispatchEvent(new CustomEvent("partial:placed"));
      });
  });
})();
