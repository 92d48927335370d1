// The heat map: several queries over the documents that they attend to, or documents over each other.

import { batch, latest } from "./api.js";
import { byId, h, tell } from "./dom.js";
import { number, percent, short } from "./format.js";
import { cells, lines } from "./heat.js";
import { onTheme, savePng, saveSvg } from "./pictures.js";
import { drawNarrowed, narrowed } from "./narrowed.js";
import { explain, queryOf, widthOf } from "./queries.js";
import { read, reopenOnReturn, write } from "./state.js";
import { titlesOf } from "./titles.js";

const MOST_ROWS = 16;
const MOST_COLUMNS = 40;
const ATTENDED = 100; // documents that a query attends to, as on the search page
const NARROW = 640; // pixels, below which lines are easier to read than cells
const PADDING = 42; // of the picture's panel
const form = byId("attention");
const field = (name) => form.elements[name];

let found = null;
let standard = "cells"; // how this width is drawn where the address does not say

const ask = latest(async () => {
  const said = field("q").value.split("\n").map((line) => line.trim()).filter(Boolean).slice(0, MOST_ROWS);
  if (!said.length) return show(null);
  try {
    const collection = field("collection").value;
    const documents = field("of").value === "documents";
    const [lines, instead] = documents ? await documentsOf(collection, said) : [said, []];
    show(await attended(collection, lines, documents, Number(field("n").value)));
    tell(byId("status"), null);
    byId("status").textContent = instead.join(" ");
  } catch (error) {
    show(null); // the picture before is of something else
    tell(byId("status"), error);
  }
});

/**
 * Rows, columns and the weights between them, over the `n` best documents of each row. The weights
 * are those of a search: what a row attends to besides is in the column "others", and the weight of
 * no answer in the last one, where it was fitted.
 */
async function attended(collection, said, documents, n) {
  let queries = await Promise.all(said.map((line) => (documents ? { id: line } : queryOf(collection, line))));
  let answers = await searched(collection, queries, said);
  const titles = new Map(answers.flatMap(({ hits }) => hits.map((hit) => [hit.id, hit.title])));
  if (documents && said.length === 1) {
    // One document is shown among its neighbours, each of which attends too.
    queries = answers[0].hits.slice(0, Math.min(n, MOST_ROWS)).map(({ id }) => ({ id }));
    const columns = queries.map(({ id }) => id);
    answers = await searched(collection, queries, columns);
    return matrix(queries.map(({ id }) => titles.get(id) ?? id), columns, titles, answers);
  }
  const [columns, each] = together(answers, n);
  const rows = queries.map((query, row) => (query.id ? (titles.get(query.id) ?? query.id) : said[row]));
  return { ...matrix(rows, columns, titles, answers), cut: each < n ? each : null };
}

/** The document that each line names; of a line that is no id the best one, with a sentence. */
async function documentsOf(collection, lines) {
  const titles = await titlesOf(collection, lines);
  const others = lines.filter((line) => !titles.has(line));
  if (!others.length || (await widthOf(collection)) !== null) return [lines, []];
  const { answers } = await batch(collection, others.map((query) => ({ query, ...narrowed(form), k: 1, fields: [], title: true })), others);
  const best = new Map(others.map((line, at) => [line, answers[at].hits[0]]).filter(([, hit]) => hit));
  const sentences = [...best].map(([line, hit]) => `“${short(line, 40)}” is not an id; its best document is ${short(hit.title, 40)}.`);
  return [lines.map((line) => best.get(line)?.id ?? line), sentences];
}

async function searched(collection, queries, said) {
  const searches = queries.map((query) => ({ query, ...narrowed(form), k: ATTENDED, attend: ATTENDED, exclude_self: false, fields: [], title: true, explain: true }));
  return (await batch(collection, searches, said)).answers;
}

/** The ids of the best of all rows, of each as many as fit, and how many these are. */
function together(answers, n) {
  for (let each = n; ; each--) {
    const ids = [...new Set(answers.flatMap(({ hits }) => hits.slice(0, each).map((hit) => hit.id)))];
    if (ids.length <= MOST_COLUMNS || each === 1) return [ids.slice(0, MOST_COLUMNS), each];
  }
}

function matrix(rows, columns, titles, answers) {
  const calibrated = answers.some((answer) => answer.weighing.null);
  const lines = answers.map((answer) => line(answer, columns, calibrated));
  return {
    rows: rows.map((label, row) => (answers[row].answered || !calibrated ? label : `${label} (no answer)`)),
    columns: [...columns.map((id) => titles.get(id) ?? id), "others", ...(calibrated ? ["no answer"] : [])],
    documents: columns.length,
    combined: lines.map((each) => each.combined),
    heads: lines.map((each) => each.heads),
    scores: lines.map((each) => each.scores),
  };
}

/** The weights of one row, mixed and of each head, and the scores of the heads by column. */
function line({ hits, weighing }, columns, calibrated) {
  const byId_ = new Map(hits.map((hit) => [hit.id, hit]));
  const shown = columns.map((id) => byId_.get(id));
  const heads = weighing.gates.map((_, head) => {
    const of_ = (hit) => hit?.explanation.weights[head] ?? 0;
    return withRest(shown.map(of_), sum(hits.map(of_)), calibrated);
  });
  const weight = (hit) => hit?.weight ?? 0;
  return {
    combined: withRest(shown.map(weight), sum(hits.map(weight)), calibrated),
    heads,
    scores: shown.map((hit) => hit?.explanation.logits ?? null),
  };
}

/** Weights of columns with what other documents have, and with what no document has. */
function withRest(weights, attended, calibrated) {
  const others = Math.max(0, attended - sum(weights));
  return [...weights, others, ...(calibrated ? [Math.max(0, 1 - attended)] : [])];
}

const sum = (list) => list.reduce((total, each) => total + each, 0);

function show(next) {
  found = next;
  byId("tools").hidden = !found;
  heads(found ? found.heads[0].length : 1);
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
  place.replaceChildren(draw(found.rows, found.columns, weights(), place.clientWidth - PADDING, found.documents));
  byId("cut").textContent = found.cut ? `${found.cut} of each row are shown: ${MOST_COLUMNS} columns at most.` : "";
  table();
  delete place.dataset.at;
  byId("readout").textContent = "Hover or use arrow keys for details.";
}

/** The numbers of one cell, below the picture. */
function point(row, column) {
  byId("readout").textContent = `${found.rows[row]} → ${found.columns[column]}: ${percent(weights()[row][column])}${matches(row, column)}`;
  const picture = byId("picture");
  for (const each of picture.querySelectorAll(".at")) each.classList.remove("at");
  cellAt(row, column)?.classList.add("at");
  picture.dataset.at = `${row} ${column}`;
}

/** The match of a document with a query, by head where there are several. */
function matches(row, column) {
  if (column >= found.documents) return "";
  const scores = found.scores[row][column];
  if (scores === null) return ` (not among its ${ATTENDED} best)`;
  const parts = scores.map((score, head) => (scores.length > 1 ? `head ${head + 1}: match ${number(score, 3)}, ${percent(found.heads[row][head][column])}` : `match ${number(score, 3)}`));
  return ` (${parts.join("; ")})`;
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
  if (!byId("picture").dataset.at) return point(0, 0);
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
  const names = ["q", "collection", "of", "as", "n", "head", "filter", "projection"];
  const defaults = { of: "queries", as: standard, n: "5" };
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
  if (documents) field("q").placeholder = "A document's id on each line: every hit of a search shows its id";
  else explain(field("q"), field("collection").value, "A query on each line");
}

function start() {
  if (document.documentElement.clientWidth < NARROW) field("as").value = "lines";
  standard = field("as").value;
  restore();
  const repaint = () => {
    paint();
    remember();
  };
  const changed = () => {
    hint();
    drawNarrowed(byId("narrowed"), form, changed);
    remember();
    ask();
  };
  for (const name of ["q", "n"]) field(name).addEventListener("input", changed);
  for (const each of field("of")) each.addEventListener("change", changed);
  field("collection").addEventListener("change", () => {
    for (const name of ["filter", "projection"]) field(name).value = "";
    changed();
  });
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
