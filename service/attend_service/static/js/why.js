// Why a document has its weight: the parts of its score, and the words that bring it to a question.

import { get, latest, of, post, Problem } from "./api.js";
import { h, tell } from "./dom.js";
import { percent } from "./format.js";
import { waterfall } from "./waterfall.js";
import { weigh } from "./weigh.js";
import { wordPairs } from "./words.js";

const buttons = new WeakMap(); // hit → its button with what opens under it, so that both outlive a list
const weights = new WeakMap(); // answer → its weights at the temperature asked for last
let numbers = 0;

/**
 * A button "Why 20 %?" with what it opens in place, for the `extra` of a hit. `answer` is one of the
 * API with `explain` and `title`, `answer.asked` the search that was sent for it, and `heat` the
 * temperature, relative to the fitted one, at which its weights are shown.
 */
export function whyButton(hit, answer, collection, { heat = 1, far = false } = {}) {
  if (!buttons.has(hit)) buttons.set(hit, made(hit, answer, collection));
  const { element, update } = buttons.get(hit);
  update(heat, far);
  return element;
}

function made(hit, answer, collection) {
  const place = h("div", { class: "reasons", id: `why-${++numbers}`, hidden: true });
  const button = h("button", { type: "button", class: "plain why", "aria-expanded": "false", "aria-controls": place.id });
  const version = answer.projection;
  const state = { hit, answer, collection, heat: 1, version, seen: new Map([[version, Promise.resolve(answer)]]), words: new Map() };
  let opened = null;
  button.addEventListener("click", () => {
    opened ??= panel(state);
    if (!place.hasChildNodes()) place.append(opened.element);
    place.hidden = !place.hidden;
    button.setAttribute("aria-expanded", String(!place.hidden));
    if (!place.hidden) opened.paint();
  });
  const update = (heat, far) => {
    const changes = state.heat !== heat;
    state.heat = heat;
    button.textContent = far ? "Why this?" : `Why ${percent(weightOf(answer, hit, heat))}?`;
    if (changes && opened && !place.hidden) opened.paint();
  };
  return { element: h("div", { class: "because" }, button, place), update };
}

/** The weight of a hit at a temperature, as the list shows it. */
function weightOf(answer, hit, heat) {
  if (weights.get(answer)?.heat !== heat) weights.set(answer, { heat, list: weigh(answer, heat).weights });
  return weights.get(answer).list[answer.hits.indexOf(hit)];
}

/** What opens: the versions to choose from, the parts of the score, and the words. */
function panel(state) {
  const chart = h("div", {});
  const texts = h("div", {});
  const status = h("p", { class: "status" });
  const chosen = h("div", {});
  const paint = latest(async () => {
    try {
      chart.replaceChildren(...parts(state, await answerOf(state)));
      texts.replaceChildren(...words(state, await wordsOf(state)));
      tell(status, null);
    } catch (error) {
      texts.replaceChildren();
      tell(status, error);
    }
  });
  choice(state, paint).then((switched) => switched && chosen.append(switched), () => null);
  return { element: h("div", {}, chosen, chart, texts, status), paint };
}

/** The versions that may answer, where there are several. */
async function choice(state, paint) {
  const { projections } = await get(of(state.collection, "projections"));
  if (projections.length < 2) return null;
  const name = `version-${++numbers}`;
  const changed = (version) => () => {
    state.version = version;
    paint();
  };
  const options = projections.map(({ version, active }) => {
    const input = h("input", { type: "radio", name, value: version, on: { change: changed(version) } });
    input.checked = version === state.version;
    return h("label", {}, input, h("span", {}, `Version ${version}${active ? ", in use" : ""}`));
  });
  return h("fieldset", { class: "field switch" }, h("legend", { class: "hidden" }, "Version"), options);
}

/** The answer of the chosen version to the same search. */
function answerOf({ version, seen, answer, collection, heat }) {
  if (version === answer.projection) return seen.get(version);
  const key = `${version} ${heat}`;
  if (!seen.has(key)) seen.set(key, post(of(collection, "search"), { ...answer.asked, projection: version, temperature: heat }));
  return seen.get(key);
}

/** The explanation of one document by the words of a text; null where a vector asks. */
function wordsOf({ version, words, answer, collection, hit }) {
  const { query } = answer.asked;
  if (typeof query !== "string") return null;
  const alone = { query, projection: version, mask: { only: [hit.id] }, k: 1, attend: 1, rerank: 0, fields: [], explain: "tokens" };
  if (!words.has(version)) words.set(version, post(of(collection, "search"), alone));
  return words.get(version);
}

/** The chart of a hit beside the next one. */
function parts({ hit, answer, heat }, asked) {
  const at = asked.hits.findIndex(({ id }) => id === hit.id);
  if (at < 0) return [h("p", {}, `This version does not attend to this document: it is not among its ${asked.hits.length} best.`)];
  const weight = (each) => (asked === answer ? weightOf(answer, each, heat) : each.weight);
  const column = (each, name) => ({ name, parts: each.explanation.parts, score: each.score, weight: weight(each) });
  const next = asked.hits[at + 1];
  const columns = [column(asked.hits[at], asked === answer ? "This document" : `This document, version ${asked.projection}`), ...(next ? [column(next, `Next: ${next.title ?? next.id}`)] : [])];
  const { field, question } = hit.explanation;
  const heads = asked.weighing.gates.length;
  const said = [
    question ? `It matches by a question that it answers: “${question}”.` : field ? `It matches by its ${field}.` : null,
    heads > 1 ? `The score is the log of the weight; each part is a mean over ${heads} heads, by their shares in this weight.` : null,
  ].filter(Boolean);
  return [h("div", { class: "chart" }, waterfall(columns)), ...said.map((sentence) => h("p", { class: "quiet", dir: "auto" }, sentence))];
}

/** The two texts, or why there are no words to compare. */
function words({ answer }, told) {
  if (told === null) return [];
  if (!told.hits.length) throw new Problem("This document is not there any more.");
  const { explanation } = told.hits[0];
  if (!explanation.words?.query.length || !explanation.words.passage.length) return [h("p", { class: "quiet" }, "The words of this document do not make up its match: a vector of its own or a question matched, or the scorer compares otherwise.")];
  return wordPairs(explanation, answer.asked.query);
}
