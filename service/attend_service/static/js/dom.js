// Elements from data. Texts become text nodes and nothing else: what a document says is never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `props` are attributes, `on` holds listeners, `share` a bar's length, 0 to 1. */
export function h(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** The same within a picture. */
export function s(tag, props = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

export function byId(id) {
  return document.getElementById(id);
}

/** A bar, drawn for the eye alone: the number stands beside it. */
export function bar(share, kind = "") {
  return h("span", { class: `bar ${kind}`, "aria-hidden": "true" }, h("i", { share }));
}

/** What may be wider than its place: it scrolls, by keyboard too. */
export function scrolled(label, wide) {
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": label }, wide);
}

const tellers = new WeakMap(); // place → the part of the view whose error it shows, or null for none of them

/**
 * Show an error as its sentence, where the view has a place for it; null clears it. A part of the
 * view that names itself clears its own error only: what one part is refused is not undone by the
 * success of another that was on its way.
 */
export function tell(place, error, part = null) {
  if (!error && part !== null && tellers.has(place) && tellers.get(place) !== part) return;
  if (error) tellers.set(place, part);
  else tellers.delete(place);
  place.className = error ? "problem" : "status";
  place.textContent = error ? error.message : "";
}

/** Do the work of a part of the view, and show its error until this part succeeds. */
export async function tried(part, work) {
  try {
    await work();
    tell(byId("status"), null, part);
  } catch (error) {
    tell(byId("status"), error, part);
  }
}

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props)) set(element, name, value);
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined));
  return element;
}

function set(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name === "on") {
    for (const [type, listener] of Object.entries(value)) element.addEventListener(type, listener);
  } else if (name === "share") {
    element.style.setProperty("--share", String(Math.min(1, Math.max(0, value))));
  } else if (name === "value") {
    element.value = value;
  } else {
    element.setAttribute(name, value === true ? "" : String(value));
  }
}
