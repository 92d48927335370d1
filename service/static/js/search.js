// The search view: as you type, documents with their weights, and above them what they say together.

import { latest, of, post } from "./api.js";
import { drawn, nothing } from "./answer.js";
import { blend, hardAnswer } from "./blend.js";
import { bar, byId, h, tell } from "./dom.js";
import { drawFilters } from "./filters.js";
import { number, percent, plural } from "./format.js";
import { drawHit, fullBar } from "./hits.js";
import { explain, queryOf } from "./queries.js";
import { reopenOnReturn, write } from "./state.js";
import { isAnswered, weigh } from "./weigh.js";

const ATTEND = 100;
const form = byId("search");
const results = byId("results");
const status = byId("status");

let answer = null;

const field = (name) => form.elements[name];
const temperature = () => Number(byId("temperature").value) || 1;
const filter = () => (byId("filter").value ? JSON.parse(byId("filter").value) : undefined);

/** What the server is asked: everything attended, with logits, so that the rest is done here. */
function request(query) {
  return {
    query,
    title: true,
    k: ATTEND,
    attend: ATTEND,
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
    answer = await post(of(collection, "search"), request(query));
    answer.took = performance.now() - began;
    delete form.dataset.start;
    byId("start")?.remove();
    form.querySelector("h1").className = "hidden";
    tell(status, null);
    paint();
  } catch (error) {
    tell(status, error);
  }
});

function clear() {
  answer = null;
  results.replaceChildren();
  tell(status, null);
}

/** Everything that follows from the answer and the sliders; asks nobody. */
function paint() {
  said();
  if (!answer) return;
  const heat = temperature();
  const { weights, nothing: none, order } = weigh(answer, heat);
  const k = Math.min(Number(field("k").value), order.length);
  const shownAt = order.slice(0, k);
  const full = fullBar([...weights, none]);
  const collection = field("collection").value;
  const items = shownAt.map((at, rank) => drawHit(collection, answer.hits[at], weights[at], rank + 1, full));
  results.replaceChildren(
    panel(heat, weights, none, order),
    h("ol", { class: "hits", "aria-label": "Documents" }, items),
    tail(weights, none, order.slice(k), full),
  );
  status.textContent = `${plural(answer.attended, "document")} attended · ${number(answer.took, 2)} ms`;
}

function panel(heat, weights, none, order) {
  const answered = isAnswered(answer, none, heat);
  const hard = field("mode").value === "hard";
  return h(
    "section",
    { class: "answer", "aria-label": "Answer" },
    h("h2", {}, hard ? "The best document says" : "Together they say"),
    answered ? body(hard, weights, order) : nothing(answer.attended ? "Nothing here answers that." : "Nothing was attended."),
    facts(heat, none),
  );
}

function body(hard, weights, order) {
  const values = answer.hits.map((hit) => hit.value);
  const ids = answer.hits.map((hit) => hit.id);
  if (hard) return drawn(hardAnswer(answer.answer, values, order, ids));
  const list = [...weights];
  return drawn(isOurs() ? blend(answer.answer, values, list, ids) : answer.answer, { values, weights: list });
}

/** Whether the page blends as the server did: W_V and W_O, or more attended than listed, it cannot. */
function isOurs() {
  if (answer.ours === undefined) {
    const values = answer.hits.map((hit) => hit.value);
    const ids = answer.hits.map((hit) => hit.id);
    const own = blend(answer.answer, values, [...weigh(answer, 1).weights], ids);
    answer.ours = answer.attended === answer.hits.length && isNear(own, answer.answer);
  }
  return answer.ours;
}

function isNear(own, theirs) {
  if (!theirs.vector || !own.vector) return true;
  return theirs.vector.every((each, at) => Math.abs(each - own.vector[at]) < 1e-6 * (1 + Math.abs(each)));
}

function facts(heat, none) {
  const calibrated = answer.calibrated && heat === 1;
  const told = [
    answer.answer.type === "nothing" ? null : answer.answer.type,
    `confidence ${percent(answer.attended ? 1 - none : 0)}${calibrated ? "" : ", not calibrated"}`,
    answer.exact ? "exact" : "approximate",
    `projection ${answer.projection}`,
  ];
  return h("p", { class: "quiet" }, told.filter(Boolean).join(" · "));
}

function tail(weights, none, rest, full) {
  const share = rest.reduce((sum, at) => sum + weights[at], 0);
  const lines = [];
  if (answer.weighing.null) {
    lines.push(
      h("li", { class: "null" },
        h("div", { class: "weight" }, h("div", { class: "share" }, percent(none)), bar(none / full, "null")),
        h("div", { class: "hit quiet" }, "The weight of “nothing here answers that”.")),
    );
  }
  const said = rest.length ? `${plural(rest.length, "more document")} share ${percent(share)}. ` : "";
  const scale = `A full bar is ${percent(full)} of the attention.`;
  return h("div", {}, lines.length ? h("ul", { class: "hits" }, lines) : null, h("p", { class: "tail" }, said + scale));
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
  field("value").addEventListener("change", changed);
  field("collection").addEventListener("change", () => {
    byId("filter").value = "";
    openCollection();
    changed();
  });
  byId("heat").addEventListener("input", (event) => {
    byId("temperature").value = String(Number((10 ** Number(event.target.value)).toPrecision(6)));
    repaint();
  });
  field("k").addEventListener("input", repaint);
  for (const each of field("mode")) each.addEventListener("change", repaint);
  if (field("collection").value && field("collection").options.length) openCollection();
  if (field("q").value) changed();
}

reopenOnReturn();
start();
