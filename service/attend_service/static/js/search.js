// The search view: as you type, documents with their weights, and above them what they say together.

import { latest, of, post } from "./api.js";
import { byId, h, tell } from "./dom.js";
import { drawFilters } from "./filters.js";
import { count, number, plural } from "./format.js";
import { drawHits } from "./hits.js";
import { noAnswer, panel, tail, takesServer } from "./panel.js";
import { explain, queryOf } from "./queries.js";
import { example } from "./start.js";
import { reopenOnReturn, write } from "./state.js";
import { isAnswered, weigh } from "./weigh.js";
import { whyButton } from "./why.js";

const LISTED = 100;
const PATIENCE = 150; // milliseconds after which an answer is late enough to say so
const form = byId("search");
const results = byId("results");
const status = byId("status");
const list = h("div");

let answer = null;
let total = null; // documents of the collection

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
    if (answer.attended > answer.hits.length) answer.others = await others(collection, asked);
    delete form.dataset.start;
    byId("start")?.remove();
    form.querySelector("h1").className = "hidden";
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

/** Dim the answer before while another is awaited. */
function busy(is) {
  results.classList.toggle("late", is);
  if (is) results.setAttribute("aria-busy", "true");
  else results.removeAttribute("aria-busy");
}

function clear() {
  busy(false);
  answer = null;
  results.replaceChildren();
  tell(status, null);
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

/** Everything that follows from the answer and the sliders; asks nobody. */
function paint() {
  said();
  if (!answer) return;
  const heat = temperature();
  const weighed = weigh(answer, heat);
  const order = weighed.order.filter((at) => at < answer.hits.length);
  const k = Math.min(Number(field("k").value), order.length);
  const collection = field("collection").value;
  const items = order.slice(0, k).map((at, rank) => ({ collection, hit: answer.hits[at], weight: weighed.weights[at], rank: rank + 1, extra: whyButton(answer.hits[at], answer, collection, heat) }));
  const listed = new Set(order.slice(0, k));
  const served = answer.served?.heat === heat ? answer.served.answer : null;
  const answered = isAnswered(answer, weighed.nothing, heat);
  const none = noAnswer(answer, weighed.nothing);
  const nearest = answered || !items.length ? null : h("h2", { class: "label" }, "Nearest all the same");
  drawHits(list, "Documents", items, answered ? "hits" : "hits far");
  const inside = results.contains(document.activeElement);
  results.replaceChildren(
    panel(answer, weighed, heat, field("mode").value === "hard", served, { collection, q: field("q").value, clear: clearFilters }),
    ...[
      none && !answered ? h("ul", { class: "hits" }, none) : null,
      nearest,
      list,
      none && answered ? h("ul", { class: "hits" }, none) : null,
      tail(weighed.weights, weighed.order.filter((at) => !listed.has(at)), order.length - k, more),
    ].filter(Boolean),
  );
  if (inside) focusFirst(); // an answer that came late must not take the reader out of the list
  const weighedOf = total === null ? plural(answer.attended, "document") : `${count(answer.attended)} of ${plural(total, "document")}`;
  status.textContent = `${weighedOf} weighed · ${number(answer.took, 2)} ms`;
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
    explain(field("q"), field("collection").value, "Ask in your own words");
    const { fields, documents } = await drawFilters(byId("filters"), byId("filtered"), field("collection").value, filter(), (chosen) => {
      byId("filter").value = chosen ? JSON.stringify(chosen) : "";
      changed();
    });
    total = documents;
    drawValues(fields.map((each) => each.name));
    if (answer) paint();
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
  byId("options").open = matchMedia("(min-width: 56rem)").matches;
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
  else if (byId("start")) example(byId("example"));
}

const focusFirst = () => results.querySelector(".hit h3 a")?.focus({ preventScroll: true });

/** "/" goes to the query, and ↓ from there to the first document. */
function onKey(event) {
  const typing = event.target.closest("input, select, textarea");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/" && !typing) field("q").focus();
  else if (event.key === "ArrowDown" && event.target === field("q")) focusFirst();
  else return;
  event.preventDefault();
}

reopenOnReturn();
start();
