// One document: its texts, its value, its payload, and the documents most like it.

import { get, of, post } from "./api.js";
import { byId, h, tell } from "./dom.js";
import { short } from "./format.js";
import { drawHits } from "./hits.js";
import { addressOf, read, reopenOnReturn } from "./state.js";
import { isRecord, isShown, shown } from "./values.js";

const ALIKE = 8;
const { collection = "default", id = "" } = read();

async function open() {
  try {
    const stored = await get(of(collection, "documents", id));
    const query = { query: { id }, k: ALIKE, title: true, highlight: true };
    // The document itself, for its title; and what it attends to.
    const searches = [{ query: { id }, mask: { only: [id] }, k: 1, fields: [], title: true }, query];
    const { answers } = await post(`${of(collection, "search")}/batch`, { searches });
    const title = answers[0].hits?.[0]?.title ?? id;
    draw(stored, title);
    drawAlike(answers[1].hits ?? []);
    tell(byId("status"), null);
  } catch (error) {
    tell(byId("status"), error.status === 404 ? new Error(`The collection “${collection}” has no document “${short(id, 80)}”. It may have been deleted, or its id changed.`) : error);
  }
}

function draw(stored, title) {
  document.title = `${short(title, 60)} · Attend`;
  document.querySelector("main h1").textContent = short(title, 200);
  document.querySelector("main .lead")?.remove();
  const texts = Object.entries(stored.fields ?? {}).filter(([, text]) => text !== title);
  const { value } = stored;
  const isTold = ([name, part]) => part === null || part === title || part === value?.[name];
  const payload = Object.entries(stored.payload ?? {}).filter((pair) => !isTold(pair));
  byId("document").replaceChildren(
    h("p", { class: "quiet" }, "id: ", h("span", { dir: "auto" }, id), " · ", collection),
    ...texts.map(([name, text]) => h("section", {}, h("h2", { class: "label" }, name), h("p", { class: "prose", dir: "auto" }, text))),
    section("Value", value == null ? null : isRecord(value) ? list(Object.entries(value)) : shown(value)),
    section("Shown and filtered", payload.length ? list(payload) : null),
    actions(title),
  );
}

/** A titled part; an empty fragment where there is nothing to show. */
function section(title, content) {
  if (content === null) return document.createDocumentFragment();
  return h("section", {}, h("h2", { class: "label" }, title), content);
}

const list = (entries) => h("dl", { class: "payload" }, entries.map(entry));

function entry([name, value]) {
  return h("div", {}, h("dt", {}, name), h("dd", { dir: "auto" }, isShown(value) ? h("div", { class: "cover" }, shown(value)) : shown(value)));
}

function actions(title) {
  const links = [
    [addressOf("/attention", { collection, q: id, of: "documents" }), "Attend from here"],
    [addressOf("/recommend", { collection, like: JSON.stringify([id]) }), "Recommend from this"],
    [addressOf("/teach", { collection, q: short(title, 200) }), "Teach"],
  ];
  return h(
    "div",
    { class: "row" },
    links.map(([href, word]) => h("a", { class: "button", href }, word)),
    h("a", { class: "quiet", href: of(collection, "documents", id) }, "JSON"),
  );
}

function drawAlike(hits) {
  byId("more").hidden = !hits.length;
  const items = hits.map((hit, rank) => ({ collection, hit, weight: hit.weight, rank: rank + 1 }));
  drawHits(byId("results"), "More like this", items);
}

reopenOnReturn();
open();
