// Filters of the gallery: drag over a histogram, type its ends, or tick values. What is chosen goes into the address.
"use strict";

(function () {
  const form = document.querySelector("#asked"), panel = document.querySelector("#filters");
  if (!form || !panel) return;
  const field = form.querySelector("input[name=filter]");
  const read = () => { try { return field.value ? JSON.parse(field.value) : {}; } catch { return {}; } };

  function write(filters) {
    field.value = Object.keys(filters).length ? JSON.stringify(filters) : "";
    form.requestSubmit();
  }

  function choose(name, value) {
    const filters = read();
    if (value === null) delete filters[name];
    else filters[name] = value;
    write(filters);
  }

  // On a narrow window the pictures come first.
  if (window.matchMedia("(max-width: 900px)").matches && !field.value) panel.open = false;

  document.addEventListener("click", (event) => {
    const chip = event.target.closest("[data-drop]");
    if (!chip) return;
    if (chip.dataset.drop) choose(chip.dataset.drop, null);
    else write({});
  });

  panel.addEventListener("change", (event) => {
    const facet = event.target.closest(".facet");
    if (!facet || event.target.matches(".find")) return;
    if (event.target.dataset.bound) {
      const [low, high] = ["low", "high"].map((end) => facet.querySelector("[data-bound=" + end + "]").value).map((text) => (text === "" ? null : Number(text)));
      choose(facet.dataset.facet, low === null && high === null ? null : [low, high]);
    } else {
      const ticked = [...facet.querySelectorAll("input[type=checkbox]:checked")].map((box) => JSON.parse(box.value));
      choose(facet.dataset.facet, ticked.length ? { in: ticked } : null);
    }
  });

  panel.addEventListener("input", (event) => {
    if (!event.target.matches(".find")) return;
    const typed = event.target.value.toLowerCase();
    for (const label of event.target.closest(".facet").querySelectorAll(".choices label")) label.hidden = !label.querySelector(".value").textContent.toLowerCase().includes(typed);
  });

  let begun = null;
  function bar(svg, event) {
    const box = svg.getBoundingClientRect(), bars = [...svg.querySelectorAll("rect")];
    const place = Math.floor(((event.clientX - box.left) / box.width) * bars.length);
    return { bars, place: Math.max(0, Math.min(bars.length - 1, place)) };
  }
  function mark(event) {
    const { bars, place } = bar(begun.svg, event), from = Math.min(begun.place, place), to = Math.max(begun.place, place);
    bars.forEach((one, n) => one.classList.toggle("on", n >= from && n <= to));
    return [Number(bars[from].dataset.from), Number(bars[to].dataset.to)];
  }
  panel.addEventListener("pointerdown", (event) => {
    const svg = event.target.closest(".brush");
    if (!svg) return;
    event.preventDefault();
    begun = { svg, place: bar(svg, event).place };
    svg.setPointerCapture(event.pointerId);
    mark(event);
  });
  panel.addEventListener("pointermove", (event) => { if (begun) mark(event); });
  panel.addEventListener("pointerup", (event) => {
    if (!begun) return;
    const range = mark(event), name = begun.svg.closest(".facet").dataset.facet;
    begun = null;
    choose(name, range);
  });
})();
