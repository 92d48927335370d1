// Light, dark, or as the system has it: the choice stays in this browser.
// A plain script, run before the first paint; the button appears once the page is there.
(() => {
  const ORDER = ["system", "light", "dark"];
  const root = document.documentElement;

  function stored() {
    try {
      return localStorage.getItem("attend-theme") ?? "system";
    } catch {
      return "system"; // storage may be switched off
    }
  }

  function apply(theme) {
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
    try {
      localStorage.setItem("attend-theme", theme);
    } catch {
      // then it holds for this page
    }
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${theme}`;
    // What is drawn with colours of its own is drawn again.
    dispatchEvent(new Event("attend-theme"));
  }

  apply(stored());
  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    button.hidden = false;
    apply(stored());
    button.addEventListener("click", () => {
      const now = root.dataset.theme ?? "system";
      apply(ORDER[(ORDER.indexOf(now) + 1) % ORDER.length]);
    });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    dispatchEvent(new Event("attend-theme")),
  );
})();
