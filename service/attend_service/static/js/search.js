// The search view: as you type, documents with their weights, and above them what they say together.

import { latest, of, post } from "./api.js";
import { byId, h, tell } from "./dom.js";
import { drawFilters } from "./filters.js";
import { number, plural } from "./format.js";
import { drawHit, fullBar } from "./hits.js";
import { panel, tail, takesServer } from "./panel.js";
import { explain, queryOf } from "./queries.js";
import { reopenOnReturn, write } from "./state.js";
import { weigh } from "./weigh.js";

const LISTED = 100;
const form = byId("search");
const results = byId("results");
const status = byId("status");

let answer = null;

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
    paint();
    rest();
  } catch (error) {
    tell(status, error);
  }
});

function clear() {
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
  const full = fullBar([weighed.nothing, ...order.map((at) => weighed.weights[at])]);
  const collection = field("collection").value;
  const items = order.slice(0, k).map((at, rank) => drawHit(collection, answer.hits[at], weighed.weights[at], rank + 1, full));
  const listed = new Set(order.slice(0, k));
  const served = answer.served?.heat === heat ? answer.served.answer : null;
  results.replaceChildren(
    panel(answer, weighed, heat, field("mode").value === "hard", served),
    h("ol", { class: "hits", "aria-label": "Documents" }, items),
    tail(answer, weighed, weighed.order.filter((at) => !listed.has(at)), full),
  );
  status.textContent = `${plural(answer.attended, "document")} attended · ${number(answer.took, 2)} ms`;
}

function said() {
  const heat = temperature();
  byId("temperature-said").textContent = heat === 1 ? "as fitted" : `× ${number(heat, 2)}`;
  byId("k-said").textContent = field("k").value;
}

function remember() {
  if (form.dataset.start !== undefined && !field("q").value) return;
  const heat = temperature();
  const parameters = {
    q: field("q").value,
    collection: field("collection").value,
    mode: field("mode").value === "hard" ? "" : "soft",
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
    const current = filter();
    explain(field("q"), field("collection").value, "Ask in your own words");
    const fields = await drawFilters(byId("filters"), field("collection").value, current, (chosen) => {
      byId("filter").value = chosen ? JSON.stringify(chosen) : "";
      changed();
    });
    const options = ["@id", "@key", ...fields.map((each) => each.name)];
    byId("values").replaceChildren(...options.map((value) => h("option", { value })));
  } catch (error) {
    tell(status, error);
  }
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
  const given = new URLSearchParams(location.search);
  // Asked for with no mode in the address, a page of one's own begins with the blend.
  if (!given.has("mode")) field("mode").value = given.has("q") ? "hard" : "soft";
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
    byId("filter").value = "";
    openCollection();
    changed();
  });
  byId("heat").addEventListener("input", (event) => {
    byId("temperature").value = String(Number((10 ** Number(event.target.value)).toPrecision(6)));
    repaint();
  });
  byId("heat").addEventListener("change", rest);
  field("k").addEventListener("input", repaint);
  for (const each of field("mode")) each.addEventListener("change", repaint);
  if (field("collection").value && field("collection").options.length) openCollection();
  if (field("q").value) changed();
}

reopenOnReturn();
start();
