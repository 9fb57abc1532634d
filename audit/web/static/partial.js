// Load parts of a page after the page itself.
//
//   data-get="URL"         where the part comes from; data-post: sent with POST
//   data-when="load"       at once; "visible": when scrolled into view; "every 3": each three seconds; a form: when submitted
//   data-into="#id"        the element whose content is replaced; without it the element itself is replaced
//   data-pick="#id"        take only this element of the answer
//   data-progress="text"   say this at the bottom of the window until the answer is there, and scroll to it then
//   data-address           also put the address into the address bar
"use strict";

// A name as it is shown: characters that are invisible, or turn the text around, as escapes.
function printable(text) {
  return String(text).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (one) => "\n\u200c\u200d".includes(one) ? one : "\\u" + one.codePointAt(0).toString(16).padStart(4, "0"));
}

(function () {
  const seen = new WeakSet();
  const visible = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      visible.unobserve(entry.target);
      load(entry.target, entry.target.dataset.get);
    }
  }, { rootMargin: "900px" }); // asked for before it is seen

  async function load(element, address, options = {}) {
    const target = element.dataset.into ? document.querySelector(element.dataset.into) : element;
    if (!target) return;
    target.classList.add("loading");
    target.setAttribute("aria-busy", "true");
    const ready = element.dataset.progress ? progress(element.dataset.progress) : null;
    let text;
    try {
      const answer = await fetch(address, { ...options, headers: { "X-Partial": "1", ...options.headers }, credentials: "same-origin" });
      text = await answer.text();
    } catch {
      text = "<p class=\"error\">The server did not answer. Is audit ui still running?</p>";
    }
    target.classList.remove("loading");
    target.removeAttribute("aria-busy");
    if (ready) ready();
    if (!target.isConnected) return;
    place(element, target, text);
    // What was asked for by a click must not appear out of sight.
    if (ready && target.isConnected) target.scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  // A line at the bottom of the window that says at once what is being done, and for how long already.
  function progress(text, style = "") {
    const line = document.createElement("p"), bar = document.createElement("progress"), words = document.createElement("span");
    line.className = ("doing-bar " + style).trim();
    line.setAttribute("role", "status");
    bar.setAttribute("aria-label", text);
    line.append(bar, words);
    document.body.append(line);
    const begun = performance.now();
    const tell = () => { words.textContent = text + "… " + Math.round((performance.now() - begun) / 1000) + " s"; };
    tell();
    const ticking = setInterval(tell, 500);
    return () => { clearInterval(ticking); line.remove(); };
  }

  // Scripts in an answer never run: a document that DOMParser made does not execute, nor do nodes moved out of it.
  function place(element, target, text) {
    const answer = new DOMParser().parseFromString(text, "text/html");
    const picked = element.dataset.pick ? answer.querySelector(element.dataset.pick) : null;
    if (element.dataset.pick && !picked) {
      seen.delete(element);
      return start(element);
    }
    const nodes = picked ? [picked] : [...answer.body.childNodes];
    answer.querySelectorAll("script").forEach((script) => script.remove());
    if (element.dataset.into && !picked) target.replaceChildren(...nodes);
    else target.replaceWith(...nodes);
    nodes.forEach((node) => { if (node instanceof Element) start(node); });
    document.dispatchEvent(new CustomEvent("partial:placed"));
    const goto = nodes.find((node) => node instanceof Element && node.dataset.goto);
    if (goto && goto.dataset.goto.startsWith("/run/")) window.location.assign(goto.dataset.goto);
  }

  function start(root) {
    const found = [...root.querySelectorAll("[data-get]:not(form), [data-when^=every]")];
    if (root.matches && root.matches("[data-get]:not(form), [data-when^=every]")) found.push(root);
    for (const element of found) {
      if (seen.has(element)) continue;
      seen.add(element);
      const when = element.dataset.when || "load";
      if (when === "load") load(element, element.dataset.get);
      else if (when === "visible") visible.observe(element);
      else if (when.startsWith("every ")) repeat(element, Number(when.slice(6)) * 1000);
    }
  }

  function repeat(element, pause) {
    setTimeout(() => {
      if (!element.isConnected) return;
      if (document.hidden) return repeat(element, pause);
      load(element, element.dataset.get);
    }, pause);
  }

  document.addEventListener("submit", (event) => {
    const form = event.target.closest("form[data-into]");
    // A download must be an ordinary request of the browser.
    if (!form || (event.submitter && event.submitter.hasAttribute("data-plain"))) return;
    event.preventDefault();
    const fields = new URLSearchParams(new FormData(form, event.submitter));
    const posts = form.dataset.post !== undefined;
    const address = posts ? form.dataset.post : form.dataset.get + "?" + fields;
    const buttons = [...form.querySelectorAll("button")];
    buttons.forEach((button) => { button.disabled = true; });
    load(form, address, posts ? { method: "POST", body: fields } : {}).finally(() => buttons.forEach((button) => { button.disabled = false; }));
    if (form.dataset.address !== undefined) history.pushState(null, "", address);
  });

  // Another page is asked for: say so until it comes. Pages that come at once show nothing, by the delay of the style sheet.
  let leaving = null, downloading = false;
  const download = (event) => { downloading = Boolean((event.submitter && event.submitter.hasAttribute("data-plain")) || event.target.closest("a[download]")); };
  document.addEventListener("submit", download, true);
  document.addEventListener("click", download, true);
  window.addEventListener("beforeunload", () => { if (!leaving && !downloading) leaving = progress("Loading", "late"); });
  window.addEventListener("pageshow", () => { if (leaving) leaving(); leaving = null; });

  // Going back to an address that a form put there: the page as it was is asked for again.
  window.addEventListener("popstate", () => window.location.reload());
  document.addEventListener("DOMContentLoaded", () => start(document.body));
})();
