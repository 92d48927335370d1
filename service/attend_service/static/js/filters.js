// Filters, built of the fields that the collection's documents have.

import { get, of, post } from "./api.js";
import { h } from "./dom.js";
import { plain } from "./values.js";

const SAMPLE = 50;
const FIELDS = 6;
const VALUES = 8;

/** The paths of plain fields in a sample of documents: [{name, kind}]. */
export async function fieldsOf(collection) {
  const { documents } = await get(`${of(collection, "documents")}?limit=${SAMPLE}`);
  const found = new Map();
  for (const document of documents) {
    const value = isObject(document.value) ? document.value : {};
    for (const [name, each] of Object.entries({ ...document.payload, ...value })) {
      const kind = kindOf(each);
      if (kind && /^[^.$@]+$/.test(name) && !found.has(name)) found.set(name, kind);
    }
  }
  return [...found].map(([name, kind]) => ({ name, kind }));
}

/** Draw the filters of a collection; `onChange` is called with the filter, or null. */
export async function drawFilters(place, collection, filter, onChange) {
  place.replaceChildren();
  const fields = await fieldsOf(collection);
  const asked = fields.slice(0, 16).map((each) => each.name);
  if (!asked.length) return fields;
  const { facets, total } = await post(of(collection, "documents", "facets"), { fields: asked, limit: VALUES });
  const chosen = structuredClone(filter ?? {});
  const change = (name, condition) => {
    if (condition) chosen[name] = condition;
    else delete chosen[name];
    onChange(Object.keys(chosen).length ? chosen : null);
  };
  const useful = fields.filter(({ name, kind }) => kind === "number" || isUseful(facets[name], total));
  const drawn = useful.slice(0, FIELDS).map(({ name, kind }) =>
    kind === "number" && facets[name].distinct > VALUES
      ? range(name, chosen[name], change)
      : choices(name, facets[name], chosen[name], change),
  );
  if (drawn.length) place.append(h("h2", { class: "label" }, "Filter"), ...drawn);
  return fields;
}

/** Whether a field has few enough values to choose from, and more than one. */
function isUseful(facet, total) {
  return facet && facet.distinct > 1 && facet.distinct <= Math.max(VALUES, total / 3);
}

function choices(name, facet, condition, change) {
  const chosen = new Set((condition?.in ?? []).map((v) => JSON.stringify(v)));
  const buttons = facet.values.map(({ value, documents }) => {
    const key = JSON.stringify(value);
    const toggle = (event) => {
      if (!chosen.delete(key)) chosen.add(key);
      event.currentTarget.setAttribute("aria-pressed", String(chosen.has(key)));
      change(name, chosen.size ? { in: [...chosen].map((v) => JSON.parse(v)) } : null);
    };
    const pressed = String(chosen.has(key));
    return h("li", {}, h("button", { type: "button", "aria-pressed": pressed, on: { click: toggle } }, plain(value), h("span", { class: "count" }, String(documents))));
  });
  return h("div", { role: "group", "aria-label": name }, h("h3", {}, name), h("ul", { class: "chips" }, buttons));
}

function range(name, condition, change) {
  const bound = (which, word) =>
    h("input", { type: "number", step: "any", placeholder: word, "aria-label": `${name} ${word}`, value: condition?.[which] ?? "", on: { input: read } });
  function read() {
    const bounds = { gte: low.value, lte: high.value };
    const given = Object.entries(bounds).filter(([, text]) => text !== "");
    change(name, given.length ? Object.fromEntries(given.map(([which, text]) => [which, Number(text)])) : null);
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
