// Look at the exact values of a picture: zoom, pan, numbers under the pointer, one channel, two pictures against each other.
//
//   data-exact="URL"   on a button: where its values come from; data-name: what it is called
//   data-values="TEXT" in a report, which loads nothing: the values themselves, packed; empty where only the small picture is there
//   data-heat          its values are a heat map, shown in colours; data-over: the address of the picture that it lies over
//   data-pair="KEY"    two buttons with the same key belong together; data-difference="KEY" opens both in difference mode
"use strict";

(function () {
  const TYPES = { uint8: Uint8Array, int8: Int8Array, uint16: Uint16Array, int16: Int16Array, uint32: Uint32Array, int32: Int32Array, float32: Float32Array, float64: Float64Array };
  const known = new Map();
  let view = null;

  function make(name, properties = {}, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  // ---- values

  function parse(buffer, heat) {
    const length = new DataView(buffer).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
    const [height, width, channels] = head.shape;
    return prepare({ height, width, channels, dtype: head.dtype, values: new TYPES[head.stored](buffer, 4 + length), heat, note: "" });
  }

  function prepare(picture) {
    let low = Infinity, high = -Infinity;
    for (const value of picture.values) if (Number.isFinite(value)) { if (value < low) low = value; if (value > high) high = value; }
    const plain = picture.dtype === "uint8";
    // Floats from 0 to 1 are levels too: stretched, they would look brighter than the picture that they are.
    if (!picture.heat && picture.dtype.startsWith("float") && low >= 0 && high <= 1 && high > 0.05) { low = 0; high = 1; }
    return Object.assign(picture, { low: plain ? 0 : low, high: plain ? 255 : high, seen: [low, high], drawn: new Map() });
  }

  // What stands in where there are no exact values: the small picture of the page, marked as such.
  async function fromPreview(button, why) {
    const shown = button.querySelector("img");
    if (!shown || !shown.naturalWidth) return { error: why };
    const canvas = make("canvas", { width: shown.naturalWidth, height: shown.naturalHeight });
    const pen = canvas.getContext("2d");
    pen.drawImage(shown, 0, 0);
    const all = pen.getImageData(0, 0, canvas.width, canvas.height).data;
    const values = new Uint8Array(canvas.width * canvas.height * 3);
    for (let n = 0; n < canvas.width * canvas.height; n += 1) for (let c = 0; c < 3; c += 1) values[3 * n + c] = all[4 * n + c];
    return prepare({ height: canvas.height, width: canvas.width, channels: 3, dtype: "uint8", values, note: "This is the small preview, not the exact values. " + why + " " });
  }

  // The values that a report holds: deflated, as base64.
  async function unpack(button) {
    const packed = button.dataset.values;
    if (!packed) return fromPreview(button, "This file has no room for them: audit ui shows them.");
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    return parse(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer());
  }

  async function fetchValues(button) {
    const address = button.dataset.exact;
    if (button.dataset.values !== undefined) return unpack(button);
    try {
      let answer = await fetch(address, { credentials: "same-origin" });
      if (answer.ok) return parse(await answer.arrayBuffer(), button.dataset.heat !== undefined);
      let said = await answer.json();
      if (said.derive) {
        known.set(address, await fromPreview(button, said.error));
        begin("Recomputing this sample from its source. This starts a process, loads torch and runs the pipeline");
        draw();
        answer = await fetch(address, { method: "POST", credentials: "same-origin" });
        if (answer.ok) return parse(await answer.arrayBuffer());
        said = await answer.json();
      }
      return fromPreview(button, said.error);
    } catch {
      return fromPreview(button, "The server did not answer. Is audit ui still running?");
    }
  }

  async function need(button) {
    const address = button.dataset.exact, have = known.get(address);
    if (have) return;
    const wanted = view;
    begin("Loading");
    known.set(address, await fetchValues(button));
    end();
    if (view === wanted) draw();
  }

  let ticking = null;
  function begin(text) {
    if (!view) return;
    end();
    const started = performance.now();
    const tell = () => { view.progress.hidden = false; view.doing.textContent = text + "… " + Math.round((performance.now() - started) / 1000) + " s"; };
    tell();
    ticking = setInterval(() => (view ? tell() : end()), 500);
  }
  function end() {
    clearInterval(ticking);
    if (view) { view.progress.hidden = true; view.doing.textContent = ""; }
  }

  // ---- drawing

  function level(picture, value) {
    if (!Number.isFinite(value)) return null;
    const span = picture.high - picture.low;
    return span > 0 ? (255 * (value - picture.low)) / span : picture.dtype === "uint8" ? value : 0;
  }

  // Colours of a heat map, as on the page: dark blue, violet, red, orange, yellow.
  const RAMP = [[8, 6, 60], [106, 23, 110], [200, 60, 70], [248, 149, 34], [252, 255, 164]];
  function ramp(shown) {
    if (shown === null) return [255, 0, 255, 255];
    const place = (shown / 255) * (RAMP.length - 1), below = Math.min(Math.floor(place), RAMP.length - 2), part = place - below;
    return [...RAMP[below].map((value, c) => value * (1 - part) + RAMP[below + 1][c] * part), 255];
  }

  // Boxes and masks that lie over the picture of the page, drawn over its values.
  const LINES = { target: "#34c759", predicted: "#0a84ff", off: "#ff453a" };
  function drawOver(pane, button, place) {
    if (!view.over.checked) return;
    const pen = pane.getContext("2d"), mask = button.querySelector("img.over:not(.heat)"), svg = button.querySelector("svg.over");
    pen.globalAlpha = 1;
    pen.imageSmoothingEnabled = false;
    if (mask && mask.naturalWidth) pen.drawImage(mask, place.left, place.top, place.width, place.height);
    if (!svg) return;
    const sx = place.width / svg.viewBox.baseVal.width, sy = place.height / svg.viewBox.baseVal.height;
    pen.font = "12px system-ui, sans-serif";
    for (const group of svg.querySelectorAll("g")) {
      const [x, y, width, height] = ["x", "y", "width", "height"].map((name) => group.querySelector("rect")[name].baseVal.value);
      const left = place.left + x * sx, top = place.top + y * sy, text = group.textContent.trim();
      pen.strokeStyle = pen.fillStyle = LINES[group.classList[0]] || LINES.predicted;
      pen.lineWidth = group.classList.contains("target") ? 3 : 2;
      pen.strokeRect(left, top, width * sx, height * sy);
      if (width * sx < 60) continue;
      pen.fillRect(left - 1, top - 16, pen.measureText(text).width + 8, 16);
      pen.fillStyle = "#000";
      pen.fillText(text, left + 3, top - 4);
    }
  }

  // The picture as pixels of a hidden canvas, made once for each channel.
  function painted(picture, channel) {
    const key = String(channel);
    if (picture.drawn.has(key)) return picture.drawn.get(key);
    const { width, height, channels, values } = picture;
    const canvas = make("canvas", { width, height }), image = new ImageData(width, height);
    const colour = channel === "all" && channels >= 3 && !picture.heat;
    const only = channel === "all" ? 0 : Math.min(channel, channels - 1);
    for (let n = 0; n < width * height; n += 1) {
      if (picture.heat) { image.data.set(ramp(level(picture, values[n * channels + only])), 4 * n); continue; }
      for (let c = 0; c < 3; c += 1) {
        const shown = level(picture, values[n * channels + (colour ? c : only)]);
        image.data[4 * n + c] = shown === null ? [255, 0, 255][c] : shown; // what is not finite is magenta
      }
      image.data[4 * n + 3] = 255;
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
    picture.drawn.set(key, canvas);
    return canvas;
  }

  // B at the place of A's pixel: the same pixel where sizes agree, else the one at the same share of the width and height.
  function partner(a, b, x, y) {
    const bx = Math.min(b.width - 1, Math.floor(((x + 0.5) / a.width) * b.width)), by = Math.min(b.height - 1, Math.floor(((y + 0.5) / a.height) * b.height));
    return (by * b.width + bx) * b.channels;
  }

  function difference(a, b, channel) {
    if (view.cached && view.cached.a === a && view.cached.b === b && view.cached.channel === channel) return view.cached;
    const canvas = make("canvas", { width: a.width, height: a.height }), image = new ImageData(a.width, a.height);
    const levels = a.dtype !== b.dtype, chosen = channel === "all" ? [...Array(Math.min(a.channels, b.channels)).keys()] : [Math.min(channel, a.channels - 1, b.channels - 1)];
    const found = new Float64Array(a.width * a.height);
    let largest = 0;
    for (let y = 0; y < a.height; y += 1) {
      for (let x = 0; x < a.width; x += 1) {
        const at = (y * a.width + x) * a.channels, other = partner(a, b, x, y);
        let most = 0;
        for (const c of chosen) {
          const one = a.values[at + c], two = b.values[other + c];
          const apart = Math.abs(levels ? level(b, two) - level(a, one) : two - one);
          if (apart > most) most = apart;
        }
        found[y * a.width + x] = most;
        if (most > largest) largest = most;
      }
    }
    // Levels of two types differ by rounding: less than half a level is not drawn as a difference.
    if (levels && largest < 0.5) { found.fill(0); largest = 0; }
    found.forEach((value, n) => {
      const shown = largest ? Math.sqrt(value / largest) : 0;
      image.data.set([255 * Math.min(1, shown * 1.6), 255 * Math.max(0, shown * 1.6 - 0.6), 60 * shown, 255], 4 * n);
    });
    canvas.getContext("2d").putImageData(image, 0, 0);
    view.cached = { a, b, channel, canvas, largest, levels };
    return view.cached;
  }

  function box(picture, pane) {
    const scale = view.zoom * (view.base.height / picture.height);
    const width = picture.width * scale, height = picture.height * scale;
    return { left: pane.clientWidth / 2 - view.x * width, top: pane.clientHeight / 2 - view.y * height, width, height };
  }

  function put(pane, canvas, place, alpha = 1) {
    const pen = pane.getContext("2d");
    pen.globalAlpha = alpha;
    pen.imageSmoothingEnabled = place.width < canvas.width;
    pen.imageSmoothingQuality = "high";
    pen.drawImage(canvas, place.left, place.top, place.width, place.height);
  }

  function clear(pane) {
    const ratio = window.devicePixelRatio || 1;
    pane.width = pane.clientWidth * ratio;
    pane.height = pane.clientHeight * ratio;
    pane.getContext("2d").scale(ratio, ratio);
  }

  function draw() {
    if (!view) return;
    const first = known.get(view.buttons[view.a].dataset.exact), two = view.mode.value !== "one";
    const second = two ? known.get(view.buttons[view.b].dataset.exact) : null;
    view.second.hidden = view.mode.value !== "side";
    view.withB.hidden = !two;
    view.amount.hidden = view.mode.value !== "blend";
    if (!first) return;
    if (first.error) { clear(view.first); view.facts.textContent = first.error; return; }
    view.base = first;
    if (view.fitting) fit();
    channels(first, second && !second.error ? second : null);
    const channel = view.channel.value === "all" ? "all" : Number(view.channel.value);
    const place = box(first, view.first);
    clear(view.first);
    let note = describe(first);
    if (two && second && !second.error) {
      if (view.mode.value === "side") {
        clear(view.second);
        put(view.second, painted(second, channel), box(second, view.second));
        drawOver(view.second, view.buttons[view.b], box(second, view.second));
      }
      note += " — B: " + describe(second);
    }
    if (view.mode.value === "difference" && second && !second.error) {
      const apart = difference(first, second, channel);
      put(view.first, apart.canvas, place);
      const same = first.width === second.width && first.height === second.height;
      note = (apart.largest ? "largest difference " + short(apart.largest) + (apart.levels ? " of 255 shown levels: A and B have different types" : "") : apart.levels ? "no difference in the 255 shown levels: A and B have different types" : "no difference") + (same ? "" : ", B sampled at A's pixels because the sizes differ");
    } else {
      put(view.first, painted(first, channel), place);
      if (view.mode.value === "blend" && second && !second.error) put(view.first, painted(second, channel), place, Number(view.blend.value));
    }
    drawOver(view.first, view.buttons[view.a], place);
    view.facts.textContent = note;
    view.scale.textContent = Math.round(view.zoom * 100) + " %";
    view.dialog.dataset.ready = [first, second].filter(Boolean).map((p) => p.dtype + " " + p.width + "x" + p.height).join(", ");
  }

  function describe(picture) {
    const range = picture.dtype === "uint8" ? "values " + picture.seen[0] + " to " + picture.seen[1] : "shown from " + short(picture.low) + " to " + short(picture.high);
    return picture.note + picture.dtype + ", " + picture.width + " × " + picture.height + ", " + picture.channels + (picture.channels === 1 ? " channel, " : " channels, ") + range;
  }

  function short(value) { return Number.isFinite(value) ? String(Number(value.toPrecision(6))) : String(value); }

  function channels(first, second) {
    const most = Math.min(first.channels, second ? second.channels : Infinity);
    if (view.listed === first.channels) return;
    const before = view.channel.value, names = first.channels === 3 || first.channels === 4 ? ["red", "green", "blue", "alpha"] : [];
    const all = first.channels === 1 || first.channels >= 3 ? [make("option", { value: "all", textContent: "all" })] : [];
    view.channel.replaceChildren(...all, ...[...Array(Math.min(most, first.channels)).keys()].map((n) => make("option", { value: String(n), textContent: n + (names[n] ? " " + names[n] : "") })));
    if ([...view.channel.options].some((option) => option.value === before)) view.channel.value = before;
    view.listed = first.channels;
  }

  // ---- moving

  function fit() {
    const pane = view.first;
    view.zoom = Math.min(pane.clientWidth / view.base.width, pane.clientHeight / view.base.height) * 0.98;
    if (view.zoom > 1 && view.zoom < 40) view.zoom = Math.max(1, Math.floor(view.zoom * 2) / 2);
    view.x = view.y = 0.5;
  }

  function zoomBy(factor, at = null) {
    if (!view.base) return;
    view.fitting = false; // until then the picture follows the size of the window
    const zoom = Math.max(0.02, Math.min(100, view.zoom * factor));
    if (at) { // the pixel under the pointer stays where it is
      const place = box(view.base, view.first), grow = zoom / view.zoom;
      const fx = (at.x - place.left) / place.width, fy = (at.y - place.top) / place.height;
      view.x += (fx - view.x) * (1 - 1 / grow);
      view.y += (fy - view.y) * (1 - 1 / grow);
    }
    view.zoom = zoom;
    draw();
  }

  function read(event, pane) {
    const shown = known.get(view.buttons[pane === view.second ? view.b : view.a].dataset.exact);
    if (!shown || shown.error) return;
    const place = box(shown, pane), edge = pane.getBoundingClientRect();
    const x = Math.floor(((event.clientX - edge.left - place.left) / place.width) * shown.width), y = Math.floor(((event.clientY - edge.top - place.top) / place.height) * shown.height);
    if (x < 0 || y < 0 || x >= shown.width || y >= shown.height) { view.pixel.textContent = ""; return; }
    const numbers = (picture, at) => [...Array(Math.min(picture.channels, 8)).keys()].map((c) => short(picture.values[at + c])).join("  ");
    const at = (y * shown.width + x) * shown.channels;
    let text = "x " + x + "  y " + y + "   " + numbers(shown, at);
    const other = view.mode.value === "one" || pane === view.second ? null : known.get(view.buttons[view.b].dataset.exact);
    if (other && !other.error) text += "   B " + numbers(other, partner(shown, other, x, y));
    view.pixel.textContent = text;
  }

  function watch(pane) {
    let grip = null;
    pane.addEventListener("wheel", (event) => {
      event.preventDefault();
      const edge = pane.getBoundingClientRect();
      zoomBy(event.deltaY < 0 ? 1.25 : 0.8, { x: event.clientX - edge.left, y: event.clientY - edge.top });
    }, { passive: false });
    pane.addEventListener("pointerdown", (event) => { grip = { x: event.clientX, y: event.clientY }; pane.setPointerCapture(event.pointerId); });
    pane.addEventListener("pointerup", () => { grip = null; });
    pane.addEventListener("pointermove", (event) => {
      if (grip && view.base) {
        const place = box(view.base, view.first);
        view.fitting = false;
        view.x -= (event.clientX - grip.x) / place.width;
        view.y -= (event.clientY - grip.y) / place.height;
        grip = { x: event.clientX, y: event.clientY };
        draw();
      }
      read(event, pane);
    });
    pane.addEventListener("pointerleave", () => { view.pixel.textContent = ""; });
  }

  function keys(event) {
    event.stopPropagation();
    if (event.target.closest("select, input")) return;
    const pan = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (pan) { view.fitting = false; const place = box(view.base, view.first); view.x += (pan[0] * 60) / place.width; view.y += (pan[1] * 60) / place.height; draw(); event.preventDefault(); }
    else if (event.key === "+" || event.key === "=") zoomBy(1.5);
    else if (event.key === "-") zoomBy(1 / 1.5);
    else if (event.key === "0") { view.fitting = true; draw(); }
    else if (event.key === "1") zoomBy(1 / view.zoom);
    else if (event.key === "[" || event.key === "]") choose("a", Math.max(0, Math.min(view.buttons.length - 1, view.a + (event.key === "]" ? 1 : -1))));
  }

  function choose(side, number) {
    view[side] = number;
    view[side + "Name"].value = String(number);
    need(view.buttons[view.a]);
    if (view.mode.value !== "one") need(view.buttons[view.b]);
    draw();
  }

  // ---- the dialog

  function labelled(text, control, name = text) { control.setAttribute("aria-label", name); return make("label", {}, text + " ", control); }
  function button(text, title, act) { const made = make("button", { type: "button", textContent: text, title }); made.addEventListener("click", act); return made; }

  function build(buttons) {
    const list = () => make("select", {}, ...buttons.map((one, n) => make("option", { value: String(n), textContent: one.dataset.name })));
    const modes = [["one", "one picture"], ["side", "side by side"], ["blend", "blended"], ["difference", "difference"]];
    const made = {
      buttons, base: null, fitting: true, zoom: 1, x: 0.5, y: 0.5, listed: null, cached: null,
      aName: list(), bName: list(), mode: make("select", {}, ...modes.map(([value, textContent]) => make("option", { value, textContent }))), channel: make("select"),
      blend: make("input", { type: "range", min: "0", max: "1", step: "0.01", value: "0.5" }), first: make("canvas", { className: "pane" }), second: make("canvas", { className: "pane" }),
      over: make("input", { type: "checkbox", checked: true }), facts: make("p", { className: "facts" }), pixel: make("output", { className: "pixel" }), scale: make("span", { className: "dim" }), doing: make("span"), progress: make("p", { className: "doing", hidden: true }),
    };
    made.progress.setAttribute("role", "status");
    made.progress.append(make("progress"), " ", made.doing);
    made.progress.querySelector("progress").setAttribute("aria-label", "loading values");
    made.withB = labelled("B", made.bName, "picture B");
    made.amount = labelled("A to B", made.blend);
    const over = make("label", { hidden: !buttons.some((one) => one.querySelector(".over:not(.heat)")) }, made.over, " boxes and masks");
    const bar = make("div", { className: "tools" }, labelled("A", made.aName, "picture A"), labelled("show", made.mode), made.withB, made.amount, labelled("channel", made.channel), over,
      button("−", "zoom out (-)", () => zoomBy(1 / 1.5)), made.scale, button("+", "zoom in (+)", () => zoomBy(1.5)), button("fit", "fit the window (0)", () => { view.fitting = true; draw(); }), button("1:1", "one pixel for one value (1)", () => zoomBy(1 / view.zoom)),
      button("Close", "close (Escape)", () => made.dialog.close()));
    made.dialog = make("dialog", { className: "viewer" }, bar, make("div", { className: "panes" }, made.first, made.second), made.progress, made.facts, made.pixel);
    made.dialog.setAttribute("aria-label", "exact values of a picture");
    for (const [pane, name] of [[made.first, "values of A"], [made.second, "values of B"]]) { pane.setAttribute("role", "img"); pane.setAttribute("aria-label", name); watch(pane); }
    made.aName.addEventListener("change", () => choose("a", Number(made.aName.value)));
    made.bName.addEventListener("change", () => choose("b", Number(made.bName.value)));
    made.mode.addEventListener("change", () => choose("b", view.b));
    for (const control of [made.channel, made.blend, made.over]) control.addEventListener("input", draw);
    made.dialog.addEventListener("keydown", keys);
    made.dialog.addEventListener("close", () => { end(); view = null; made.dialog.remove(); });
    const resized = new ResizeObserver(() => draw());
    resized.observe(made.dialog);
    resized.observe(made.first);
    return made;
  }

  function open(opener) {
    const buttons = [...(opener.closest(".mistake") || document).querySelectorAll("[data-exact]")];
    const pair = opener.dataset.difference || opener.dataset.pair;
    const mates = pair ? buttons.filter((one) => one.dataset.pair === pair) : [];
    const a = mates.length ? buttons.indexOf(opener.dataset.difference ? mates[0] : opener) : buttons.indexOf(opener);
    const other = mates.find((one) => buttons.indexOf(one) !== a);
    const under = opener.dataset.over ? buttons.findIndex((one) => one.dataset.exact === opener.dataset.over) : -1;
    const b = other ? buttons.indexOf(other) : under >= 0 ? under : a > 0 ? a - 1 : Math.min(1, buttons.length - 1);
    view = build(buttons);
    document.body.append(view.dialog);
    view.dialog.showModal();
    if (opener.dataset.difference) view.mode.value = "difference";
    if (opener.dataset.over) view.mode.value = "blend";
    view.bName.value = String(b);
    view.b = b;
    choose("a", a);
  }

  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-exact], [data-difference]");
    if (!opener) return;
    event.preventDefault(); // in a report the opener is a label, which enlarges the picture where scripts are forbidden
    open(opener);
  });
})();
