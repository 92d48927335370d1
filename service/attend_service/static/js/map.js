// The map: keys in two dimensions, the query among them, and the movement that learning caused.

import { get, latest, of, post } from "./api.js";
import { bar, byId, h, tell } from "./dom.js";
import { facetsOf, fieldsOf } from "./filters.js";
import { count, percent, plural, short } from "./format.js";
import { KINDS, onTheme, savePng, saveSvg } from "./pictures.js";
import { scatter } from "./scatter.js";
import { explain, queryOf } from "./queries.js";
import { versionName } from "./versions.js";
import { addressOf, read, reopenOnReturn, write } from "./state.js";
import { plain } from "./values.js";

const LISTED = 10;
const CANDIDATES = 6; // fields of which one is chosen to colour
const FEWEST = 8; // documents that t-SNE takes
const form = byId("map");
const field = (name) => form.elements[name];
const path = (...parts) => of(field("collection").value, ...parts);

let map = null;
let rank = -1; // of the document that the keyboard is at
let candidates = []; // fields of which one is to be chosen
let facets = {}; // of the fields that may colour
let standard = { method: "tsne", limit: "1000", colour: "" }; // where the address does not say

function remember() {
  const given = Object.entries(Object.fromEntries(new FormData(form)));
  const parameter = ([name, value]) => [name, value === standard[name] ? "" : name === "colour" ? value || "none" : value];
  write(Object.fromEntries(given.map(parameter)));
}

const changed = () => {
  remember();
  ask();
};

const ask = latest(async () => {
  const given = Object.fromEntries(new FormData(form));
  const body = { limit: Number(given.limit) || 1000, method: given.method, fields: given.colour ? [given.colour] : candidates };
  if (given.projection) body.projection = Number(given.projection);
  if (given.before) body.before = Number(given.before);
  byId("status").className = "status";
  byId("status").textContent = `Laying out ${count(body.limit)} documents at most…`;
  try {
    if (given.q.trim()) body.query = await queryOf(given.collection, given.q.trim());
    map = await post(path("map"), body);
    rank = -1;
    if (candidates.length) choose();
    tell(byId("status"), null);
    paint();
  } catch (error) {
    tell(byId("status"), error);
  }
});

/**
 * A number for each of the most frequent values of the field that colours, null for others. The
 * order is that of the whole collection, so that a value has one colour in every picture.
 */
function kinds() {
  const name = field("colour").value;
  if (!name) return { of: new Map(), names: [], others: 0 };
  const names = colours(name);
  const kindOf = ({ payload }) => (payload[name] == null || !names.includes(plain(payload[name])) ? null : names.indexOf(plain(payload[name])));
  const of_ = new Map(map.points.map((point) => [point.id, kindOf(point)]));
  return { of: of_, names, others: [...of_.values()].filter((kind) => kind === null).length };
}

/** The values of a field that have a colour, the most frequent of the collection first. */
const colours = (name) => (facets[name]?.values ?? []).map(({ value }) => plain(value)).slice(0, KINDS.length - 1);

function paint() {
  if (!map) return;
  const { of: kind, names, others } = kinds();
  const place = byId("picture");
  place.replaceChildren(scatter(map, kind, Math.max(280, place.clientWidth - 42)));
  const keys = names.map((name, at) => {
    const mark = h("i");
    mark.style.background = KINDS[at];
    return h("li", {}, mark, name);
  });
  const other = h("li", {}, h("i", { class: "stayed" }), `other (${count(others)})`);
  byId("key").replaceChildren(...keys, ...(others ? [other] : []));
  byId("said").textContent = told();
  byId("tools").hidden = false;
  list();
}

function told() {
  const shown = `${plural(map.points.length, "document")} of ${count(map.documents)} shown`;
  const axes = map.explained ? `; a flat view: it keeps ${percent(map.explained[0] + map.explained[1])} of the differences` : "; documents that are alike lie together";
  const moved = map.before ? `; lines begin where version ${map.before} had the documents` : "";
  return `${shown}${axes}${moved}.`;
}

/** What the query attends to, in words: the picture's other half. */
function list() {
  const attended = map.points.filter((each) => each.weight !== null).sort((a, b) => b.weight - a.weight);
  const items = attended.slice(0, LISTED).map((each) =>
    h("li", {}, h("a", { class: "name", dir: "auto", href: addressOf("/document", { collection: field("collection").value, id: each.id }) }, short(each.title, 60)), bar(each.weight), h("span", { class: "number" }, percent(each.weight))),
  );
  byId("attended").replaceChildren(...(items.length ? [h("h2", { class: "label" }, "What the query attends to"), h("ol", { class: "shares" }, items)] : []));
}

function hover(event) {
  const at = event.target.dataset?.at;
  if (at !== undefined) point(Number(at));
}

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/** From document to document, the heaviest first. */
function walk(event) {
  const step = STEPS[event.key];
  if (!step || !map?.points.length) return;
  event.preventDefault();
  const order = map.points.map((_, at) => at).sort((a, b) => (map.points[b].weight ?? -1) - (map.points[a].weight ?? -1));
  rank = Math.max(0, Math.min(order.length - 1, rank + step));
  point(order[rank]);
}

/** Say what a document is, and mark it. */
function point(at) {
  for (const each of byId("picture").querySelectorAll(".here")) each.classList.remove("here");
  byId("picture").querySelector(`[data-at="${at}"]`).classList.add("here");
  const each = map.points[at];
  const weight = each.weight === null ? "" : `, ${percent(each.weight)} of the attention`;
  const name = field("colour").value;
  const kind = name && each.payload[name] != null ? `, ${name}: ${plain(each.payload[name])}` : "";
  byId("readout").textContent = `${short(each.title, 80)}${weight}${kind}`;
}

async function open(given = {}) {
  const collection = field("collection").value;
  try {
    const [{ fields, total }, { active, projections }] = await Promise.all([fieldsOf(collection), get(path("projections"))]);
    explain(field("q"), collection, "Where does it fall?");
    const names = fields.filter((each) => each.kind !== "number").map((each) => each.name);
    ({ facets } = await facetsOf(collection, names.slice(0, 16)));
    const options = projections.map((each) => h("option", { value: String(each.version) }, versionName(each)));
    field("projection").replaceChildren(h("option", { value: "" }, `in use (${active})`), ...options);
    field("before").replaceChildren(h("option", { value: "" }, "none"), ...options.map((each) => each.cloneNode(true)));
    field("colour").replaceChildren(h("option", { value: "" }, "nothing"), ...names.map((name) => h("option", {}, name)));
    standard = { ...standard, method: total < FEWEST ? "pca" : "tsne", colour: "" };
    candidates = given.colour === undefined ? groupings(names, total) : [];
    for (const name of ["projection", "before"]) field(name).value = given[name] ?? "";
    field("method").value = given.method ?? standard.method;
    field("colour").value = given.colour === "none" ? "" : (given.colour ?? standard.colour);
    changed();
  } catch (error) {
    tell(byId("status"), error);
  }
}

/** The fields that may colour groups: those with neither one value nor nearly one for each document. */
function groupings(names, total) {
  const distinct = (name) => facets[name]?.distinct ?? 0;
  return names.filter((name) => distinct(name) > 1 && distinct(name) <= Math.max(KINDS.length, total / 5)).slice(0, CANDIDATES);
}

/**
 * How well the colours of a field would show groups: the share of points whose nearest one of any
 * colour has the same, beyond chance, less where few points have a colour.
 */
function clarity(name) {
  const names = new Set(colours(name));
  const points = map.points.filter(({ payload }) => payload[name] != null && names.has(plain(payload[name])));
  if (points.length < 3) return 0;
  const kinds = points.map(({ payload }) => plain(payload[name]));
  const same = points.filter(({ place: [x, y] }, at) => {
    let [nearest, least] = [-1, Infinity];
    points.forEach(({ place }, other) => {
      const distance = (place[0] - x) ** 2 + (place[1] - y) ** 2;
      if (other !== at && distance < least) [nearest, least] = [other, distance];
    });
    return kinds[nearest] === kinds[at];
  }).length;
  const chance = [...names].reduce((sum, kind) => sum + (kinds.filter((each) => each === kind).length / points.length) ** 2, 0);
  if (chance === 1) return 0;
  return ((same / points.length - chance) / (1 - chance)) * Math.sqrt(points.length / map.points.length);
}

/** Colour by the field whose groups are clearest, where the reader has not chosen. */
function choose() {
  const ranked = candidates.map((name) => [clarity(name), name]).sort((a, b) => b[0] - a[0]);
  standard.colour = ranked.length && ranked[0][0] > 0 ? ranked[0][1] : "";
  field("colour").value = standard.colour;
  candidates = [];
}

function start() {
  const given = read();
  for (const name of ["q", "collection", "limit"]) if (given[name]) field(name).value = given[name];
  for (const name of ["q", "limit"]) field(name).addEventListener("input", changed);
  field("colour").addEventListener("change", () => (candidates = []));
  for (const name of ["projection", "before", "colour", "method"]) field(name).addEventListener("change", changed);
  field("collection").addEventListener("change", () => open());
  form.addEventListener("submit", (event) => event.preventDefault());
  byId("picture").addEventListener("pointerover", hover);
  byId("picture").addEventListener("keydown", walk);
  byId("svg").addEventListener("click", () => saveSvg(byId("picture").firstChild, "map"));
  byId("png").addEventListener("click", () => savePng(byId("picture").firstChild, "map"));
  addEventListener("resize", paint);
  onTheme(paint);
  reopenOnReturn();
  open(given);
}

start();
