// The map: all keys in two dimensions, the query among them, and the movement that learning caused.

import { get, latest, of, post } from "./api.js";
import { bar, byId, h, tell } from "./dom.js";
import { count, percent, plural, short } from "./format.js";
import { drawDocument, drawSelection } from "./mapdrawer.js";
import { drawNarrowed } from "./narrowed.js";
import { colours as themeColours, onTheme, savePicture } from "./pictures.js";
import { Plot } from "./plot.js";
import { explain, queryOf } from "./queries.js";
import { forget, pixel, shades } from "./shades.js";
import { addressOf, context, read, reopenOnReturn, write } from "./state.js";
import { titlesOf } from "./titles.js";
import { versionName } from "./versions.js";

const LISTED = 10;
const SAMPLE = 50; // documents that tell which fields there are
const GROUPS = 0.7; // different values for each document of the sample, up to which a field shows groups
const FEWEST = 8; // documents that have neighbourhoods
const LONG = 40; // characters of a text above which it does not name a group
const WAIT = 1500; // milliseconds between two looks at a layout that is being computed
const REST = 120; // milliseconds that a pointer rests before a title is asked for
const FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', sans-serif";
const VALUE = "@value";
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

const form = byId("map");
const field = (name) => form.elements[name];
const path = (...parts) => of(field("collection").value, ...parts);
const filter = () => (field("filter").value ? JSON.parse(field("filter").value) : undefined);
const version = (name) => Number(field(name).value) || undefined;

let map = null; // the columns
let place = new Map(); // id → position in the columns
let near = null; // the query's place and the documents it attends to, of the API
let shade = null;
let rank = -1; // of the document that the keyboard is at
let pending = 0; // the timer that looks at a layout that is being computed
let isAutomatic = false; // whether the version before was chosen here and not by the reader
let standard = {}; // what stands for the empty parameters of the address
const titles = new Map();

const plot = new Plot(byId("picture"), { point: hover, pick: open, lasso: choose });

function remember() {
  const values = Object.fromEntries(new FormData(form));
  const parameter = ([name, value]) => [name, value === standard[name] ? "" : ["colour", "before"].includes(name) ? value || "none" : value];
  write(Object.fromEntries(Object.entries(values).map(parameter)));
}

const search = () => ({ ...context(Object.fromEntries(new FormData(form))) });

function request(limit) {
  const { colour, method } = Object.fromEntries(new FormData(form));
  return { projection: version("projection"), before: version("before"), method, colour: colour || undefined, filter: filter(), limit };
}

/** Ask for all documents, and for what the query attends to. */
const ask = latest(async (fits = true) => {
  clearTimeout(pending);
  byId("status").className = "status";
  if (!map) byId("status").textContent = "Loading the map…";
  try {
    map = await columns();
    place = new Map(map.ids.map((id, index) => [id, index]));
    near = null;
    tell(byId("status"), null);
    plot.show({ x: map.x, y: map.y, wasX: map.moved ? map.was_x : null, wasY: map.moved ? map.was_y : null }, fits);
    rank = -1;
    plot.mark(-1);
    drawTime();
    paint();
    follow();
    await attend();
    if (near) paint();
  } catch (error) {
    tell(byId("status"), error);
  }
});

/** The columns; a version before that was not the reader's choice is left out where it cannot be shown. */
async function columns() {
  try {
    return await post(path("map", "columns"), request());
  } catch (error) {
    if (!isAutomatic || !field("before").value) throw error;
    field("before").value = standard.before = "";
    return post(path("map", "columns"), request());
  }
}

/** The place of the query, and what it attends to. */
async function attend() {
  near = null;
  const line = field("q").value.trim();
  if (!line || !map.documents) return;
  const query = await queryOf(field("collection").value, line);
  near = await post(path("map"), { query, filter: filter(), projection: version("projection"), before: map.before ?? undefined, method: map.method, limit: 1 });
}

const askQuery = latest(async () => {
  if (!map) return;
  try {
    await attend();
    tell(byId("status"), null);
    rank = -1;
    plot.mark(-1);
    paint();
  } catch (error) {
    tell(byId("status"), error);
  }
});

/** Look again at a layout that is being computed, and move the documents there once it is. */
function follow() {
  clearTimeout(pending);
  if (!map.pending) return;
  const { stage, done } = map.pending;
  byId("status").textContent = `Neighbourhoods are being computed: ${stage.toLowerCase()}, ${percent(done)} done. Until then you see the main axes.`;
  pending = setTimeout(async () => {
    try {
      const now = await post(path("map", "columns"), { ...request(), limit: 0 });
      if (now.method !== map.method) return await arrive();
      map.pending = now.pending;
      if (!now.pending) byId("status").textContent = "Neighbourhoods could not be computed; you see the main axes.";
      follow();
    } catch (error) {
      tell(byId("status"), error);
    }
  }, WAIT);
}

/** Show the layout that has come, beginning where the documents are now. */
async function arrive() {
  const before = { x: map.x, y: map.y, place };
  await ask();
  const from = (axis) => map.ids.map((id, index) => (before.place.has(id) ? before[axis][before.place.get(id)] : map[axis][index]));
  plot.show({ x: map.x, y: map.y, wasX: from("x"), wasY: from("y") });
  plot.play((time) => {
    plot.setTime(time);
    if (time === 1) plot.show({ x: map.x, y: map.y, wasX: map.moved ? map.was_x : null, wasY: map.moved ? map.was_y : null });
  });
}

const attended = () => (near ? near.points.filter((point) => point.weight !== null).sort((a, b) => b.weight - a.weight) : []);

function paint() {
  if (!map) return;
  const theme = { ...themeColours(), font: FONT };
  const points = attended();
  for (const point of points) titles.set(point.id, point.title);
  const weights = new Map(points.filter((point) => place.has(point.id)).map((point) => [place.get(point.id), point.weight]));
  shade = shades(map, weights, theme);
  const share = points.length ? 0.4 : 0.85;
  const cache = new Map();
  const colours = Uint32Array.from(map.x, (_, index) => {
    const colour = shade.colour(index);
    if (!cache.has(colour)) cache.set(colour, pixel(colour, theme.panel, share));
    return cache.get(colour);
  });
  const many = map.x.length;
  plot.look({
    colours,
    paper: pixel(theme.panel),
    radius: many > 20_000 ? 1.1 : many > 3000 ? 1.7 : many > 600 ? 2.4 : 3.2,
    attended: points.map((point) => ({ ...pair(point), weight: point.weight, title: short(point.title, 28), colour: place.has(point.id) ? shade.colour(place.get(point.id)) : theme.edge })),
    query: near?.query && pair(near.query),
    labels: map.labels,
    theme,
  });
  byId("key").replaceChildren(...shade.legend);
  byId("said").textContent = inWords();
  drawNarrowed(byId("narrowed"), { elements: { filter: field("filter"), projection: { value: "" } } }, changed);
  list(points);
  drawGroups();
}

/** A place of the API as the plot takes it. */
function pair(point) {
  const [x, y] = point.place;
  const [wasX, wasY] = point.was ?? [];
  return { x, y, wasX, wasY };
}

function inWords() {
  if (!map.documents) return "This collection has no documents yet.";
  const many = `${plural(map.x.length, "document")} of ${count(map.documents)}`;
  const axes = map.method === "pca" ? `a flat view, which keeps ${percent(map.explained[0] + map.explained[1])} of the differences` : "documents that are alike lie together";
  const isSame = map.before && !map.moved && map.before !== map.projection;
  const difference = map.queries_moved ? "only queries lie elsewhere" : "only words and confidence differ";
  return `${many}; ${axes}.${isSame ? ` Versions ${map.before} and ${map.projection} place documents alike: ${difference}.` : ""}`;
}

/** The slider between the versions, where keys moved. */
function drawTime() {
  const host = byId("time");
  host.hidden = !map.moved;
  plot.setTime(1);
  if (!map.moved) return host.replaceChildren();
  const slider = h("input", { type: "range", min: 0, max: 1, step: 0.01, value: 1, "aria-label": `From version ${map.before} to version ${map.projection}` });
  const step = (time) => {
    slider.value = String(time);
    plot.setTime(time);
  };
  slider.addEventListener("input", (event) => {
    event.stopPropagation(); // the address does not say it
    plot.setTime(Number(slider.value));
  });
  const play = h("button", { type: "button", on: { click: () => plot.play(step) } }, "Play the movement");
  return host.replaceChildren(play, h("span", {}, `Version ${map.before}`), slider, h("span", {}, `Version ${map.projection}`));
}

/** What the query attends to, in words: the picture's other half. */
function list(points) {
  const items = points.slice(0, LISTED).map((point) =>
    h("li", {}, h("a", { class: "name", dir: "auto", href: documentAddress(point.id) }, short(point.title, 60)), bar(point.weight), h("span", { class: "number" }, percent(point.weight))),
  );
  byId("attended").replaceChildren(...(items.length ? [h("h2", { class: "label" }, "What the query attends to"), h("ol", { class: "shares" }, items)] : []));
}

/** The groups of the map as a table, for those who do not see it. */
function drawGroups() {
  const rows = map.labels.filter((label) => label.level === 0);
  const read = rows.reduce((sum, label) => sum + label.documents, 0) || 1;
  const body = [...rows].sort((a, b) => b.documents - a.documents).map(({ words, documents }) => h("tr", {}, h("th", { scope: "row", dir: "auto" }, words.join(", ")), h("td", { class: "number" }, percent(documents / read))));
  const table = h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Words of the group"), h("th", { scope: "col" }, "Share of the documents"))), h("tbody", {}, body));
  byId("groups").replaceChildren(...(rows.length ? [h("details", { class: "fold" }, h("summary", {}, "The groups as a table"), table)] : []));
}

const documentAddress = (id) => addressOf("/document", { collection: field("collection").value, id });

let resting = 0;

function hover(index) {
  clearTimeout(resting);
  plot.canvas.classList.toggle("over", index >= 0);
  if (index < 0) return;
  point(index);
  if (titles.has(map.ids[index])) return;
  resting = setTimeout(() => named(index).then(() => plot.marked === index && point(index), () => {}), REST);
}

/** Ask for the title of a document, once. */
async function named(index) {
  const id = map.ids[index];
  if (!titles.has(id)) titles.set(id, (await titlesOf(field("collection").value, [id])).get(id) ?? id);
  return titles.get(id);
}

/** Say what a document is, and mark it. */
function point(index, brings = false) {
  plot.mark(index, brings);
  const id = map.ids[index];
  const weight = near?.points.find((other) => other.id === id)?.weight;
  const word = shade.word(index);
  const name = field("colour").selectedOptions[0]?.textContent;
  byId("readout").textContent = [short(titles.get(id) ?? id, 80), weight == null ? "" : `${percent(weight)} of the attention`, word ? `${name}: ${word}` : ""].filter(Boolean).join(", ");
}

/** The positions that the keyboard goes through: what is attended to, else all. */
function order() {
  const heavy = attended().map((point) => place.get(point.id)).filter((index) => index !== undefined);
  return heavy.length ? heavy : map.ids.map((_, index) => index);
}

function onKey(event) {
  if (!map || event.ctrlKey || event.metaKey || event.altKey) return;
  const step = STEPS[event.key];
  const keys = { "+": () => plot.by(1.5), "=": () => plot.by(1.5), "-": () => plot.by(1 / 1.5), 0: () => plot.whole(), Enter: () => plot.marked >= 0 && open(plot.marked), Escape: close };
  if (!step && !keys[event.key]) return;
  event.preventDefault();
  if (!step) return void keys[event.key]();
  const all = order();
  if (!all.length) return;
  rank = Math.max(0, Math.min(all.length - 1, rank + step));
  const index = all[rank];
  point(index, true);
  named(index).then(() => plot.marked === index && point(index), () => {});
}

/** Open a document in the drawer, with its neighbours. */
async function open(index) {
  point(index, true);
  const id = map.ids[index];
  try {
    await drawDocument(byId("drawer"), { collection: field("collection").value, id, projection: version("projection"), search: search(), go: (other) => place.has(other) && open(place.get(other)), close });
  } catch (error) {
    tell(byId("status"), error);
  }
}

function close() {
  byId("drawer").hidden = true;
  plot.setLasso(plot.isLasso);
  byId("picture").focus({ preventScroll: true });
}

/** What the lasso holds: to search among, to keep on the map, to teach. */
async function choose(indexes) {
  if (!indexes.length) return close();
  const weights = new Map(attended().map((point) => [point.id, point.weight]));
  const ids = indexes.map((index) => map.ids[index]).sort((a, b) => (weights.get(b) ?? 0) - (weights.get(a) ?? 0));
  const only = (condition) => {
    field("filter").value = JSON.stringify(condition);
    toggleLasso(false);
    close();
    changed();
  };
  try {
    await drawSelection(byId("drawer"), { collection: field("collection").value, ids, names: words(indexes), search: search(), filter: filter(), only, close, taught: askQuery });
  } catch (error) {
    tell(byId("status"), error);
  }
  return undefined;
}

/** How often each value that colours is among some documents, the most frequent first. */
function words(indexes) {
  const counts = new Map();
  if (!map.numbers) for (const word of indexes.map(shade.word)) if (word) counts.set(word, (counts.get(word) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]).slice(0, 6);
}

function toggleLasso(isOn) {
  byId("lasso").setAttribute("aria-pressed", String(isOn));
  plot.setLasso(isOn);
}

function changed() {
  remember();
  ask();
}

/** The fields that may colour, of values first, and how many documents there are. */
async function fieldsToColour() {
  const { documents, total } = await get(`${path("documents")}?limit=${SAMPLE}`);
  const values = new Map();
  const add = (name, value) => {
    const first = Array.isArray(value) ? value[0] : value;
    const isShort = typeof first === "string" ? first.length <= LONG : ["number", "boolean"].includes(typeof first);
    if (!isShort || (Array.isArray(value) && typeof first === "number") || /[$".]/.test(name)) return;
    values.set(name, [...(values.get(name) ?? []), first]);
  };
  const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
  for (const { value } of documents) {
    if (isObject(value)) Object.entries(value).forEach(([name, part]) => add(name, part));
    else add(VALUE, value);
  }
  const ofValue = new Set(values.keys());
  for (const { payload } of documents) for (const [name, part] of Object.entries(payload ?? {})) if (!ofValue.has(name)) add(name, part);
  const fields = [...values].map(([name, parts]) => {
    const distinct = new Set(parts).size;
    const isNumeric = parts.every((part) => typeof part === "number");
    return { name, word: name === VALUE ? "value" : name, isValue: ofValue.has(name), isGroup: !isNumeric && distinct > 1 && distinct <= GROUPS * parts.length, isNumeric };
  });
  return { fields, total };
}

/** The field that colours where the reader has chosen none. */
function usual(fields) {
  const ofValue = fields.filter((item) => item.isValue);
  const best = [ofValue.find((item) => item.isGroup), ofValue.find((item) => item.isNumeric), fields.find((item) => item.isGroup)].find(Boolean);
  return best?.name ?? "";
}

async function openCollection(parameters = {}) {
  const collection = field("collection").value;
  map = null;
  forget();
  titles.clear();
  try {
    const [{ fields, total }, { active, projections }] = await Promise.all([fieldsToColour(), get(path("projections"))]);
    explain(field("q"), collection, "Where does it fall?");
    const searching = projections.filter((item) => !item.role || item.role === "search");
    const options = searching.map((item) => h("option", { value: String(item.version) }, versionName(item)));
    field("projection").replaceChildren(h("option", { value: "" }, `in use (${active})`), ...options);
    field("before").replaceChildren(h("option", { value: "" }, "no other"), ...options.map((option) => option.cloneNode(true)));
    field("before").closest("label").hidden = searching.length < 2;
    const names = new Map([["", "nothing"], ...fields.map(({ name, word }) => [name, word])]);
    if (parameters.colour && parameters.colour !== "none" && !names.has(parameters.colour)) names.set(parameters.colour, parameters.colour);
    field("colour").replaceChildren(...[...names].map(([value, word]) => h("option", { value }, word)));
    field("projection").value = parameters.projection ?? "";
    const shown = searching.find((item) => item.version === (version("projection") ?? active));
    const first = shown?.parent ?? Math.min(...searching.map((item) => item.version));
    standard = { method: total < FEWEST ? "pca" : "tsne", colour: usual(fields), before: first && first !== shown?.version ? String(first) : "" };
    isAutomatic = parameters.before === undefined;
    field("before").value = parameters.before === "none" ? "" : (parameters.before ?? standard.before);
    field("method").value = parameters.method ?? standard.method;
    field("colour").value = parameters.colour === "none" ? "" : (parameters.colour ?? standard.colour);
    changed();
  } catch (error) {
    tell(byId("status"), error);
  }
}

function start() {
  const parameters = read();
  for (const name of ["q", "collection", "filter"]) if (parameters[name]) field(name).value = parameters[name];
  field("q").addEventListener("input", () => {
    remember();
    askQuery();
  });
  field("colour").addEventListener("change", forget);
  field("before").addEventListener("change", () => (isAutomatic = false));
  for (const name of ["projection", "before", "colour", "method"]) field(name).addEventListener("change", changed);
  field("collection").addEventListener("change", () => {
    field("filter").value = "";
    close();
    openCollection();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  byId("picture").addEventListener("keydown", onKey);
  byId("drawer").addEventListener("keydown", (event) => event.key === "Escape" && close());
  byId("closer").addEventListener("click", () => plot.by(1.6));
  byId("farther").addEventListener("click", () => plot.by(1 / 1.6));
  byId("whole").addEventListener("click", () => plot.whole());
  byId("lasso").addEventListener("click", () => toggleLasso(!plot.isLasso));
  byId("png").addEventListener("click", () => savePicture(plot.canvas, "map"));
  new ResizeObserver(() => plot.redraw()).observe(byId("picture"));
  onTheme(paint);
  reopenOnReturn();
  openCollection(parameters);
}

start();
