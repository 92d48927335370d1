// The filter and the version of a search, on the views that a reader comes to from it.

import { h } from "./dom.js";

/** What a form's fields `filter` and `projection` say, as a search takes it. */
export function narrowed(form) {
  const { filter, projection } = form.elements;
  return { filter: filter.value ? JSON.parse(filter.value) : undefined, projection: Number(projection.value) || undefined };
}

/** Say in a place which documents and which version a view is about; `changed` follows a click that clears it. */
export function drawNarrowed(place, form, changed) {
  const { filter, projection } = form.elements;
  const words = [filter.value ? "only documents that pass the filter of your search" : null, projection.value ? `version ${projection.value}` : null].filter(Boolean);
  const clear = () => {
    filter.value = projection.value = "";
    changed();
  };
  place.replaceChildren(...(words.length ? [`Shown: ${words.join(", ")}. `, h("button", { type: "button", class: "plain", on: { click: clear } }, "Show all")] : []));
}
