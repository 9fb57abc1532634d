// A map of samples on a canvas: colours, zoom, moving, a tip with the picture, a click that opens one, a lasso that opens a gallery.
//
// Points lie in typed arrays. Very many of them are written as pixels of one image that is kept; few are drawn as discs. The
// lasso has a canvas of its own above them, so that dragging it draws no point again. At most one drawing for each frame.
"use strict";

(function () {
  const place = document.querySelector("#map");
  if (!place) return;
  const [canvas, above] = place.querySelectorAll("canvas"), tip = document.querySelector("#map-tip"), chosen = document.querySelector("#map-chosen");
  const choice = document.querySelector("#map-colour"), legend = document.querySelector("#map-legend"), moves = document.querySelector("#map-moves");
  const MANY = 10000, LISTED = 300, CORNERS = 60; // more picked points than LISTED are named by the corners of the lasso
  let data = null, zoom = 1, cx = 0.5, cy = 0.5, lasso = null, grip = null, waiting = 0, image = null, picked = null, count = 0, hovered = null;

  function hue(n, of) { return "hsl(" + Math.round((n * 360) / of + (n % 2 ? 18 : 0)) + " 65% " + (n % 2 ? 42 : 55) + "%)"; }
  function ramp(share) { return "hsl(" + Math.round(220 - 220 * share) + " 75% 52%)"; }
  function css(name) { return getComputedStyle(document.body).getPropertyValue(name).trim(); }

  function parse(buffer) {
    const length = new DataView(buffer).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
    let at = 4 + length;
    for (const name of head.integers) { head[name] = new Int32Array(buffer, at, head.count); at += 4 * head.count; }
    for (const name of head.floats) { head[name] = new Float32Array(buffer, at, head.count); at += 4 * head.count; }
    return head;
  }

  // ---- colours: a key for each point, then for each key a label, a colour, and how many

  function keys() {
    const by = choice.value, found = new Int32Array(data.count);
    if (by !== "loss" && by !== "confidence") return { found: data[by], describe: (key) => described(by, key) };
    const sorted = data[by].filter(Number.isFinite).sort(), top = sorted[Math.floor(sorted.length * 0.99)] || 1;
    for (let n = 0; n < data.count; n += 1) found[n] = Number.isFinite(data[by][n]) ? Math.min(7, Math.floor((data[by][n] / top) * 8)) : -1;
    return { found, describe: (key) => (key < 0 ? ["none", "#888"] : [Number(((key * top) / 8).toPrecision(2)) + " and more", ramp(key / 7)]) };
  }

  function described(by, key) {
    if (key < 0) return [by === "correct" ? "not graded" : "none", "#888"];
    if (by === "correct") return key ? ["right", "#4a9d6c"] : ["wrong", "#e04f3a"];
    if (by === "epoch") return ["epoch " + key, ramp(data.last ? key / data.last : 0)];
    if (by === "split") return [data.splits[key], hue(key, Math.max(data.splits.length, 2))];
    return [data.classes[key] || String(key), hue(key, Math.max(data.classes.length, 2))];
  }

  function colours() {
    const { found, describe } = keys(), counts = new Map();
    for (let n = 0; n < data.count; n += 1) counts.set(found[n], (counts.get(found[n]) || 0) + 1);
    // What is wrong lies above what is right.
    const order = [...counts.keys()].sort((a, b) => (choice.value === "correct" ? b - a : a - b));
    const numbers = new Map(order.map((key, number) => [key, number]));
    data.groups = order.map((key) => { const [label, colour] = describe(key); return { label, colour, count: counts.get(key) }; });
    data.group = new Uint16Array(data.count);
    data.order = new Uint32Array(data.count);
    const starts = new Uint32Array(order.length);
    order.forEach((key, number) => { starts[number] = number ? starts[number - 1] + counts.get(order[number - 1]) : 0; });
    for (let n = 0; n < data.count; n += 1) { const number = numbers.get(found[n]); data.group[n] = number; data.order[starts[number]] = n; starts[number] += 1; }
    paints();
    legend.replaceChildren(...data.groups.slice(0, 40).map((group) => {
      const item = document.createElement("span"), mark = document.createElement("i");
      mark.style.background = group.colour;
      item.append(mark, group.label + " (" + group.count.toLocaleString("en") + ")");
      return item;
    }), ...(data.groups.length > 40 ? ["and " + (data.groups.length - 40) + " more"] : []));
    later();
  }

  // Each colour as it is, and faded towards the page for points that are not picked: as pixels, and as small discs.
  function paints() {
    const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true }), page = css("--page") || "#fff";
    const pixel = (colour, share) => {
      pen.globalAlpha = 1; pen.fillStyle = page; pen.fillRect(0, 0, 1, 1);
      pen.globalAlpha = share; pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
      return new Uint32Array(pen.getImageData(0, 0, 1, 1).data.buffer)[0];
    };
    data.pixels = new Uint32Array(2 * data.groups.length);
    data.groups.forEach((group, number) => { data.pixels[2 * number] = pixel(group.colour, 1); data.pixels[2 * number + 1] = pixel(group.colour, 0.18); });
    const ratio = window.devicePixelRatio || 1, size = Math.ceil(dot() * ratio) + 2;
    data.discs = data.count > MANY ? [] : data.groups.flatMap((group) => [0.9, 0.16].map((share) => {
      const disc = document.createElement("canvas"), brush = disc.getContext("2d");
      disc.width = disc.height = size;
      brush.globalAlpha = share; brush.fillStyle = group.colour;
      brush.beginPath(); brush.arc(size / 2, size / 2, (dot() * ratio) / 2, 0, 7); brush.fill();
      return disc;
    }));
  }

  function dot() { return data.count > MANY ? 2 : data.count > 3000 ? 5 : data.count > 500 ? 7 : 9; }

  // ---- drawing

  // Where places of 0 to 1 are on the canvas: scale and offset of each axis.
  function frame() {
    const width = canvas.clientWidth, height = canvas.clientHeight, kx = width * 0.94 * zoom, ky = height * 0.94 * zoom;
    return { kx, ky, x0: width / 2 - cx * kx, y0: height / 2 - cy * ky };
  }

  function later() { if (!waiting) waiting = requestAnimationFrame(() => { waiting = 0; draw(); }); }

  function sized(one) {
    const ratio = window.devicePixelRatio || 1, width = Math.round(one.clientWidth * ratio), height = Math.round(one.clientHeight * ratio);
    if (one.width !== width || one.height !== height) { one.width = width; one.height = height; return true; }
    return false;
  }

  function draw() {
    if (!data || !canvas.clientWidth) return;
    const ratio = window.devicePixelRatio || 1, pen = canvas.getContext("2d");
    if (sized(canvas) || !image) image = pen.createImageData(canvas.width, canvas.height);
    if (data.count > MANY) drawPixels(pen, ratio);
    else drawDiscs(pen, ratio);
    place.dataset.drawn = String(Number(place.dataset.drawn || 0) + 1);
  }

  function drawPixels(pen, ratio) {
    const { width, height } = canvas, out = new Uint32Array(image.data.buffer), { order, group, pixels, u, v } = data;
    const here = frame(), kx = here.kx * ratio, ky = here.ky * ratio, x0 = here.x0 * ratio, y0 = here.y0 * ratio;
    const size = Math.max(2, Math.round(Math.min(6, 2 * ratio * Math.sqrt(zoom))));
    out.fill(0);
    for (let pass = 0; pass < (count ? 2 : 1); pass += 1) { // what is picked lies above the rest
      for (let i = 0; i < order.length; i += 1) {
        const n = order[i];
        if (count && picked[n] !== pass) continue;
        const left = (x0 + u[n] * kx) | 0, top = (y0 + v[n] * ky) | 0;
        if (left < 0 || top < 0 || left + size > width || top + size > height) continue;
        const paint = pixels[2 * group[n] + (count && !pass ? 1 : 0)];
        for (let y = 0, at = top * width + left; y < size; y += 1, at += width) for (let x = 0; x < size; x += 1) out[at + x] = paint;
      }
    }
    pen.putImageData(image, 0, 0);
  }

  function drawDiscs(pen, ratio) {
    const { kx, ky, x0, y0 } = frame();
    pen.clearRect(0, 0, canvas.width, canvas.height);
    for (let pass = 0; pass < (count ? 2 : 1); pass += 1) {
      for (const n of data.order) {
        if (count && picked[n] !== pass) continue;
        const disc = data.discs[2 * data.group[n] + (count && !pass ? 1 : 0)];
        pen.drawImage(disc, (x0 + data.u[n] * kx) * ratio - disc.width / 2, (y0 + data.v[n] * ky) * ratio - disc.height / 2);
      }
    }
  }

  function drawAbove() {
    const ratio = window.devicePixelRatio || 1, pen = above.getContext("2d");
    sized(above);
    pen.clearRect(0, 0, above.width, above.height);
    pen.lineWidth = 1.5 * ratio;
    pen.strokeStyle = css("--ink");
    pen.beginPath();
    if (lasso) lasso.forEach(([x, y], n) => (n ? pen.lineTo(x * ratio, y * ratio) : pen.moveTo(x * ratio, y * ratio)));
    else if (hovered !== null) { const [x, y] = toScreen(hovered); pen.arc(x * ratio, y * ratio, (dot() / 2 + 3) * ratio, 0, 7); }
    pen.closePath();
    pen.stroke();
  }

  function toScreen(n) { const { kx, ky, x0, y0 } = frame(); return [x0 + data.u[n] * kx, y0 + data.v[n] * ky]; }

  function at(event) { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; }

  function nearest([x, y]) {
    const { kx, ky, x0, y0 } = frame(), { u, v } = data;
    let best = 100, found = null;
    for (let n = 0; n < data.count; n += 1) { const dx = x0 + u[n] * kx - x, dy = y0 + v[n] * ky - y, d = dx * dx + dy * dy; if (d < best) { best = d; found = n; } }
    return found;
  }

  // ---- the lasso

  // Fewer corners that look the same: the one whose neighbours' line is nearest goes, until few are left.
  function simplified(polygon) {
    const kept = polygon.filter(([x, y], n) => !n || Math.hypot(x - polygon[n - 1][0], y - polygon[n - 1][1]) > 1);
    const area = (n) => { const [a, b, c] = [kept.at(n - 1), kept[n], kept[(n + 1) % kept.length]]; return Math.abs((b[0] - a[0]) * (c[1] - a[1]) - (c[0] - a[0]) * (b[1] - a[1])); };
    while (kept.length > CORNERS) {
      let least = 0;
      for (let n = 1; n < kept.length; n += 1) if (area(n) < area(least)) least = n;
      kept.splice(least, 1);
    }
    return kept;
  }

  // The corners as numbers of the store: the page and SQL then decide alike.
  function corners(polygon) {
    const { kx, ky, x0, y0 } = frame(), [[left, wide], [low, high]] = data.bounds;
    return polygon.map(([x, y]) => [left + ((x - x0) / kx) * wide, low + (1 - (y - y0) / ky) * high].map((value) => Number(value.toPrecision(9))));
  }

  function pick(polygon) {
    picked = new Uint8Array(data.count);
    count = 0;
    for (let n = 0; n < data.count; n += 1) {
      const x = data.x[n], y = data.y[n];
      let odd = 0;
      for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i, i += 1) {
        const [x1, y1] = polygon[j], [x2, y2] = polygon[i];
        if (y1 > y !== y2 > y && x < ((x2 - x1) * (y - y1)) / (y2 - y1) + x1) odd ^= 1;
      }
      picked[n] = odd;
      count += odd;
    }
  }

  function condition(polygon) {
    const run = "run_id = '" + place.dataset.run + "'";
    // Loaders of one run, such as training and validation, have samples of the same index.
    const several = place.dataset.epochs > 1 || data.visit.some((visit) => visit > 0), key = several ? "(epoch, index, visit)" : "index";
    const listed = (n) => (several ? "(" + [data.epoch[n], data.index[n], data.visit[n]].join(", ") + ")" : data.index[n]);
    if (count <= LISTED) return key + " IN (" + [...picked.keys()].filter((n) => picked[n]).map(listed).join(", ") + ")";
    const edges = polygon.map(([x, y], n) => "(" + [...polygon.at(n - 1), x, y].join(", ") + ")").join(", ");
    const bound = (axis, name) => name + " BETWEEN " + Math.min(...polygon.map((one) => one[axis])) + " AND " + Math.max(...polygon.map((one) => one[axis]));
    return key + " IN (SELECT " + key + " FROM embeddings, (VALUES " + edges + ") AS edges(x1, y1, x2, y2) WHERE " + run + " AND " + bound(0, "x") + " AND " + bound(1, "y")
      + " GROUP BY epoch, index, visit, x, y HAVING count(*) FILTER ((y1 > y) <> (y2 > y) AND x < (x2 - x1)::DOUBLE * (y - y1) / (y2 - y1) + x1) % 2 = 1)";
  }

  function choose(polygon) {
    chosen.hidden = !count;
    if (!count) return;
    chosen.href = "/run/" + encodeURIComponent(place.dataset.run) + "/gallery?" + new URLSearchParams({ where: condition(polygon), ...(place.dataset.epochs > 1 ? { of: "all" } : {}) });
    chosen.textContent = count.toLocaleString("en") + (count === 1 ? " sample" : " samples") + " as a gallery";
  }

  // What a lasso is to the pointer: all that is in view, and the link to it.
  function chooseView() {
    const { clientWidth: width, clientHeight: height } = canvas, polygon = corners([[0, 0], [width, 0], [width, height], [0, height]]);
    pick(polygon);
    choose(polygon);
    later();
    if (count) chosen.focus();
  }

  // ---- pointer and keys

  function address(n) { return "/run/" + encodeURIComponent(place.dataset.run) + "/trace/" + data.index[n] + "?" + new URLSearchParams({ epoch: data.epoch[n], visit: data.visit[n] }); }

  function hover(n) {
    if (n === hovered) return;
    hovered = n;
    tip.hidden = n === null;
    above.style.cursor = n !== null ? "pointer" : moves.checked ? "grab" : "crosshair";
    drawAbove();
    if (n === null) return;
    const picture = tip.querySelector("img"), source = "/run/" + encodeURIComponent(place.dataset.run) + "/picture/" + data.index[n] + "/0?" + new URLSearchParams({ epoch: data.epoch[n], visit: data.visit[n] });
    if (picture.getAttribute("src") !== source) { picture.style.visibility = ""; picture.src = source; }
    const name = (value) => (value < 0 ? "none" : printable(data.classes[value] || value));
    tip.querySelector("figcaption").textContent = name(data.label[n]) + " → " + name(data.predicted[n]);
    const [x, y] = toScreen(n);
    tip.style.left = (x + 154 > canvas.clientWidth ? x - 142 : x + 12) + "px";
    tip.style.top = (y + 172 > canvas.clientHeight ? Math.max(0, y - 168) : y + 12) + "px";
  }

  let moved = 0;
  above.addEventListener("pointerdown", (event) => {
    if (!data) return;
    const here = at(event);
    moved = 0;
    if (moves.checked || event.shiftKey || event.button === 1) grip = here;
    else if (event.button === 0) lasso = [here];
    above.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  above.addEventListener("pointermove", (event) => {
    if (!data) return;
    const here = at(event);
    if (lasso) { moved += 1; lasso.push(here); hover(null); drawAbove(); return; }
    if (!grip) { hover(nearest(here)); return; }
    const { kx, ky } = frame();
    moved += Math.abs(here[0] - grip[0]) + Math.abs(here[1] - grip[1]);
    cx -= (here[0] - grip[0]) / kx;
    cy -= (here[1] - grip[1]) / ky;
    grip = here;
    hover(null);
    later();
  });
  above.addEventListener("pointerup", (event) => {
    if (!data || !(lasso || grip)) return;
    const polygon = lasso ? corners(simplified(lasso)) : [], isClick = lasso ? moved < 3 : moved < 3;
    const dragged = Boolean(lasso);
    lasso = grip = null;
    if (isClick) { const n = nearest(at(event)); if (n !== null) { window.location.assign(address(n)); return; } }
    if (dragged) { pick(isClick ? [] : polygon); choose(polygon); }
    drawAbove();
    later();
  });
  above.addEventListener("pointercancel", () => { lasso = grip = null; drawAbove(); });
  above.addEventListener("pointerleave", () => hover(null));

  function zoomBy(factor, [x, y] = [canvas.clientWidth / 2, canvas.clientHeight / 2]) {
    if (!data) return;
    const before = zoom;
    zoom = Math.max(0.5, Math.min(200, zoom * factor));
    const grow = 1 / before - 1 / zoom; // what is under the pointer stays there
    cx += ((x - canvas.clientWidth / 2) / (canvas.clientWidth * 0.94)) * grow;
    cy += ((y - canvas.clientHeight / 2) / (canvas.clientHeight * 0.94)) * grow;
    hover(null);
    later();
  }
  function fit() { zoom = 1; cx = cy = 0.5; hover(null); later(); }

  above.addEventListener("wheel", (event) => { event.preventDefault(); zoomBy(event.deltaY < 0 ? 1.25 : 0.8, at(event)); }, { passive: false });
  place.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (step) { cx += (0.1 * step[0]) / zoom; cy += (0.1 * step[1]) / zoom; hover(null); later(); event.preventDefault(); }
    else if (event.key === "+" || event.key === "=") zoomBy(1.25);
    else if (event.key === "-") zoomBy(0.8);
    else if (event.key === "0") fit();
    else if (event.key === "Enter" && event.target === place && data) chooseView();
  });
  document.querySelector("#map-in").addEventListener("click", () => zoomBy(1.5));
  document.querySelector("#map-out").addEventListener("click", () => zoomBy(1 / 1.5));
  document.querySelector("#map-fit").addEventListener("click", fit);
  moves.addEventListener("change", () => { above.style.cursor = moves.checked ? "grab" : "crosshair"; });
  choice.addEventListener("change", () => { if (data) colours(); });
  new ResizeObserver(() => { image = null; if (data) { later(); drawAbove(); } }).observe(place);
  window.addEventListener("audit:theme", () => { if (data) { paints(); later(); } });

  fetch(place.dataset.points).then((answer) => answer.arrayBuffer()).then((buffer) => {
    data = parse(buffer);
    const span = (values) => { let low = Infinity, high = -Infinity; for (const value of values) { if (value < low) low = value; if (value > high) high = value; } return [low, high - low || 1]; };
    data.last = Math.max(0, ...new Set(data.epoch));
    data.bounds = [span(data.x), span(data.y)];
    data.u = data.x.map((value) => (value - data.bounds[0][0]) / data.bounds[0][1]);
    data.v = data.y.map((value) => 1 - (value - data.bounds[1][0]) / data.bounds[1][1]);
    colours();
    place.classList.remove("wait");
    place.dataset.ready = String(data.count);
  }).catch(() => { place.textContent = "The server did not answer. Is audit ui still running?"; });
})();
