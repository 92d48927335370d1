// The map: keys in two dimensions, the query among them, and the movement that learning caused.

import { get, latest, of, post } from "./api.js";
import { bar, byId, h, tell } from "./dom.js";
import { fieldsOf } from "./filters.js";
import { count, percent, plural, short } from "./format.js";
import { KINDS, onTheme, savePng, saveSvg } from "./pictures.js";
import { scatter } from "./scatter.js";
import { explain, queryOf } from "./queries.js";
import { read, reopenOnReturn, write } from "./state.js";
import { plain } from "./values.js";

const LISTED = 10;
const form = byId("map");
const field = (name) => form.elements[name];
const path = (...parts) => of(field("collection").value, ...parts);

let map = null;
let rank = -1; // of the document that the keyboard is at

function remember() {
  const given = Object.entries(Object.fromEntries(new FormData(form)));
  const defaults = { method: "pca", limit: "1000" };
  write(Object.fromEntries(given.map(([name, value]) => [name, value === defaults[name] ? "" : value])));
}

const changed = () => {
  remember();
  ask();
};

const ask = latest(async () => {
  const given = Object.fromEntries(new FormData(form));
  const body = { limit: Number(given.limit) || 1000, method: given.method, fields: given.colour ? [given.colour] : [] };
  if (given.projection) body.projection = Number(given.projection);
  if (given.before) body.before = Number(given.before);
  try {
    if (given.q.trim()) body.query = await queryOf(given.collection, given.q.trim());
    map = await post(path("map"), body);
    rank = -1;
    tell(byId("status"), null);
    paint();
  } catch (error) {
    tell(byId("status"), error);
  }
});

/** A number for each of the most frequent values of the field that colours, null for others. */
function kinds() {
  const name = field("colour").value;
  if (!name) return { of: new Map(), names: [] };
  const values = map.points.map((each) => [each.id, each.payload[name] ?? null]);
  const tallies = new Map();
  // What the query attends to has the first say in what is told apart.
  const heft = new Map(map.points.map((each) => [each.id, 1 + map.points.length * (each.weight ?? 0)]));
  for (const [id, value] of values) if (value !== null) tallies.set(plain(value), (tallies.get(plain(value)) ?? 0) + heft.get(id));
  const names = [...tallies].sort((a, b) => b[1] - a[1]).slice(0, KINDS.length - 1).map(([value]) => value);
  const kindOf = (value) => (value === null || !names.includes(plain(value)) ? null : names.indexOf(plain(value)));
  return { of: new Map(values.map(([id, value]) => [id, kindOf(value)])), names };
}

function paint() {
  if (!map) return;
  const { of: kind, names } = kinds();
  const place = byId("picture");
  place.replaceChildren(scatter(map, kind, Math.max(280, place.clientWidth - 42)));
  const keys = names.map((name, at) => {
    const mark = h("i");
    mark.style.background = KINDS[at];
    return h("li", {}, mark, name);
  });
  byId("key").replaceChildren(...keys);
  byId("said").textContent = told();
  byId("tools").hidden = false;
  list();
}

function told() {
  const shown = `${plural(map.points.length, "document")} of ${count(map.documents)} shown`;
  const axes = map.explained ? `; the axes show ${percent(map.explained[0])} and ${percent(map.explained[1])} of the variance of the keys` : "";
  const moved = map.before ? `; lines begin at the places of version ${map.before}` : "";
  return `${shown}${axes}${moved}.`;
}

/** What the query attends to, in words: the picture's other half. */
function list() {
  const attended = map.points.filter((each) => each.weight !== null).sort((a, b) => b.weight - a.weight);
  const most = attended[0]?.weight ?? 1;
  const items = attended.slice(0, LISTED).map((each) =>
    h("li", {}, h("span", { class: "name", dir: "auto" }, short(each.title, 60)), bar(each.weight / most), h("span", { class: "number" }, percent(each.weight))),
  );
  byId("attended").replaceChildren(...(items.length ? [h("h2", { class: "label" }, "Attended documents"), h("ol", { class: "shares" }, items)] : []));
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
  try {
    const [fields, { active, projections }] = await Promise.all([fieldsOf(field("collection").value), get(path("projections"))]);
    explain(field("q"), field("collection").value, "Where does it fall?");
    const versions = projections.map((each) => h("option", { value: String(each.version) }, `${each.version} · ${each.kind}`));
    field("projection").replaceChildren(h("option", { value: "" }, `active (${active})`), ...versions);
    field("before").replaceChildren(h("option", { value: "" }, "none"), ...versions.map((each) => each.cloneNode(true)));
    field("colour").replaceChildren(h("option", { value: "" }, "nothing"), ...fields.filter((each) => each.kind !== "number").map((each) => h("option", {}, each.name)));
    for (const name of ["projection", "before", "colour"]) field(name).value = given[name] ?? "";
    changed();
  } catch (error) {
    tell(byId("status"), error);
  }
}

function start() {
  const given = read();
  for (const name of ["q", "collection", "limit", "method"]) if (given[name]) field(name).value = given[name];
  for (const name of ["q", "limit"]) field(name).addEventListener("input", changed);
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
