// A map of samples on a canvas: colours, zoom, a tip with the picture, a click that opens one, a lasso that opens a gallery.
"use strict";

(function () {
  const place = document.querySelector("#map");
  if (!place) return;
  const canvas = place.querySelector("canvas"), tip = document.querySelector("#map-tip"), chosen = document.querySelector("#map-chosen");
  const choice = document.querySelector("#map-colour"), legend = document.querySelector("#map-legend");
  const most = 4000; // indices that an address can hold
  let data = null, zoom = 1, cx = 0.5, cy = 0.5, lasso = null, picked = new Set(), bounds = null;

  function hue(n, count) { return "hsl(" + Math.round((n * 360) / count + (n % 2 ? 18 : 0)) + " 65% " + (n % 2 ? 42 : 55) + "%)"; }
  function ramp(share) { return "hsl(" + Math.round(220 - 220 * share) + " 75% 52%)"; }

  function parse(buffer) {
    const length = new DataView(buffer).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
    let at = 4 + length;
    for (const name of head.integers) { head[name] = new Int32Array(buffer, at, head.count); at += 4 * head.count; }
    for (const name of head.floats) { head[name] = new Float32Array(buffer, at, head.count); at += 4 * head.count; }
    return head;
  }

  // Points by colour: one change of colour for each, however many points there are.
  function groups() {
    const by = choice.value, found = new Map();
    const add = (key, label, colour, n) => { if (!found.has(key)) found.set(key, { label, colour, points: [] }); found.get(key).points.push(n); };
    if (by === "loss" || by === "confidence") {
      const sorted = [...data[by]].filter(Number.isFinite).sort((a, b) => a - b), top = sorted[Math.floor(sorted.length * 0.99)] || 1;
      for (let n = 0; n < data.count; n += 1) {
        const bin = Number.isFinite(data[by][n]) ? Math.min(7, Math.floor((data[by][n] / top) * 8)) : -1;
        add(bin, bin < 0 ? "none" : Number(((bin * top) / 8).toPrecision(2)) + " and more", bin < 0 ? "#888" : ramp(bin / 7), n);
      }
      return [...found].sort((a, b) => a[0] - b[0]).map((pair) => pair[1]);
    }
    const count = Math.max(data.classes.length, 2);
    for (let n = 0; n < data.count; n += 1) {
      const value = data[by][n];
      if (by === "correct") add(value, value < 0 ? "not graded" : value ? "right" : "wrong", value < 0 ? "#888" : value ? "#4a9d6c" : "#e04f3a", n);
      else add(value, value < 0 ? "none" : data.classes[value] || String(value), value < 0 ? "#888" : hue(value, count), n);
    }
    return [...found].sort((a, b) => (by === "correct" ? b[0] - a[0] : a[0] - b[0])).map((pair) => pair[1]);
  }

  // Where places of 0 to 1 are on the canvas: scale and offset of each axis.
  function frame() {
    const width = canvas.clientWidth, height = canvas.clientHeight, side = Math.min(width, height) * 0.94 * zoom;
    const kx = side * (width / Math.min(width, height));
    return { kx, ky: side, x0: width / 2 - cx * kx, y0: height / 2 - cy * side };
  }

  function toScreen(n, { kx, ky, x0, y0 } = frame()) { return [x0 + data.u[n] * kx, y0 + data.v[n] * ky]; }

  // Very many points: pixels of an image are written, because a call for each point takes too long.
  function drawPixels(pen, ratio) {
    const { width, height } = canvas, image = pen.createImageData(width, height), pixels = new Uint32Array(image.data.buffer);
    const { kx, ky, x0, y0 } = frame(), size = Math.max(2, Math.round(2 * ratio));
    for (const group of data.groups) {
      for (const n of group.points) {
        const left = Math.round((x0 + data.u[n] * kx) * ratio), top = Math.round((y0 + data.v[n] * ky) * ratio);
        if (left < 0 || top < 0 || left + size > width || top + size > height) continue;
        for (let y = 0; y < size; y += 1) for (let x = 0; x < size; x += 1) pixels[(top + y) * width + left + x] = group.pixel;
      }
    }
    pen.putImageData(image, 0, 0);
  }

  function draw() {
    if (!data) return;
    const ratio = window.devicePixelRatio || 1, pen = canvas.getContext("2d");
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = canvas.clientHeight * ratio;
    const many = data.count > 10000, size = many ? 2 : data.count > 3000 ? 4 : 7, here = frame();
    if (many) drawPixels(pen, ratio);
    pen.scale(ratio, ratio);
    pen.globalAlpha = 0.85;
    for (const group of many ? [] : data.groups) {
      pen.fillStyle = group.colour;
      for (const n of group.points) { const [x, y] = toScreen(n, here); pen.fillRect(x - size / 2, y - size / 2, size, size); }
    }
    pen.globalAlpha = 1;
    const ink = getComputedStyle(document.body).getPropertyValue("--ink").trim();
    pen.strokeStyle = ink;
    for (const n of many ? [] : picked) { const [x, y] = toScreen(n, here); pen.strokeRect(x - size / 2 - 1, y - size / 2 - 1, size + 2, size + 2); }
    if (lasso && lasso.length > 1) {
      pen.lineWidth = 1.5;
      pen.beginPath();
      lasso.forEach(([x, y], n) => (n ? pen.lineTo(x, y) : pen.moveTo(x, y)));
      pen.closePath();
      pen.stroke();
    }
  }

  function colours() {
    data.groups = groups();
    const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    for (const group of data.groups) {
      pen.fillStyle = group.colour;
      pen.fillRect(0, 0, 1, 1);
      group.pixel = new Uint32Array(pen.getImageData(0, 0, 1, 1).data.buffer)[0];
    }
    legend.replaceChildren(...data.groups.slice(0, 40).map((group) => {
      const item = document.createElement("span"), mark = document.createElement("i");
      mark.style.background = group.colour;
      item.append(mark, group.label + " (" + group.points.length + ")");
      return item;
    }));
    draw();
  }

  function at(event) { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; }

  function nearest([x, y]) {
    const { kx, ky, x0, y0 } = frame();
    let best = 100, found = null;
    for (let n = 0; n < data.count; n += 1) { const d = (x0 + data.u[n] * kx - x) ** 2 + (y0 + data.v[n] * ky - y) ** 2; if (d < best) { best = d; found = n; } }
    return found;
  }

  function inside([x, y], polygon) {
    let found = false;
    for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i, i += 1) {
      const [xi, yi] = polygon[i], [xj, yj] = polygon[j];
      if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) found = !found;
    }
    return found;
  }

  function address(n) { return "/run/" + encodeURIComponent(place.dataset.run) + "/trace/" + data.index[n] + "?" + new URLSearchParams({ epoch: data.epoch[n], visit: data.visit[n] }); }

  function choose() {
    const list = [...picked];
    chosen.hidden = !list.length;
    if (!list.length) return;
    let where = "index IN (" + list.map((n) => data.index[n]).join(", ") + ")";
    if (list.length > most) {
      const xs = list.map((n) => data.x[n]), ys = list.map((n) => data.y[n]), least = (v) => v.reduce((a, b) => Math.min(a, b)), largest = (v) => v.reduce((a, b) => Math.max(a, b));
      where = "index IN (SELECT index FROM embeddings WHERE run_id = '" + place.dataset.run + "' AND x BETWEEN " + least(xs) + " AND " + largest(xs) + " AND y BETWEEN " + least(ys) + " AND " + largest(ys) + ")";
    }
    chosen.href = "/run/" + encodeURIComponent(place.dataset.run) + "/gallery?" + new URLSearchParams({ where });
    chosen.textContent = list.length.toLocaleString("en") + " samples as a gallery" + (list.length > most ? ", with all in the rectangle around them" : "");
  }

  let moved = false;
  canvas.addEventListener("pointerdown", (event) => { if (!data) return; lasso = [at(event)]; moved = false; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (!data) return;
    if (lasso) { moved = true; lasso.push(at(event)); draw(); return; }
    const n = nearest(at(event));
    tip.hidden = n === null;
    canvas.style.cursor = n === null ? "crosshair" : "pointer";
    if (n === null) return;
    const picture = tip.querySelector("img"), source = "/run/" + encodeURIComponent(place.dataset.run) + "/picture/" + data.index[n] + "/0?" + new URLSearchParams({ epoch: data.epoch[n], visit: data.visit[n] });
    if (picture.getAttribute("src") !== source) { picture.style.visibility = ""; picture.src = source; }
    const name = (value) => (value < 0 ? "none" : data.classes[value] || value);
    tip.querySelector("figcaption").textContent = name(data.label[n]) + " → " + name(data.predicted[n]);
    const [x, y] = toScreen(n);
    tip.style.left = Math.min(x + 12, canvas.clientWidth - 140) + "px";
    tip.style.top = Math.min(y + 12, canvas.clientHeight - 160) + "px";
  });
  canvas.addEventListener("pointerup", (event) => {
    if (!data || !lasso) return;
    const polygon = lasso;
    lasso = null;
    if (!moved || polygon.length < 4) {
      const n = nearest(at(event));
      if (n !== null) window.location.assign(address(n));
      picked = new Set();
    } else {
      picked = new Set();
      const here = frame();
      for (let n = 0; n < data.count; n += 1) if (inside(toScreen(n, here), polygon)) picked.add(n);
    }
    choose();
    draw();
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const factor = event.deltaY < 0 ? 1.25 : 0.8, before = zoom;
    zoom = Math.max(0.5, Math.min(60, zoom * factor));
    const side = Math.min(canvas.clientWidth, canvas.clientHeight) * 0.94, [x, y] = at(event), grow = 1 / before - 1 / zoom;
    cx += ((x - canvas.clientWidth / 2) / (side * (canvas.clientWidth / Math.min(canvas.clientWidth, canvas.clientHeight)))) * grow;
    cy += ((y - canvas.clientHeight / 2) / side) * grow;
    draw();
  }, { passive: false });
  choice.addEventListener("change", colours);
  new ResizeObserver(draw).observe(place);

  fetch(place.dataset.points).then((answer) => answer.arrayBuffer()).then((buffer) => {
    data = parse(buffer);
    const span = (values) => { let low = Infinity, high = -Infinity; for (const value of values) { if (value < low) low = value; if (value > high) high = value; } return [low, high - low || 1]; };
    bounds = [span(data.x), span(data.y)];
    data.u = data.x.map((value) => (value - bounds[0][0]) / bounds[0][1]);
    data.v = data.y.map((value) => 1 - (value - bounds[1][0]) / bounds[1][1]);
    colours();
    place.dataset.ready = String(data.count);
  });
})();
