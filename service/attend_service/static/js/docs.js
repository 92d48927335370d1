// The page of the API: folds that open for the address, and that a search leaves.
(() => {
  /** Open what the address names, and every fold around it. */
  function show() {
    const name = location.hash.slice(1);
    const target = name && document.getElementById(name);
    if (!target) return;
    for (let place = target; place; place = place.parentElement) if (place.tagName === "DETAILS") place.open = true;
    target.scrollIntoView();
  }

  /** Show the entries whose path or summary has every word. */
  function find(event) {
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const group of document.querySelectorAll(".api .group")) {
      const entries = [...group.querySelectorAll(".entry")];
      for (const entry of entries) {
        const text = entry.querySelector("summary").textContent.toLowerCase();
        entry.hidden = !words.every((word) => text.includes(word));
      }
      group.hidden = words.length > 0 && entries.every((entry) => entry.hidden);
      group.open = words.length > 0 && !group.hidden;
    }
  }

  const root = document.documentElement;
  if (location.hash) root.dataset.opening = ""; // nothing moves that is not yet seen
  addEventListener("hashchange", show);
  // The address does not change where it names the same place again.
  document.addEventListener("click", (event) => event.target.closest("a[href^='#']") && setTimeout(show));
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("find").addEventListener("input", find);
    show();
    delete root.dataset.opening;
  });
})();
