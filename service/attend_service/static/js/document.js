// One document: its texts, value and payload, the documents nearest to it, and what attends to it.

import { get, of, post } from "./api.js";
import { bar, byId, h, scrolled, tell } from "./dom.js";
import { percent, short } from "./format.js";
import { drawHits, fullBar } from "./hits.js";
import { addressOf, read, reopenOnReturn } from "./state.js";
import { isRecord, isShown, shown } from "./values.js";

const ALIKE = 8;
const LOOKED = 24; // neighbours of which it is asked whether this document is near to them
const JUDGED = 50;
const { collection = "default", id = "" } = read();
const path = (...parts) => of(collection, ...parts);

async function open() {
  try {
    draw(await get(`${path("documents", id)}?title=true`));
    byId("loaded").hidden = false;
    const around = { query: { id }, k: LOOKED, title: true, highlight: true };
    // A document without texts and vectors has nothing near.
    const { hits } = await post(path("search"), around).catch(() => ({ hits: [] }));
    drawAlike(hits.slice(0, ALIKE));
    await drawReverse(hits, await judgements());
    tell(byId("status"), null);
  } catch (error) {
    tell(byId("status"), error.status === 404 ? new Error(`The collection “${short(collection, 80)}” has no document “${short(id, 80)}”. It may have been deleted, or its id changed.`) : error);
  }
}

// -- the document -------------------------------------------------------------------------------

function draw(stored) {
  const { title, value } = stored;
  document.title = `${short(title, 60)} · Attend`;
  document.querySelector("main h1").textContent = short(title, 200);
  document.querySelector("main .lead")?.remove();
  const texts = Object.entries(stored.fields).filter(([, text]) => text !== title);
  const isTold = ([name, part]) => part === null || part === title || part === value?.[name];
  const payload = Object.entries(stored.payload).filter((pair) => !isTold(pair));
  byId("document").replaceChildren(
    h("p", { class: "quiet" }, "id: ", h("span", { dir: "auto" }, id), " · ", h("a", { href: addressOf("/collection", { collection }) }, collection)),
    ...texts.map(([name, text]) => h("section", {}, h("h2", { class: "label" }, name), h("p", { class: "prose", dir: "auto" }, text))),
    section("Value", value === null ? null : isRecord(value) ? table("Value", Object.entries(value)) : shown(value)),
    section("Shown and filtered", payload.length ? table("Shown and filtered", payload) : null),
    actions(title),
  );
}

/** A titled part; an empty fragment where there is nothing to show. */
function section(title, content) {
  if (content === null) return document.createDocumentFragment();
  return h("section", {}, h("h2", { class: "label" }, title), content);
}

function table(label, entries) {
  const rows = entries.map(([name, value]) => {
    const cell = isShown(value) ? h("div", { class: "cover" }, shown(value)) : shown(value);
    return h("tr", {}, h("th", { scope: "row", dir: "auto" }, short(name, 80)), h("td", { dir: "auto" }, cell));
  });
  return scrolled(label, h("table", { class: "payload" }, h("tbody", {}, rows)));
}

function actions(title) {
  const links = [
    [addressOf("/teach", { collection, q: short(title, 200) }), "Teach"],
    [addressOf("/attention", { collection, q: id, of: "documents" }), "Attend from here"],
    [addressOf("/recommend", { collection, like: JSON.stringify([id]) }), "Recommend from this"],
  ];
  return h(
    "div",
    { class: "row" },
    links.map(([href, word]) => h("a", { class: "button", href }, word)),
    h("a", { class: "quiet", href: path("documents", id) }, "JSON"),
  );
}

function drawAlike(hits) {
  byId("more").hidden = !hits.length;
  const full = fullBar(hits.map((hit) => hit.weight));
  byId("scale").textContent = `A full bar is ${percent(full)} of the weight.`;
  const items = hits.map((hit, rank) => ({ collection, hit, weight: hit.weight, rank: rank + 1, full }));
  drawHits(byId("results"), "Nearest to this", items);
}

// -- what attends here --------------------------------------------------------------------------

/** The judgements of this document; none for a key that may not read them. */
async function judgements() {
  const page = await get(`${path("feedback")}?limit=${JUDGED}&document=${encodeURIComponent(id)}`).catch(() => ({ items: [] }));
  return page.items.filter(({ query }) => query !== null);
}

async function drawReverse(near, judged) {
  const rest = { k: ALIKE, fields: [] };
  const searches = [...judged.map(({ query }) => ({ query, ...rest })), ...near.map((hit) => ({ query: { id: hit.id }, ...rest }))];
  if (!searches.length) return;
  const { answers } = await post(`${path("search")}/batch`, { searches });
  const full = fullBar(answers.flatMap(({ hits = [] }) => hits.filter((hit) => hit.id === id).map((hit) => hit.weight)));
  const ranks = answers.map(({ hits = [] }) => {
    const at = hits.findIndex((hit) => hit.id === id);
    return at < 0 ? null : { rank: at + 1, weight: hits[at].weight, full };
  });
  drawJudged(judged.map((each, at) => ({ ...each, ...ranks[at] })));
  drawNeighbours(near.map((hit, at) => ({ hit, ...ranks[judged.length + at] })));
  byId("reverse").hidden = false;
}

function drawJudged(judged) {
  const word = (label) => (label > 0 ? "relevant" : "not relevant");
  const items = judged.map(({ query, label, ...place }) =>
    share(h("a", { href: addressOf("/search", { collection, q: query }) }, short(query, 120)), h("span", { class: "chip" }, word(label)), place));
  byId("judged").replaceChildren(...(items.length ? [h("h3", { class: "label" }, "Judged queries"), h("ul", { class: "reverse", "aria-label": "Judged queries" }, items)] : []));
}

function drawNeighbours(all) {
  const attending = all.filter(({ rank }) => rank).sort((a, b) => b.weight - a.weight);
  const items = attending.map(({ hit, ...place }) => share(h("a", { href: addressOf("/document", { collection, id: hit.id }) }, short(hit.title, 120)), null, place));
  const none = h("p", { class: "quiet" }, `None of its ${all.length} neighbours has this document among the ${ALIKE} nearest.`);
  if (!all.length) return;
  byId("neighbours").replaceChildren(h("h3", { class: "label" }, `Documents that have it among their ${ALIKE} nearest`), items.length ? h("ul", { class: "reverse", "aria-label": "Documents that attend here" }, items) : none);
}

function share(name, chip, { rank, weight, full }) {
  const told = rank ? `${percent(weight)}, rank ${rank}` : `not among the first ${ALIKE}`;
  return h("li", {}, h("span", { class: "name", dir: "auto" }, name, chip && " ", chip), rank ? bar(weight / full) : null, h("span", { class: "number quiet" }, told));
}

reopenOnReturn();
open();
