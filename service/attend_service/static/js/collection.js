// A collection: what it holds, its documents by page, its fields with their values, and how to add.

import { get, of, post } from "./api.js";
import { byId, h, tell, tried } from "./dom.js";
import { drawFilters, facetsOf, fieldsOf } from "./filters.js";
import { count, plural, short } from "./format.js";
import { addressOf, read, reopenOnReturn, write } from "./state.js";
import { isRecord, plain, shown } from "./values.js";

const LISTED = 20;
const FIELDS = 16; // in one request for facets
const VALUES = 5;
const LONGEST_EXAMPLE = 12; // numbers of a vector that are written out
const PLAIN_NAME = /^[\w -]{1,40}$/; // may stand in a shell's quotes
const KINDS = { number: "number", boolean: "true or false", text: "text", labels: "labels" };
const collection = byId("collection").value;
const path = (...parts) => of(collection, ...parts);

let info = null;
let filter = null;
let before = []; // the cursors of the pages before this one, as far as they are known
let place = { cursor: "", page: 1 };

async function open() {
  try {
    info = await get(path());
    describe();
    if (info.documents) await Promise.all([list(), filters(), drawFields()]);
    else drawCurl();
    byId("browsed").hidden = byId("fielded").hidden = !info.documents;
    tell(byId("status"), null);
    byId("loaded").hidden = false;
  } catch (error) {
    tell(byId("status"), error.status === 404 ? new Error(`There is no collection “${short(collection, 80)}”. Choose another one.`) : error);
  }
}

function describe() {
  const about = info.settings.about ?? {};
  if (about.title) document.querySelector("main h1").textContent = short(about.title, 120);
  byId("described").textContent = about.description ?? "";
  byId("described").hidden = !about.description;
  const version = h("a", { href: addressOf("/compare", { collection }) }, `Version ${info.projection}`);
  const facts = {
    "Name": about.title ? collection : null,
    "Documents": count(info.documents),
    "Users": info.users ? count(info.users) : null,
    "Encoder": info.encoder ? h("span", { title: info.encoder }, short(info.encoder.split("/").at(-1), 60)) : `none: vectors of ${plural(info.dimension, "number")}`,
    "Answers": version,
    "Licence": about.licence ?? null,
    "Source": about.source ? linked(about.source) : null,
  };
  const rows = Object.entries(facts).filter(([, fact]) => fact !== null);
  byId("facts").replaceChildren(...rows.map(([name, fact]) => h("div", {}, h("dt", {}, name), h("dd", { dir: "auto" }, fact))));
  byId("actions").replaceChildren(...actions());
  byId("next").replaceChildren(...next());
  const add = byId("add"); // absent where nothing can be written
  if (add) add.href = addressOf("/add", { to: collection });
}

/** A source is a link where it is an address of the web, and a text elsewhere. */
function linked(source) {
  if (!/^https?:\/\//i.test(source)) return short(source, 200);
  return h("a", { href: source, rel: "noreferrer noopener", target: "_blank" }, short(source, 80));
}

function actions() {
  const { documents, users } = info;
  if (!documents) return [];
  const links = [["/search", "Search"], ["/map", "Map"], ["/teach", "Teach"], ...(users ? [["/recommend", "Recommend"]] : [])];
  return links.map(([view, word], at) => h("a", { class: at ? "button" : "button main", href: addressOf(view, { collection }) }, word));
}

/** What to do next, where there is nothing to read or no text to search. */
function next() {
  const { documents, encoder, dimension } = info;
  if (!documents) {
    const add = byId("add") ? h("a", { class: "button main", href: addressOf("/add", { to: collection }) }, "Add a file") : null;
    return [h("div", { class: "notice" }, h("p", {}, "This collection has no documents yet.", add ? " Add a file, or send documents as the request below does; then search them." : ""), add)];
  }
  if (encoder) return [];
  return [h("p", { class: "notice" }, `Documents here bring their own vectors of ${plural(dimension, "number")}, and no text is encoded. Search with ${plural(dimension, "number")} or with the id of a document; or open a document to see those nearest to it.`)];
}

// -- documents ----------------------------------------------------------------------------------

async function list() {
  const asked = { limit: LISTED, title: true, filter: filter ?? undefined, cursor: place.cursor || undefined };
  const page = await post(path("documents", "list"), asked);
  byId("listed").textContent = filter ? `${plural(page.total, "document")} with this filter` : plural(page.total, "document");
  const entries = page.documents.map(entry);
  byId("documents").replaceChildren(entries.length ? h("ol", { class: "entries", "aria-label": "Documents" }, entries) : h("p", { class: "quiet" }, "No document passes this filter."));
  drawPages(page);
  drawCurl(page.documents[0]);
}

function entry(stored) {
  const { id, title, value, fields } = stored;
  const text = Object.values(fields).filter((each) => each.trim() !== title).join(" · ");
  const begun = title.replace(/…$/, "");
  const rest = text.startsWith(begun) ? text.slice(begun.length) : text;
  return h("li", {},
    h("div", {}, h("h3", { dir: "auto" }, h("a", { href: addressOf("/document", { collection, id }) }, short(title, 140))), rest.trim() ? h("p", { class: "quiet", dir: "auto" }, short(rest, 240)) : null),
    h("div", { class: "value" }, value === null || value === title ? null : valueOf(value, title)));
}

const valueOf = (value, title) => (isRecord(value) || typeof value !== "object" ? shown(value, title) : h("span", { class: "quiet" }, plain(value)));

function drawPages({ total, next: following }) {
  const pages = Math.ceil(total / LISTED);
  const button = (word, go, usable) => h("button", { type: "button", disabled: !usable, on: { click: go } }, word);
  const back = () => turn(before.pop() ?? "", before.length ? place.page - 1 : 1);
  const on = () => {
    before.push(place.cursor);
    turn(following, place.page + 1);
  };
  const known = place.cursor && !before.length ? "First page" : "Previous page";
  byId("pages").replaceChildren(...(pages > 1 || place.cursor ? [button(known, back, Boolean(place.cursor)), button("Next page", on, following !== null), h("span", { class: "quiet" }, `Page ${place.page} of ${pages}`)] : []));
}

function turn(cursor, page) {
  place = { cursor, page: cursor ? page : 1 };
  remember();
  tried("list", async () => {
    await list();
    byId("listed").scrollIntoView({ block: "nearest" });
  });
}

function remember() {
  const { cursor, page } = place;
  write({ collection, filter: filter ? JSON.stringify(filter) : "", cursor, page: cursor ? page : "" });
}

// -- filters and fields -------------------------------------------------------------------------

function filters() {
  return drawFilters(byId("filters"), byId("filtered"), collection, filter, (chosen) => {
    filter = chosen;
    [before, place] = [[], { cursor: "", page: 1 }];
    remember();
    tried("list", list);
  });
}

async function drawFields() {
  const [{ fields, total }, sample] = await Promise.all([fieldsOf(collection), get(`${path("documents")}?limit=${LISTED}`)]);
  const searched = new Set(sample.documents.flatMap((each) => Object.keys(each.fields)));
  const known = fields.slice(0, FIELDS - 1);
  const whole = sample.documents[0].value;
  const names = [...(whole === null || isRecord(whole) ? [] : ["@value"]), ...known.map((each) => each.name)];
  const { facets } = await facetsOf(collection, names);
  const rows = [...searched].map((name) => row(name, "searched text", null, null));
  for (const name of names) {
    const kind = name === "@value" ? "value" : (KINDS[fields.find((each) => each.name === name).kind] ?? "");
    rows.push(row(name === "@value" ? "value" : name, kind, count(total - facets[name].missing), frequent(name, facets[name])));
  }
  byId("fields").replaceChildren(...rows);
}

function row(name, kind, documents, values) {
  const cell = (label, content) => h("td", { "data-label": label }, content ?? "–");
  return h("tr", {}, h("th", { scope: "row", dir: "auto" }, short(name, 60)), cell("Kind", kind), cell("Documents", documents), cell("Most frequent", values));
}

/** The most frequent values, each a link to its documents; where none repeats, how many there are. */
function frequent(name, facet) {
  const repeated = facet.values.filter(({ documents }) => documents > 1).slice(0, VALUES);
  if (!repeated.length) return facet.distinct ? `${plural(facet.distinct, "different value")}` : null;
  const links = repeated.map(({ value, documents }) => {
    const chosen = JSON.stringify({ [name]: { in: [value] } });
    return h("li", {}, h("a", { href: addressOf("/collection", { collection, filter: chosen }) }, h("span", { dir: "auto" }, short(plain(value), 40)), h("span", { class: "count" }, count(documents))));
  });
  const more = facet.distinct - repeated.length;
  return h("ul", { class: "chips" }, links, more > 0 ? h("li", { class: "quiet" }, `and ${count(more)} more`) : null);
}

// -- adding -------------------------------------------------------------------------------------

/** The request that adds a document of the form that those here have. */
function drawCurl(sample) {
  const code = byId("curl");
  if (!code) return; // the server is read-only
  const { encoder, dimension } = info;
  const document = { id: "new-1", ...(encoder ? { fields: texts(sample) } : { vector: vectorOf(dimension) }), payload: { title: "A new document" } };
  const lines = [`curl -X POST ${location.origin}${path("documents")}`, "-H 'Content-Type: application/json'", `-d '${JSON.stringify([document])}'`];
  code.textContent = lines.join(" \\\n  ");
}

function texts(sample) {
  const names = Object.keys(sample?.fields ?? {}).filter((name) => PLAIN_NAME.test(name));
  return Object.fromEntries((names.length ? names : ["text"]).map((name) => [name, "what to search"]));
}

/** A vector of the width; of a wide one the beginning, which the reader completes. */
function vectorOf(width) {
  const written = Array.from({ length: Math.min(width, LONGEST_EXAMPLE) }, (_, at) => (at ? 0 : 1));
  return width > LONGEST_EXAMPLE ? [...written, `… ${width} numbers`] : written;
}

// -- start --------------------------------------------------------------------------------------

function filterOf(text) {
  try {
    const parsed = JSON.parse(text ?? "null");
    return parsed !== null && typeof parsed === "object" && !Array.isArray(parsed) ? parsed : null;
  } catch {
    return null;
  }
}

function start() {
  const given = read();
  filter = filterOf(given.filter);
  place = { cursor: given.cursor ?? "", page: Number(given.page) || 1 };
  byId("options").open = matchMedia("(min-width: 56rem)").matches;
  byId("collection").addEventListener("change", (event) => location.assign(addressOf("/collection", { collection: event.target.value })));
  reopenOnReturn();
  open();
}

start();
