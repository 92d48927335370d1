// The search view: as you type, documents with their weights, and above them what they say together.

import { latest, of, post } from "./api.js";
import { byId, h, tell } from "./dom.js";
import { drawFilters } from "./filters.js";
import { count, number, plural, short } from "./format.js";
import { Hits, isBare } from "./hits.js";
import { draw, html } from "./html.js";
import { Card, NoAnswer, Tail, takesServer } from "./panel.js";
import { explain, queryOf } from "./queries.js";
import { addressOf, reopenOnReturn, write } from "./state.js";
import { isAnswered, risenBy, weigh } from "./weigh.js";
import { whyButton } from "./why.js";

const LISTED = 100;
const PATIENCE = 150; // milliseconds after which an answer is late enough to say so
const LINE = 160; // characters of a text below a title
const DOCUMENTS = 8; // shown where nothing is asked
const form = byId("search");
const results = byId("results");
const status = byId("status");

let answer = null;
let total = null; // documents of the collection
let sample = []; // some of them

const field = (name) => form.elements[name];
const temperature = () => Number(byId("temperature").value) || 1;
const filter = () => (byId("filter").value ? JSON.parse(byId("filter").value) : undefined);

/** What the server is asked: what is attended, with logits, so that the rest is done here. */
function request(query) {
  return {
    query,
    title: true,
    k: LISTED,
    attend: field("attend").value === "all" ? "all" : LISTED,
    mode: "soft",
    // The version's own threshold is applied here, where the temperature may be another.
    min_confidence: 0,
    explain: true,
    highlight: true,
    filter: filter(),
    value: field("value").value || undefined,
    projection: Number(field("projection").value) || undefined,
  };
}

const ask = latest(async () => {
  if (!field("q").value.trim()) return clear();
  const late = setTimeout(() => busy(true), PATIENCE);
  try {
    const began = performance.now();
    const collection = field("collection").value;
    const query = await queryOf(collection, field("q").value.trim());
    const asked = request(query);
    answer = await post(of(collection, "search"), asked);
    answer.took = performance.now() - began;
    answer.asked = asked;
    answer.risen = risenBy(answer);
    if (answer.attended > answer.hits.length) answer.others = await others(collection, asked);
    leaveStart();
    tell(status, null);
    busy(false);
    paint();
    rest();
  } catch (error) {
    busy(true); // what is shown answers something else
    results.removeAttribute("aria-busy");
    tell(status, error);
  } finally {
    clearTimeout(late);
  }
});

/** The page becomes that of a search. */
function leaveStart() {
  if (form.dataset.start === undefined) return;
  delete form.dataset.start;
  byId("start")?.remove();
  form.querySelector("h1").className = "hidden";
}

/** Dim the answer before while another is awaited. */
function busy(is) {
  results.classList.toggle("late", is);
  if (is) results.setAttribute("aria-busy", "true");
  else results.removeAttribute("aria-busy");
}

function clear() {
  busy(false);
  answer = null;
  tell(status, null);
  if (form.dataset.start === undefined) draw(results, unasked());
}

/** Where nothing is asked: some documents to begin with, or how to add the first. */
function unasked() {
  const collection = field("collection").value;
  if (total === null) return null;
  if (!total) return html`<p class="notice">The collection “${collection}” has no documents. <a href=${addressOf("/add", { collection })}>Add data</a></p>`;
  const alike = ({ id }) => addressOf("/search", { collection, q: id });
  const items = sample.slice(0, DOCUMENTS).map((document) => html`<li key=${document.id}>
    <a dir="auto" href=${addressOf("/document", { collection, id: document.id })}>${nameOf(document)}</a>
    ${field("q").dataset.vectors === undefined ? null : html` <a class="quiet" href=${alike(document)}>nearest to it</a>`}
  </li>`);
  return html`<section class="unasked"><h2>${plural(total, "document")} in ${collection}, such as</h2><ul>${items}</ul></section>`;
}

/** A line of a document that has no title yet. */
function nameOf({ id, payload, fields }) {
  const title = ["title", "name", "headline", "question"].map((name) => payload?.[name] ?? fields?.[name]).find((text) => typeof text === "string");
  return short(title ?? Object.values(fields ?? {})[0] ?? id, 100);
}

/** The logits of all others that are attended to: (documents, heads). */
async function others(collection, { query, filter, projection }) {
  const searches = [{ query, filter, projection, k: 1, attend: "all" }];
  const { matrix } = await post(`${of(collection, "search")}/batch`, { searches, matrix: true });
  const listed = new Set(answer.hits.map((hit) => hit.id));
  const heads = matrix.logits[0];
  return matrix.documents.flatMap((id, at) => (listed.has(id) ? [] : [heads.map((logits) => logits[at])]));
}

/** What only the server can blend, once the slider rests. */
const rest = latest(async () => {
  const heat = temperature();
  if (!answer || !takesServer(answer, heat)) return;
  try {
    const lean = { k: 1, explain: false, highlight: false, title: false, temperature: heat };
    const now = answer;
    const told = await post(of(field("collection").value, "search"), { ...now.asked, ...lean });
    now.served = { heat, answer: told.answer };
    paint();
  } catch (error) {
    tell(status, error);
  }
});

/** Fetch a line of the texts of each hit that would show its title alone. */
const fetchLines = latest(async (now, hits) => {
  try {
    const request = { query: now.asked.query, mask: { only: hits.map((hit) => hit.id) }, k: hits.length, attend: hits.length, include: ["text"], fields: [] };
    const texts = await post(of(field("collection").value, "search"), request);
    const byId_ = new Map(texts.hits.map(({ id, text }) => [id, text ?? ""]));
    for (const hit of hits) hit.line = lineOf(byId_.get(hit.id) ?? "", hit.title);
    if (now === answer) paint();
  } catch {
    // A line less: the list stands without.
  }
});

/** A text's beginning after its title. */
function lineOf(text, title) {
  const begun = title.replace(/…$/, "");
  return short(text.startsWith(begun) ? text.slice(begun.length) : text, LINE);
}

/** Everything that follows from the answer and the sliders; asks nobody. */
function paint() {
  said();
  if (!answer) return;
  const heat = temperature();
  const weighed = weigh(answer, heat);
  const order = weighed.order.filter((at) => at < answer.hits.length);
  const k = Math.min(Number(field("k").value), order.length);
  const shown = order.slice(0, k);
  const listed = new Set(shown);
  const answered = isAnswered(answer, weighed.nothing, heat);
  const rest = weighed.order.filter((at) => !listed.has(at));
  const bare = typeof answer.asked.query === "string" ? shown.map((at) => answer.hits[at]).filter((hit) => hit.line === undefined && isBare(hit)) : [];
  for (const hit of bare) hit.line = "";
  const items = shown.map((at, rank) => itemOf(answer.hits[at], weighed.weights[at], rank + 1, answered, heat));
  const list = html`<${Hits} label="Documents" items=${items} kind=${answered ? "hits" : "hits far"} />
    ${answered ? html`<${NoAnswer} result=${answer} weighed=${weighed} />` : null}
    <${Tail} weights=${weighed.weights} rest=${rest} listable=${order.length - k} more=${more} answered=${answered} />`;
  const served = answer.served?.heat === heat ? answer.served.answer : null;
  const fold = html`<details class="fold nearest"><summary>${`Nearest all the same (${count(answer.attended)})`}</summary>${list}</details>`;
  const on = { jump, why, copy, clear: clearFilters };
  draw(results, html`<${Card} result=${answer} weighed=${weighed} heat=${heat} hard=${field("mode").value === "hard"} served=${served} search=${seen()} on=${on} />
    ${answered ? list : items.length ? fold : null}`);
  const weighedOf = total === null ? plural(answer.attended, "document") : `${count(answer.attended)} of ${plural(total, "document")}`;
  status.textContent = `${weighedOf} weighed · ${number(answer.took, 2)} ms`;
  if (bare.length) fetchLines(answer, bare);
}

function itemOf(hit, weight, rank, answered, heat) {
  const chip = answer.risen.has(hit.id) ? "↑ by feedback" : null;
  const collection = field("collection").value;
  return { collection, hit, weight, rank, far: !answered, chip, extra: whyButton(hit, answer, collection, { heat, far: !answered }) };
}

/** The search that one sees, as links take it along. */
function seen() {
  return { collection: field("collection").value, q: field("q").value, filter: byId("filter").value, value: field("value").value, projection: field("projection").value };
}

/** The same as a request of the API, without what is as it is anyway. */
function asCode() {
  const { query, filter, value, projection } = answer.asked;
  const heat = temperature();
  const body = {
    query,
    k: Number(field("k").value),
    mode: field("mode").value === "hard" ? "hard" : "soft",
    value,
    filter,
    projection,
    attend: answer.asked.attend === LISTED ? undefined : answer.asked.attend,
    temperature: heat === 1 ? undefined : heat,
  };
  return Object.fromEntries(Object.entries(body).filter(([, part]) => part !== undefined));
}

async function copy() {
  const { copySearch } = await import("./copy.js");
  copySearch(field("collection").value, asCode());
}

/** Go to a hit of the list, which is shown if it is not yet. */
function jump(id) {
  results.querySelector("details.nearest")?.setAttribute("open", "");
  if (!itemById(id)) {
    field("k").value = String(Math.min(answer.hits.length, LISTED));
    repaint();
  }
  const item = itemById(id);
  item?.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  item?.querySelector("h3 a").focus({ preventScroll: true });
}

const itemById = (id) => [...results.querySelectorAll("li[data-id]")].find((item) => item.dataset.id === id);

/** Open what explains the first hit. */
function why() {
  const item = results.querySelector("li[data-id]");
  item?.querySelector(".why")?.click();
  item?.scrollIntoView({ block: "nearest" });
}

function more() {
  const shown = Number(field("k").value);
  field("k").value = String(shown + 20);
  repaint();
  results.querySelectorAll(".hit h3 a")[shown]?.focus();
}

function said() {
  const heat = temperature();
  const focus = byId("temperature-said");
  focus.textContent = heat === 1 ? "as fitted" : `${heat < 1 ? "sharp" : "broad"}, × ${number(heat, 2)}`;
  focus.title = `Temperature × ${number(heat, 3)}`;
  byId("k-said").textContent = field("k").value;
}

function remember() {
  if (form.dataset.start !== undefined && !field("q").value) return;
  const heat = temperature();
  const parameters = {
    q: field("q").value,
    collection: field("collection").value,
    mode: field("mode").value === "hard" ? "hard" : "",
    value: field("value").value,
    k: field("k").value === "10" ? "" : field("k").value,
    attend: field("attend").value === "all" ? "all" : "",
    temperature: heat === 1 ? "" : heat,
    filter: byId("filter").value,
    projection: field("projection").value,
  };
  write(parameters, "/search");
  document.title = parameters.q ? `${parameters.q.slice(0, 60)} · Attend` : "Attend";
}

async function openCollection() {
  try {
    const name = field("collection").value;
    await explain(field("q"), name, `Ask ${name === "default" ? "a question" : short(name, 40)}`);
    const { fields, total: documents, documents: some } = await drawFilters(byId("filters"), byId("filtered"), name, filter(), (chosen) => {
      byId("filter").value = chosen ? JSON.stringify(chosen) : "";
      changed();
    });
    total = documents;
    sample = some;
    drawValues(fields.map((each) => each.name));
    if (answer) paint();
    else if (!field("q").value.trim()) clear();
  } catch (error) {
    tell(status, error);
  }
}

/** What an answer may be made of; what the address names stays, as the server says whether it is. */
function drawValues(names) {
  const select = byId("value");
  const chosen = select.value;
  const options = new Map([["", "All fields"], ...names.map((name) => [name, name]), ["@id", "Ids"], ["@key", "Embeddings"]]);
  if (!options.has(chosen)) options.set(chosen, chosen);
  select.replaceChildren(...[...options].map(([value, word]) => h("option", { value }, word)));
  select.value = chosen;
}

function clearFilters() {
  byId("filter").value = "";
  openCollection();
  changed();
}

function changed() {
  remember();
  ask();
}

function repaint() {
  paint();
  remember();
}

function start() {
  byId("heat").value = String(Math.log10(temperature()));
  byId("options-switch").addEventListener("click", ({ currentTarget }) => {
    const open = byId("options").classList.toggle("open");
    currentTarget.setAttribute("aria-expanded", String(open));
  });
  results.replaceChildren(); // what the server has drawn for those without scripts
  said();
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    changed();
  });
  field("q").addEventListener("input", changed);
  for (const name of ["value", "attend"]) field(name).addEventListener("change", changed);
  field("collection").addEventListener("change", () => {
    byId("value").value = "";
    clearFilters();
  });
  byId("heat").addEventListener("input", (event) => {
    byId("temperature").value = String(Number((10 ** Number(event.target.value)).toPrecision(6)));
    repaint();
  });
  byId("heat").addEventListener("change", rest);
  field("k").addEventListener("input", repaint);
  for (const each of field("mode")) each.addEventListener("change", repaint);
  if (field("collection").value && field("collection").options.length) openCollection();
  document.addEventListener("keydown", onKey);
  if (field("q").value) changed();
  else if (byId("start")) import("./start.js").then(({ playStories }) => playStories(byId("start")));
  else if (!field("collection").options.length) clear();
}

/** Go from hit to hit: down from the query, and up to it again. */
function step(from, by) {
  const links = [...results.querySelectorAll(".hit h3 a")].filter((link) => link.checkVisibility());
  const at = links.indexOf(from.closest("li[data-id]")?.querySelector("h3 a")) + by;
  const next = at < 0 ? field("q") : links[Math.min(at, links.length - 1)];
  next?.focus({ preventScroll: at === 0 });
}

/** "/" goes to the query, ↓ from there to the first document and on, ↑ back. */
function onKey(event) {
  const typing = event.target.closest("input, select, textarea");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/" && !typing) field("q").focus();
  else if (event.key === "ArrowDown" && (event.target === field("q") || isHit(event.target))) step(event.target, 1);
  else if (event.key === "ArrowUp" && isHit(event.target)) step(event.target, -1);
  else return;
  event.preventDefault();
}

const isHit = (element) => element.matches("#results .hit h3 a");

reopenOnReturn();
start();
