// The heat map: several queries over the documents that they attend to, or documents over each other.

import { batch, latest } from "./api.js";
import { byId, h, tell } from "./dom.js";
import { number, percent } from "./format.js";
import { cells, lines } from "./heat.js";
import { onTheme, savePng, saveSvg } from "./pictures.js";
import { explain, queryOf } from "./queries.js";
import { read, reopenOnReturn, write } from "./state.js";

const MOST_ROWS = 16;
const MOST_COLUMNS = 40;
const PADDING = 42; // of the picture's panel
const form = byId("attention");
const field = (name) => form.elements[name];

let found = null;

const ask = latest(async () => {
  const said = field("q").value.split("\n").map((line) => line.trim()).filter(Boolean).slice(0, MOST_ROWS);
  if (!said.length) return show(null);
  try {
    const documents = field("of").value === "documents";
    show(await attended(field("collection").value, said, documents, Number(field("n").value)));
    tell(byId("status"), null);
  } catch (error) {
    tell(byId("status"), error);
  }
});

/** Rows, columns and the matrix between them, over the `n` best documents of each row. */
async function attended(collection, said, documents, n) {
  let queries = await Promise.all(said.map((each) => (documents ? { id: each } : queryOf(collection, each))));
  const names = new Map();
  let listed = await best(collection, queries, n, names, said);
  if (documents && said.length === 1) {
    // One document is shown among its neighbours, each of which attends too.
    queries = [...listed[0].slice(0, MOST_ROWS)].map((id) => ({ id }));
    listed = [listed[0]];
  }
  const only = [...new Set(listed.flat())].slice(0, MOST_COLUMNS);
  const searches = queries.map((query) => ({ query, k: 1, fields: [], mask: { only } }));
  const { matrix } = await batch(collection, searches, queries.map((query, at) => query.id ?? said[at]), { matrix: true });
  const at = only.map((id) => matrix.documents.indexOf(id));
  const pick = (list) => at.map((place) => list[place]);
  return {
    rows: queries.map((query, at) => (query.id ? (names.get(query.id) ?? query.id) : said[at])),
    columns: only.map((id) => names.get(id) ?? id),
    ids: only,
    combined: matrix.weights.map(pick),
    heads: matrix.head_weights.map((heads) => heads.map(pick)),
    logits: matrix.logits.map((heads) => heads.map(pick)),
  };
}

/** The ids that each query attends to most; `names` learns what they are called. */
async function best(collection, queries, n, names, said) {
  const searches = queries.map((query) => ({ query, k: n, exclude_self: false, fields: [], title: true }));
  const { answers } = await batch(collection, searches, said);
  for (const answer of answers) for (const hit of answer.hits) names.set(hit.id, hit.title);
  return answers.map((answer) => answer.hits.map((hit) => hit.id));
}

function show(next) {
  found = next;
  byId("tools").hidden = !found;
  heads(found ? found.logits[0].length : 1);
  paint();
}

function heads(count) {
  const select = field("head");
  const kept = select.value;
  const options = Array.from({ length: count }, (_, at) => h("option", { value: String(at) }, `Head ${at + 1}`));
  select.replaceChildren(h("option", { value: "" }, "All heads"), ...options);
  select.value = [...select.options].some((each) => each.value === kept) ? kept : "";
  byId("head-field").hidden = count < 2;
}

const weights = () =>
  field("head").value === "" ? found.combined : found.heads.map((heads) => heads[Number(field("head").value)]);

function paint() {
  const place = byId("picture");
  if (!found) return place.replaceChildren(h("p", { class: "quiet" }, "Write one query per line."));
  const draw = field("as").value === "lines" ? lines : cells;
  place.replaceChildren(draw(found.rows, found.columns, weights(), place.clientWidth - PADDING));
  table();
  point(0, 0);
}

/** The numbers of one cell, below the picture. */
function point(row, column) {
  const heads = found.logits[row].map((logits, head) => {
    const told = `logit ${number(logits[column], 4)}`;
    return found.logits[row].length > 1 ? `head ${head + 1}: ${told}, ${percent(found.heads[row][head][column])}` : told;
  });
  byId("readout").textContent = `${found.rows[row]} → ${found.columns[column]}: ${percent(weights()[row][column])} (${heads.join("; ")})`;
  for (const each of byId("picture").querySelectorAll(".at")) each.classList.remove("at");
  cellAt(row, column)?.classList.add("at");
  byId("picture").dataset.at = `${row} ${column}`;
}

const cellAt = (row, column) =>
  byId("picture").querySelector(`[data-row="${row}"][data-column="${column}"]`);

function hover(event) {
  const cell = event.target.closest("[data-row]");
  if (cell) point(Number(cell.dataset.row), Number(cell.dataset.column));
}

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

function walk(event) {
  const step = STEPS[event.key];
  if (!step || !found) return;
  event.preventDefault();
  const [row, column] = byId("picture").dataset.at.split(" ").map(Number);
  const within = (at, count) => Math.max(0, Math.min(count - 1, at));
  point(within(row + step[0], found.rows.length), within(column + step[1], found.columns.length));
  cellAt(...byId("picture").dataset.at.split(" "))?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

function table() {
  const head = h("tr", {}, h("td", {}), found.columns.map((name) => h("th", { scope: "col" }, name)));
  const body = weights().map((line, row) =>
    h("tr", {}, h("th", { scope: "row" }, found.rows[row]), line.map((each) => h("td", { class: "number" }, percent(each)))),
  );
  byId("table").replaceChildren(h("table", {}, h("thead", {}, head), h("tbody", {}, body)));
}

function remember() {
  const names = ["q", "collection", "of", "as", "n", "head"];
  const defaults = { of: "queries", as: "cells", n: "5" };
  const parameters = names.map((name) => [name, field(name).value === defaults[name] ? "" : field(name).value]);
  write(Object.fromEntries(parameters));
}

function restore() {
  for (const [name, value] of Object.entries(read())) {
    if (name === "head") field(name).replaceChildren(h("option", { value }, value));
    if (field(name)) field(name).value = value;
  }
}

function hint() {
  const documents = field("of").value === "documents";
  if (documents) field("q").placeholder = "A document's id on each line";
  else explain(field("q"), field("collection").value, "A query on each line");
}

function start() {
  restore();
  const repaint = () => {
    paint();
    remember();
  };
  const changed = () => {
    hint();
    remember();
    ask();
  };
  for (const name of ["q", "n"]) field(name).addEventListener("input", changed);
  for (const each of [field("collection"), ...field("of")]) each.addEventListener("change", changed);
  for (const each of field("as")) each.addEventListener("change", repaint);
  field("head").addEventListener("change", repaint);
  form.addEventListener("submit", (event) => event.preventDefault());
  byId("picture").addEventListener("pointerover", hover);
  byId("picture").addEventListener("keydown", walk);
  byId("svg").addEventListener("click", () => saveSvg(byId("picture").firstChild, "attention"));
  byId("png").addEventListener("click", () => savePng(byId("picture").firstChild, "attention"));
  addEventListener("resize", () => found && paint());
  onTheme(paint);
  reopenOnReturn();
  changed();
}

start();
