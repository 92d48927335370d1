// Filters, built of the fields that the collection's documents have.

import { get, of, post } from "./api.js";
import { h } from "./dom.js";
import { count } from "./format.js";
import { plain } from "./values.js";

const SAMPLE = 50;
const SHOWN = 3; // fields; the others are folded
const FIELDS = 8;
const VALUES = 8;
const MOST = 16; // fields in one request
const LONG = 28; // characters, from which labels are texts and nothing to choose from

/** The paths of plain fields in a sample of documents, [{name, kind}], the sample, and how many there are. */
export async function fieldsOf(collection) {
  const { documents, total } = await get(`${of(collection, "documents")}?limit=${SAMPLE}`);
  const fields = new Map();
  for (const document of documents) {
    const value = isObject(document.value) ? document.value : {};
    for (const [name, part] of Object.entries({ ...document.payload, ...value })) {
      const kind = kindOf(part);
      if (kind && /^[^.$@]+$/.test(name) && !fields.has(name)) fields.set(name, kind);
    }
  }
  return { fields: [...fields].map(([name, kind]) => ({ name, kind })), total, documents };
}

/** The most frequent values of fields, over what a filter lets pass, and how many. */
export async function facetsOf(collection, fields, filter = undefined) {
  if (!fields.length) return { facets: {} };
  return post(of(collection, "documents", "facets"), { fields, limit: VALUES, filter });
}

/**
 * Draw the filters of a collection, and in `place` those that are set; `onChange` is called with
 * the filter, or null. Returns the fields, a sample of documents, and how many there are.
 */
export async function drawFilters(aside, place, collection, filter, onChange) {
  aside.replaceChildren();
  const chosen = structuredClone(filter ?? {});
  const waits = () => undefined; // until the fields are there
  drawChosen(place, chosen, waits, waits);
  const { fields, total, documents } = await fieldsOf(collection);
  const { facets } = await facetsOf(collection, fields.slice(0, MOST).map((each) => each.name));
  const useful = fields.filter(({ name, kind }) => (kind === "number" && facets[name]?.distinct > VALUES) || isUseful(facets[name], total));
  const names = useful.slice(0, FIELDS).map((each) => each.name);
  const redraw = () => {
    draw(aside, useful.slice(0, FIELDS), facets, chosen, change);
    drawChosen(place, chosen, change, clear);
    recount(aside, collection, names, chosen);
  };
  const change = (name, condition, drawn = false) => {
    if (condition) chosen[name] = condition;
    else delete chosen[name];
    if (drawn) {
      drawChosen(place, chosen, change, clear);
      recount(aside, collection, names, chosen);
    } else redraw();
    onChange(Object.keys(chosen).length ? chosen : null);
  };
  const clear = () => {
    for (const name of Object.keys(chosen)) delete chosen[name];
    redraw();
    onChange(null);
  };
  redraw();
  return { fields, total, documents };
}

/** Whether a field has few enough values to choose from, and more than one. */
function isUseful(facet, total) {
  if (!facet || facet.distinct < 2 || facet.distinct > Math.max(VALUES, total / 5)) return false;
  const labels = facet.values.map(({ value }) => plain(value).length);
  return labels.reduce((sum, each) => sum + each, 0) / labels.length <= LONG;
}

function draw(aside, fields, facets, chosen, change) {
  const groups = fields.map(({ name, kind }) =>
    kind === "number" && facets[name].distinct > VALUES
      ? range(name, chosen[name], change)
      : choices(name, facets[name], chosen[name], change),
  );
  if (!groups.length) return aside.replaceChildren();
  const isOpen = fields.slice(SHOWN).some(({ name }) => name in chosen);
  const others = groups.slice(SHOWN);
  const fold = others.length ? h("details", { class: "fold more", open: isOpen }, h("summary", {}, `${others.length} more`), others) : "";
  aside.replaceChildren(h("h2", { class: "label" }, "Filter"), ...groups.slice(0, SHOWN), fold);
}

/** The filters that are set, each with a button that removes it. */
function drawChosen(place, chosen, change, clear) {
  const chips = Object.entries(chosen).map(([name, condition]) =>
    h("li", {}, h("button", { type: "button", on: { click: () => change(name, null) } }, h("span", { class: "hidden" }, "Remove the filter "), `${name}: ${inWords(condition)}`, h("span", { "aria-hidden": "true" }, "×"))),
  );
  const all = chips.length > 1 ? h("li", {}, h("button", { type: "button", on: { click: clear } }, "Clear all")) : null;
  place.replaceChildren(...(chips.length ? [h("ul", { class: "chips", "aria-label": "Filters that are set" }, chips, all)] : []));
}

function inWords(condition) {
  if (condition?.in) return condition.in.map(plain).join(" or ");
  const { gte, lte, ...others } = condition ?? {};
  if (Object.keys(others).length) return plain(condition);
  return [gte === undefined ? "" : `from ${plain(gte)}`, lte === undefined ? "" : `to ${plain(lte)}`].filter(Boolean).join(" ");
}

/** Count each value among the documents that the filters on other fields let pass. */
async function recount(aside, collection, names, chosen) {
  const own = names.filter((name) => name in chosen);
  const without = (name) => Object.fromEntries(Object.entries(chosen).filter(([other]) => other !== name));
  try {
    const [rest, ...each] = await Promise.all([facetsOf(collection, names, { ...chosen }), ...own.map((name) => facetsOf(collection, [name], without(name)))]);
    const facets = Object.assign({}, rest.facets, ...each.map((answer) => answer.facets));
    for (const place of aside.querySelectorAll("[data-count]")) {
      const [name, key] = JSON.parse(place.dataset.count);
      const value = facets[name]?.values.find((each) => JSON.stringify(each.value) === key);
      // Only the most frequent values are counted; of another one the number is not known.
      const few = facets[name]?.distinct <= VALUES;
      place.textContent = value ? count(value.documents) : few ? "0" : "";
    }
  } catch {
    // The counts before stay; the search itself says what is wrong.
  }
}

function choices(name, facet, condition, change) {
  const chosen = new Set((condition?.in ?? []).map((v) => JSON.stringify(v)));
  const buttons = facet.values.map(({ value, documents }) => {
    const key = JSON.stringify(value);
    const toggle = (event) => {
      if (!chosen.delete(key)) chosen.add(key);
      event.currentTarget.setAttribute("aria-pressed", String(chosen.has(key)));
      change(name, chosen.size ? { in: [...chosen].map((v) => JSON.parse(v)) } : null, true);
    };
    const pressed = String(chosen.has(key));
    const number = h("span", { class: "count", "data-count": JSON.stringify([name, key]) }, count(documents));
    return h("li", {}, h("button", { type: "button", "aria-pressed": pressed, on: { click: toggle } }, plain(value), number));
  });
  return h("div", { role: "group", "aria-label": name }, h("h3", {}, name), h("ul", { class: "chips" }, buttons));
}

function range(name, condition, change) {
  const bound = (which, word) =>
    h("input", { type: "number", step: "any", placeholder: word, "aria-label": `${name} ${word}`, value: condition?.[which] ?? "", on: { input: read } });
  function read() {
    const bounds = { gte: low.value, lte: high.value };
    const given = Object.entries(bounds).filter(([, text]) => text !== "");
    change(name, given.length ? Object.fromEntries(given.map(([which, text]) => [which, Number(text)])) : null, true);
  }
  const [low, high] = [bound("gte", "from"), bound("lte", "to")];
  return h("div", { role: "group", "aria-label": name }, h("h3", {}, name), h("div", { class: "range" }, low, h("span", {}, "–"), high));
}

function kindOf(value) {
  if (typeof value === "number") return "number";
  if (typeof value === "boolean") return "boolean";
  if (typeof value === "string") return value.length <= 80 ? "text" : null;
  return Array.isArray(value) && value.length && value.every((v) => typeof v === "string" && v.length <= 80) ? "labels" : null;
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
