// Draw lines and dots on a canvas: two axes, a readout under the pointer, and a click that names the nearest row.
"use strict";

class Plot {
  // series: [{label, colour, dots, values}], all as long as xs; null leaves a gap.
  constructor(place, { xs, series, xLabel, yLabel, logarithmic = false, range = null, xRange = null, open = null }) {
    Object.assign(this, { place, xs, series, xLabel, yLabel, logarithmic, open });
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", yLabel + " by " + xLabel);
    this.readout = document.createElement("p");
    this.readout.className = "readout";
    place.replaceChildren(this.canvas, this.readout);
    const values = series.flatMap((one) => one.values.filter((value) => value !== null && Number.isFinite(value)));
    this.y = range || Plot.bounds(values);
    this.x = xRange || Plot.bounds(xs);
    this.nearest = null;
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { this.nearest = null; this.draw(); });
    this.canvas.addEventListener("click", () => { if (open && this.nearest !== null) open(this.nearest); });
    if (open) {
      this.canvas.tabIndex = 0;
      this.canvas.setAttribute("role", "group");
      this.canvas.setAttribute("aria-label", yLabel + " by " + xLabel + ": left and right go from point to point, Enter opens its sample");
      this.canvas.addEventListener("keydown", (event) => this.press(event));
      this.canvas.addEventListener("blur", () => { this.nearest = null; this.draw(); });
    }
    new ResizeObserver(() => this.draw()).observe(place);
    this.draw();
  }

  press(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by && this.xs.length) this.nearest = this.nearest === null ? (by > 0 ? 0 : this.xs.length - 1) : Math.max(0, Math.min(this.xs.length - 1, this.nearest + by));
    else if (event.key === "Enter" && this.nearest !== null) { this.open(this.nearest); return; }
    else return;
    event.preventDefault();
    this.draw();
  }

  static bounds(values) {
    let low = Infinity, high = -Infinity;
    for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
    if (low > high) return [0, 1];
    return low === high ? [low - 0.5, high + 0.5] : [low, high];
  }

  scale(value) { return this.logarithmic ? Math.log10(Math.max(value, 1e-6)) : value; }

  left(value) { return 58 + ((value - this.x[0]) / (this.x[1] - this.x[0])) * (this.width - 70); }

  top(value) {
    const [low, high] = this.y.map((bound) => this.scale(bound));
    return this.height - 40 - ((this.scale(value) - low) / (high - low || 1)) * (this.height - 52);
  }

  draw() {
    this.width = this.place.clientWidth;
    this.height = 280;
    if (!this.width) return;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = this.width * ratio;
    this.canvas.height = this.height * ratio;
    this.canvas.style.width = this.width + "px";
    this.canvas.style.height = this.height + "px";
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "12px system-ui, sans-serif";
    this.drawAxes(pen);
    for (const one of this.series) (one.dots ? Plot.prototype.drawDots : Plot.prototype.drawLine).call(this, pen, one);
    if (this.nearest !== null) this.drawPointer(pen);
    this.legend();
  }

  ticks([low, high], count, logarithmic) {
    if (logarithmic) {
      const found = [];
      for (let power = Math.ceil(Math.log10(Math.max(low, 1e-6)) - 1e-9); power <= Math.log10(Math.max(high, 1e-6)); power += 1) found.push(10 ** power);
      if (found.length > 1) return found;
    }
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
    const found = [];
    for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
    return found;
  }

  drawAxes(pen) {
    pen.strokeStyle = colour("--rule");
    pen.fillStyle = colour("--dim");
    pen.lineWidth = 1;
    const text = (value) => (Math.abs(value) >= 10000 || (value && Math.abs(value) < 0.001) ? value.toExponential(0) : String(Number(value.toPrecision(6))));
    pen.textAlign = "center";
    for (const at of this.ticks(this.x, 8, false)) {
      this.rule(pen, this.left(at), 12, this.left(at), this.height - 40);
      pen.fillText(text(at), this.left(at), this.height - 24);
    }
    pen.textAlign = "right";
    for (const at of this.ticks(this.y, 5, this.logarithmic)) {
      this.rule(pen, 58, this.top(at), this.width - 12, this.top(at));
      pen.fillText(text(at), 52, this.top(at) + 4);
    }
    pen.textAlign = "center";
    pen.fillText(this.xLabel, (58 + this.width - 12) / 2, this.height - 6);
    pen.save();
    pen.translate(12, (this.height - 28) / 2);
    pen.rotate(-Math.PI / 2);
    pen.fillText(this.yLabel, 0, 0);
    pen.restore();
  }

  rule(pen, x1, y1, x2, y2) { pen.beginPath(); pen.moveTo(x1, y1); pen.lineTo(x2, y2); pen.stroke(); }

  drawLine(pen, { colour: stroke, values }) {
    pen.strokeStyle = stroke;
    pen.lineWidth = 1.5;
    pen.beginPath();
    const isNumber = (n) => n >= 0 && n < values.length && values[n] !== null && Number.isFinite(values[n]);
    values.forEach((value, n) => {
      if (!isNumber(n)) return;
      const x = this.left(this.xs[n]), y = this.top(value);
      if (isNumber(n - 1)) pen.lineTo(x, y);
      else pen.moveTo(x, y);
      // A number between two gaps has no line: it is shown as a short one.
      if (!isNumber(n - 1) && !isNumber(n + 1)) pen.lineTo(x + 2, y);
    });
    pen.stroke();
  }

  drawDots(pen, { colour: fill, values }) {
    pen.fillStyle = fill;
    values.forEach((value, n) => {
      if (value === null || !Number.isFinite(value)) return;
      pen.beginPath();
      pen.arc(this.left(this.xs[n]), this.top(value), 2, 0, 7);
      pen.fill();
    });
  }

  drawPointer(pen) {
    pen.strokeStyle = colour("--dim");
    this.rule(pen, this.left(this.xs[this.nearest]), 12, this.left(this.xs[this.nearest]), this.height - 40);
  }

  // The row whose dot or line is nearest to the pointer: by distance among dots, else by the horizontal place alone.
  point(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const flat = this.series.every((one) => !one.dots);
    let best = Infinity;
    this.nearest = null;
    this.xs.forEach((at, n) => {
      for (const one of this.series) {
        if (one.values[n] === null) continue;
        const distance = Math.hypot(this.left(at) - x, flat ? 0 : this.top(one.values[n]) - y);
        if (distance < best) { best = distance; this.nearest = n; }
      }
    });
    this.canvas.style.cursor = this.open && this.nearest !== null ? "pointer" : "default";
    this.draw();
  }

  legend() {
    const show = (value) => (value === null || value === undefined ? "" : " " + Number(value.toPrecision(4)));
    const at = this.nearest;
    const items = this.series.map((one) => {
      const item = document.createElement("span");
      const mark = document.createElement("i");
      mark.style.background = one.colour;
      item.append(mark, printable(one.label) + (at === null ? "" : show(one.values[at])));
      return item;
    });
    const head = document.createElement("span");
    head.textContent = at === null ? this.xLabel : this.xLabel + show(this.xs[at]);
    this.readout.replaceChildren(head, ...items);
  }
}

function colour(name) {
  return getComputedStyle(document.body).getPropertyValue(name).trim();
}
