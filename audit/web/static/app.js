// Keyboard, missing pictures, and completion in the SQL editor. Everything works without it but these.
"use strict";

// A picture that is not there: say so instead of showing a broken one. Errors do not bubble, so they are captured.
document.addEventListener("error", (event) => {
  const picture = event.target;
  if (!(picture instanceof HTMLImageElement)) return;
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

function follow(selector) {
  const link = document.querySelector(selector);
  if (link) link.click();
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
    } else if (event.key === "[" || event.key === "]") {
      const stage = document.querySelector("#asked select[name=stage]");
      const to = stage.selectedIndex + (event.key === "]" ? 1 : -1);
      if (to >= 0 && to < stage.options.length) { stage.selectedIndex = to; stage.form.requestSubmit(); }
    }
    return;
  }
  if (document.querySelector("[data-keys=trace]")) {
    if (event.key === "ArrowLeft" || event.key === "k") follow("a[rel=prev]");
    if (event.key === "ArrowRight" || event.key === "j") follow("a[rel=next]");
    if (event.key === "r") follow("#replay");
  }
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
