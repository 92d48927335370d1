// The chip in the header: which version answers, and what was proved. The server says it in the page;
// with another collection, or another version in use, it is asked again.

import { get, latest, of } from "./api.js";
import { byId } from "./dom.js";

const chip = byId("evidence");
let shown = new URLSearchParams(chip.search).get("collection");

const show = latest(async (collection) => {
  shown = collection;
  try {
    const { projections } = await get(of(collection, "projections"));
    const active = projections.filter((each) => each.active);
    const roles = chip.dataset.roles.split(" ");
    const version = roles.map((role) => active.find((each) => each.role === role)).find(Boolean);
    chip.hidden = !version?.evidence;
    if (chip.hidden) return;
    const { state, sentence, verdict } = version.evidence;
    chip.dataset.state = state;
    chip.textContent = sentence;
    chip.title = verdict;
    chip.href = `/compare?${new URLSearchParams({ collection })}`;
  } catch {
    chip.hidden = true; // the view itself says what is wrong
  }
});

addEventListener("change", ({ target }) => {
  if (target.name === "collection" && target.value) show(target.value);
});
addEventListener("attend-version", () => show(shown));
