// Lists that keep what a reader has opened, focused or scrolled: Preact with htm, both vendored.

import htm from "../vendor/htm.js";
import { Component, h as vnode, render } from "../vendor/preact.js";

export { Component, render };

/** A tagged template of markup; values become attributes, children and keys, never markup. */
export const html = htm.bind(vnode);

const TAKES = 250; // milliseconds of a move

/** An element that was made with `h` of dom.js, as a part of a template: html`<${Dom} node=${element} />`. */
export function Dom({ node, as = "div" }) {
  const fill = (place) => place && place.firstChild !== node && place.replaceChildren(...[node].filter(Boolean));
  return vnode(as, { class: "as-is", ref: fill });
}

/**
 * Draw a template into a place that nothing else fills; keyed elements go on existing. Elements with
 * `data-id` that have moved slide from where they were, unless the reader wants no motion.
 */
export function draw(place, template) {
  const before = places(place);
  render(template, place);
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const [id, { element, top }] of places(place)) {
    const from = before.get(id);
    if (!from || Math.abs(from.top - top) < 1) continue;
    element.animate([{ transform: `translateY(${from.top - top}px)` }, { transform: "none" }], { duration: TAKES, easing: "ease-out" });
  }
}

/** Where each element with `data-id` stands in its place, by id. */
function places(place) {
  const above = place.getBoundingClientRect().top;
  const elements = [...place.querySelectorAll("[data-id]")];
  return new Map(elements.map((element) => [element.dataset.id, { element, top: element.getBoundingClientRect().top - above }]));
}
