// Keyboard, missing pictures, and completion in the SQL editor. Everything works without it but these.
"use strict";

// A picture that is not there: say so instead of showing a broken one. Errors do not bubble, so they are captured.
document.addEventListener("error", (event) => {
  const picture = event.target;
  if (!(picture instanceof HTMLImageElement)) return;
  if (picture.classList.contains("over")) { picture.hidden = true; return; }
  const frame = picture.closest(".shot");
  if (frame) frame.classList.add("missing");
  else if (picture.classList.contains("thumb")) picture.hidden = true;
  else picture.style.visibility = "hidden";
}, true);

// A picture of few pixels is shown as squares, a photograph smoothly. Loading does not bubble either.
document.addEventListener("load", (event) => {
  const picture = event.target;
  if (picture instanceof HTMLImageElement && Math.max(picture.naturalWidth, picture.naturalHeight) <= 64) picture.classList.add("tiny");
}, true);

function typing(event) {
  return event.target.closest("input, textarea, select, [contenteditable]") || event.ctrlKey || event.metaKey || event.altKey;
}

function follow(selector, tries = 100) {
  const link = document.querySelector(selector);
  if (link) { link.click(); return; }
  // The links to other samples come a moment after the page: a key that was pressed before is not lost.
  if (document.querySelector("#steps .wait") && tries) setTimeout(() => follow(selector, tries - 1), 100);
}

function step(tiles, by) {
  const here = tiles.findIndex((tile) => tile.classList.contains("here"));
  const next = Math.max(0, Math.min(tiles.length - 1, here < 0 ? 0 : here + by));
  tiles.forEach((tile) => tile.classList.remove("here"));
  tiles[next].classList.add("here");
  tiles[next].focus({ preventScroll: true });
  tiles[next].scrollIntoView({ block: "nearest" });
}

function columns(tiles) {
  const top = tiles[0].offsetTop;
  const count = tiles.findIndex((tile) => tile.offsetTop > top);
  return count < 0 ? tiles.length : count;
}

document.addEventListener("keydown", (event) => {
  if (typing(event)) return;
  const gallery = document.querySelector("#gallery");
  if (gallery) {
    const tiles = [...gallery.querySelectorAll(".tile")];
    const moves = { j: 1, ArrowRight: 1, k: -1, ArrowLeft: -1 };
    if (tiles.length && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      step(tiles, (event.key === "ArrowDown" ? 1 : -1) * columns(tiles));
      event.preventDefault();
    } else if (tiles.length && moves[event.key]) {
      step(tiles, moves[event.key]);
      event.preventDefault();
    } else if (event.key === " " && event.target.matches(".tile")) {
      event.target.previousElementSibling.dispatchEvent(new MouseEvent("click", { bubbles: true, shiftKey: event.shiftKey }));
      event.preventDefault();
    } else if (event.key === "[" || event.key === "]") {
      const stage = document.querySelector("#asked select[name=stage]");
      const to = stage.selectedIndex + (event.key === "]" ? 1 : -1);
      if (to >= 0 && to < stage.options.length) { stage.selectedIndex = to; stage.form.requestSubmit(); }
    }
    return;
  }
  if (document.querySelector("[data-keys=trace]")) {
    if (event.key === "g") follow("a[rel=up]");
    if (event.key === "ArrowLeft" || event.key === "k") follow("a[rel=prev]");
    if (event.key === "ArrowRight" || event.key === "j") follow("a[rel=next]");
    if (event.key === "r") follow("#replay");
  }
});

// Back at the place in the gallery from which a sample was opened; and the address remembers that place.
document.addEventListener("partial:placed", () => {
  const gallery = document.querySelector("#gallery[data-at]");
  const tile = gallery && document.getElementById(gallery.dataset.at);
  if (!tile) return;
  gallery.removeAttribute("data-at");
  tile.classList.add("here");
  tile.scrollIntoView({ block: "center" });
  tile.focus({ preventScroll: true });
});
document.addEventListener("click", (event) => {
  const tile = event.target.closest("#gallery .tile");
  if (!tile) return;
  const address = new URL(window.location.href);
  address.searchParams.set("at", tile.id.slice(2));
  history.replaceState(null, "", address);
});

// Selected tiles: a click on the box, shift for a range. The selection is in the address, and a bar acts on it. The tab keeps it
// too, for the way back from a sample (`at`), whose address does not have it.
(function () {
  const bar = document.querySelector("#picked");
  if (!bar) return;
  const asked = new URLSearchParams(window.location.search), kept = (sessionStorage.getItem("picked") || "").split(" ");
  const before = asked.get("picked") || (asked.has("at") && kept[0] === bar.dataset.run ? kept[1] : "");
  const chosen = new Set(before.split(",").filter(Boolean));
  let last = null;
  const boxes = () => [...document.querySelectorAll("#gallery .pick")];

  function show() {
    const list = [...chosen];
    for (const box of boxes()) box.checked = chosen.has(box.value);
    bar.hidden = !list.length;
    document.querySelector("#gallery").classList.toggle("picking", list.length > 0);
    bar.querySelector("#picked-count").textContent = list.length + " selected";
    bar.querySelector("input[name=indices]").value = list.join(",");
    for (const link of bar.querySelectorAll("a[data-form]")) link.href = "/run/" + encodeURIComponent(bar.dataset.run) + "/export?as=" + link.dataset.form + "&indices=" + list.join(",");
    sessionStorage.setItem("picked", bar.dataset.run + " " + list.join(","));
    const address = new URL(window.location.href);
    if (list.length && list.length <= 500) address.searchParams.set("picked", list.join(","));
    else address.searchParams.delete("picked");
    history.replaceState(null, "", address);
  }

  document.addEventListener("click", (event) => {
    const box = event.target.closest(".pick");
    if (!box) return;
    const all = boxes(), here = all.indexOf(box), from = event.shiftKey && last !== null ? Math.min(last, here) : here;
    const to = event.shiftKey && last !== null ? Math.max(last, here) : here;
    for (const one of all.slice(from, to + 1)) { if (box.checked) chosen.add(one.value); else chosen.delete(one.value); }
    last = here;
    show();
  });
  bar.querySelector("#pick-all").addEventListener("click", () => { boxes().forEach((box) => chosen.add(box.value)); show(); });
  bar.querySelector("#pick-none").addEventListener("click", () => { chosen.clear(); show(); });
  document.addEventListener("partial:placed", () => { if (chosen.size) show(); });
  if (chosen.size) show();
})();

// A large confusion matrix is one stop of the tab key: arrows go to the next cell in a direction, Enter follows it.
document.addEventListener("keydown", (event) => {
  const here = event.target.closest && event.target.closest(".grid a");
  const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!here || !way) return;
  event.preventDefault();
  const place = (link) => { const cell = link.querySelector("rect"); return [Number(cell.getAttribute("x")), Number(cell.getAttribute("y"))]; };
  const [x, y] = place(here);
  let best = Infinity, next = null;
  for (const link of here.closest(".grid").querySelectorAll("a")) {
    const [dx, dy] = [place(link)[0] - x, place(link)[1] - y], along = dx * way[0] + dy * way[1], aside = Math.abs(dx * way[1]) + Math.abs(dy * way[0]);
    if (along > 0 && along + 4 * aside < best) { best = along + 4 * aside; next = link; }
  }
  if (!next) return;
  here.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
});

// Find a class in a large confusion matrix: mark its row and column, and link to its mistakes.
document.addEventListener("input", (event) => {
  if (event.target.id !== "find-class") return;
  const typed = event.target.value.toLowerCase(), options = [...document.querySelectorAll("#class-names option")];
  const found = typed && (options.find((one) => one.value.toLowerCase() === typed) || options.find((one) => one.value.toLowerCase().startsWith(typed)));
  document.querySelector("#band-row").setAttribute("y", found ? found.dataset.at : "-1000");
  document.querySelector("#band-column").setAttribute("x", found ? found.dataset.at : "-1000");
  const link = document.querySelector("#found-class");
  link.hidden = !found;
  if (found) { link.href = link.dataset.gallery + (link.dataset.gallery.includes("?") ? "&" : "?") + new URLSearchParams({ where: "label = " + Number(found.dataset.l) + " AND NOT correct" }); link.textContent = "mistakes of " + found.value; }
});

// A changed choice in the gallery's form shows at once.
document.addEventListener("change", (event) => {
  if (event.target.matches("#asked select")) event.target.form.requestSubmit();
});

// Completion: the word before the cursor against tables, columns and keywords.
(function () {
  const editor = document.querySelector("#q");
  const list = document.querySelector("#complete");
  if (!editor || !list) return;
  let words = [];
  fetch(editor.dataset.words).then((answer) => answer.json()).then((known) => {
    const seen = new Map();
    for (const [table, columns] of Object.entries(known.tables)) {
      seen.set(table, "table");
      for (const column of columns) if (!seen.has(column)) seen.set(column, "column");
    }
    known.macros.forEach((name) => seen.set(name + "(", "macro"));
    known.keywords.forEach((word) => { if (!seen.has(word)) seen.set(word, ""); });
    words = [...seen];
  }).catch(() => {});

  function word() {
    const before = editor.value.slice(0, editor.selectionStart);
    return (before.match(/[A-Za-z_][A-Za-z_0-9]*$/) || [""])[0];
  }
  function hide() { list.hidden = true; list.replaceChildren(); }
  function choose(item) {
    const typed = word(), start = editor.selectionStart - typed.length;
    editor.setRangeText(item.dataset.word, start, editor.selectionStart, "end");
    hide();
    editor.focus();
  }
  function show() {
    const typed = word().toLowerCase();
    const found = typed.length < 1 ? [] : words.filter(([name]) => name.toLowerCase().startsWith(typed) && name.toLowerCase() !== typed).slice(0, 12);
    if (!found.length) return hide();
    list.replaceChildren(...found.map(([name, kind], position) => {
      const item = document.createElement("li");
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", String(position === 0));
      item.dataset.word = name;
      item.textContent = name;
      const note = document.createElement("small");
      note.textContent = kind;
      item.append(note);
      item.addEventListener("mousedown", (event) => { event.preventDefault(); choose(item); });
      return item;
    }));
    const line = editor.value.slice(0, editor.selectionStart).split("\n");
    list.style.top = Math.min(editor.offsetHeight, 12 + 19.5 * line.length - editor.scrollTop + 4) + "px";
    list.style.left = Math.min(editor.offsetWidth - 220, 12 + 7.8 * (line.at(-1).length - typed.length)) + "px";
    list.hidden = false;
  }
  editor.addEventListener("input", show);
  editor.addEventListener("blur", hide);
  editor.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); hide(); editor.form.requestSubmit(); return; }
    if (list.hidden) return;
    const items = [...list.children];
    const at = items.findIndex((item) => item.getAttribute("aria-selected") === "true");
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const next = (at + (event.key === "ArrowDown" ? 1 : -1) + items.length) % items.length;
      items.forEach((item, position) => item.setAttribute("aria-selected", String(position === next)));
      items[next].scrollIntoView({ block: "nearest" });
    } else if (event.key === "Tab" || event.key === "Enter") { event.preventDefault(); choose(items[at]); }
    else if (event.key === "Escape") hide();
  });
})();

// Light, dark, or as the system says: kept in this browser.
(function () {
  const order = ["auto", "light", "dark"], button = document.querySelector("#theme");
  const apply = (theme) => {
    if (theme === "auto") delete document.body.dataset.theme;
    else document.body.dataset.theme = theme;
    if (button) button.textContent = { auto: "Theme", light: "Light", dark: "Dark" }[theme];
    window.dispatchEvent(new Event("resize"));
    window.dispatchEvent(new Event("audit:theme"));
  };
  let theme = "auto";
  try { theme = localStorage.getItem("audit-theme") || "auto"; } catch { /* a browser may refuse to keep anything */ }
  apply(order.includes(theme) ? theme : "auto");
  if (button) button.addEventListener("click", () => {
    theme = order[(order.indexOf(theme) + 1) % order.length];
    try { localStorage.setItem("audit-theme", theme); } catch { /* as above */ }
    apply(theme);
  });
})();

// Keyboard help: what each page understands.
(function () {
  const keys = [
    ["?", "this help"], ["j k ← → ↑ ↓", "gallery: move from tile to tile"], ["Enter", "gallery: open the sample"], ["Space", "gallery: select the tile, with shift all between"], ["[ ]", "gallery: the picture of the stage before or after"],
    ["← → or k j", "sample: previous and next"], ["g", "sample: back to the gallery"], ["r", "sample: replay"],
    ["+ - 0 1", "viewer: zoom in, out, fit, one pixel for one value"], ["arrows", "viewer: move"], ["[ ]", "viewer: stage before or after"], ["+ - 0 arrows", "map: zoom in, out, all samples, move"], ["Enter", "map: the samples in view as a gallery"], ["shift", "map: hold it and drag to move"], ["arrows", "confusion of many classes: the next cell"], ["← →", "chart: the next point"], ["Enter", "chart: open its sample"], ["Esc", "close"],
    ["Ctrl Enter", "SQL: run the query"], ["Tab", "SQL: complete"],
  ];
  function help() {
    if (document.querySelector(".help")) return;
    const dialog = document.createElement("dialog"), list = document.createElement("dl"), title = document.createElement("h2"), close = document.createElement("button");
    dialog.className = "help";
    dialog.setAttribute("aria-label", "keyboard help");
    title.textContent = "Keyboard";
    for (const [names, meaning] of keys) {
      const term = document.createElement("dt"), text = document.createElement("dd");
      names.split(" ").forEach((name) => { const key = document.createElement("kbd"); key.textContent = name; term.append(key, " "); });
      text.textContent = meaning;
      list.append(term, text);
    }
    close.textContent = "Close";
    close.addEventListener("click", () => dialog.close());
    dialog.append(title, list, close);
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }
  document.addEventListener("keydown", (event) => { if (event.key === "?" && !typing(event)) help(); });
  const button = document.querySelector("#help");
  if (button) button.addEventListener("click", help);
})();

// A button that copies a command, a query or Python code.
(function () {
  function add() {
    for (const block of document.querySelectorAll("pre.command:not(.with-copy)")) {
      block.classList.add("with-copy");
      const around = document.createElement("div"), button = document.createElement("button");
      around.className = "copied";
      button.type = "button";
      button.className = "copy";
      button.textContent = "Copy";
      block.replaceWith(around);
      around.append(block, button);
      button.addEventListener("click", async () => {
        try { await navigator.clipboard.writeText(block.textContent); button.textContent = "Copied"; } catch { window.getSelection().selectAllChildren(block); button.textContent = "Selected"; }
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
    }
  }
  document.addEventListener("DOMContentLoaded", add);
  document.addEventListener("partial:placed", add);
  add();
})();
