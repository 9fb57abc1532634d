// Precision-recall and ROC curves on the page of a run: numbers from the panel's JSON twin, drawn by plot.js.
"use strict";

(function () {
  const hues = ["--accent", "--bad", "--good", "--drew", "--warn", "--cool", "--dim", "--ink"];

  // One line for each class, from the lists of its x and y values.
  function lines(curves, along, up) {
    const xs = curves.flatMap(along);
    let start = 0;
    const series = curves.map((one, n) => {
      const values = new Array(xs.length).fill(null), own = up(one);
      own.forEach((value, at) => { values[start + at] = value; });
      start += own.length;
      return { label: one.name, colour: colour(hues[n % hues.length]), values };
    });
    return { xs, series, range: [0, 1], xRange: [0, 1] };
  }

  function draw(root, { curves }) {
    // At a threshold that no sample reaches, both rates are 0: there every ROC curve begins.
    const roc = lines(curves, (one) => [0, ...one.false_positive_rate], (one) => [0, ...one.recall]);
    new Plot(root.querySelector("#plot-pr"), { ...lines(curves, (one) => one.recall, (one) => one.precision), xLabel: "recall", yLabel: "precision" });
    new Plot(root.querySelector("#plot-roc"), { ...roc, xLabel: "false positive rate", yLabel: "true positive rate" });
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
