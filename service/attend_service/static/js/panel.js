// What stands above and below the list: what the documents say together, and who shares the rest.

import { drawn, nothing } from "./answer.js";
import { blend, hardAnswer } from "./blend.js";
import { bar, h } from "./dom.js";
import { count, percent, plural } from "./format.js";
import { addressOf } from "./state.js";
import { isAnswered, weigh } from "./weigh.js";

const NEARLY_NONE = 0.005; // of no answer, which rounds to a certainty that nothing has
const NEXT = [["attention", "Weights side by side"], ["map", "On the map"], ["compare", "Compare versions"], ["teach", "Teach this"]];

/**
 * The answer above the list. `result` is an answer of the API with `explain`, `weighed` its weights
 * at a temperature `heat`, and `served` what the server says at that one, if it was asked. `context`
 * has the collection and the query, for links, and `clear`, which removes the filters.
 */
export function panel(result, weighed, heat, hard, served, context) {
  const answered = isAnswered(result, weighed.nothing, heat);
  return h(
    "section",
    { class: "answer", "aria-label": "Answer" },
    h("h2", {}, heading(result, answered, hard)),
    answered ? body(result, weighed, heat, hard, served) : unanswered(result, context.clear),
    facts(result, heat, weighed.nothing, context),
    answered ? next(context) : null,
  );
}

function heading(result, answered, hard) {
  if (!answered) return "Answer";
  const { value } = result.asked ?? {};
  const field = value ? `: ${value}` : "";
  return hard ? `Answer of the best document${field}` : `Answer, blended from ${plural(result.attended, "document")}${field}`;
}

/** Whether what they say together takes the server: it was not asked at this temperature yet. */
export function takesServer(result, heat) {
  return heat !== 1 && !isOurs(result);
}

function unanswered(result, clear) {
  if (result.attended) return nothing("Nothing here answers that.");
  if (!result.asked?.filter) return nothing("This collection has no documents.");
  const button = h("button", { type: "button", class: "plain", on: { click: clear } }, "Clear them");
  return h("div", {}, nothing("No document passes these filters."), button);
}

function body(result, { weights, order, nothing: none }, heat, hard, served) {
  const values = result.hits.map((hit) => hit.value);
  const ids = result.hits.map((hit) => hit.id);
  if (hard) return drawn(hardAnswer(result.answer, values, order, ids));
  const list = [...weights.slice(0, values.length)];
  // The weights of the list, so that a document has one share on all of the page.
  const looks = { spread: { values, weights: list }, share: 1 - none, listed: allDifferent(values) };
  if (isOurs(result)) return drawn(blend(result.answer, values, list, ids), looks);
  if (heat === 1) return drawn(result.answer, looks);
  return served ? drawn(served, looks) : h("p", { class: "quiet" }, "The server blends this when the slider rests.");
}

/** The fields of records whose texts are all different: the list below shows them already. */
function allDifferent(values) {
  const records = values.filter((value) => value !== null && typeof value === "object");
  const names = Object.keys(records[0] ?? {});
  const isListed = (name) => records.length > 1 && records.every((each) => typeof each[name] === "string") && new Set(records.map((each) => each[name])).size === records.length;
  return new Set(names.filter(isListed));
}

/** Whether the page blends as the server did: W_V and W_O, or more attended than listed, it cannot. */
function isOurs(result) {
  if (result.attended > result.hits.length) return false;
  if (result.ours === undefined) {
    const values = result.hits.map((hit) => hit.value);
    const ids = result.hits.map((hit) => hit.id);
    const own = blend(result.answer, values, [...weigh(result, 1).weights], ids);
    result.ours = isNear(own, result.answer);
  }
  return result.ours;
}

function isNear(own, theirs) {
  if (!theirs.vector || !own.vector) return true;
  return theirs.vector.every((each, at) => Math.abs(each - own.vector[at]) < 1e-6 * (1 + Math.abs(each)));
}

function facts(result, heat, none, context) {
  const parts = [confidence(result, heat, none, context), result.exact ? null : "approximate", moved(result), `version ${result.projection}`];
  const separated = parts.filter(Boolean).flatMap((part, at) => (at ? [" · ", part] : [part]));
  return h("p", { class: "quiet" }, separated);
}

/** The stored question that moved the query most; all of them as its title. */
function moved(result) {
  const questions = (result.memory ?? []).map((each) => each.query ?? "a vector");
  return questions.length ? h("span", { title: questions.join("\n") }, `moved by feedback on “${questions[0]}”`) : null;
}

/** The confidence in words: a number only where it was fitted for what is shown. */
function confidence(result, heat, none, context) {
  if (!result.attended) return null;
  if (result.calibrated === "collection") return foreign(result, context);
  if (!result.calibrated) return ["Confidence not fitted yet. ", h("a", { href: addressOf("/teach", context) }, "Teach it")];
  if (heat !== 1) return "the confidence is fitted for the focus as fitted";
  const share = none < NEARLY_NONE ? "More than 99 %" : percent(1 - none);
  const sure = `${share} sure that something here answers`;
  const { threshold } = result.weighing;
  return threshold !== null && 1 - none < threshold ? `${sure}, ${percent(threshold)} needed` : sure;
}

/** Before a training: how the query compares with the collection's own passages. */
function foreign(result, context) {
  const rate = percent(result.confidence);
  const teach = h("a", { href: addressOf("/teach", context) }, "Teach it");
  return [`${rate} of this collection's own passages match it no better. `, teach];
}

function next(context) {
  const links = NEXT.map(([view, word]) => h("li", {}, h("a", { href: addressOf(`/${view}`, context) }, word)));
  return h("ul", { class: "chips next", "aria-label": "Look further" }, links);
}

/** The weight of the no-answer score as a row of the list; null where none was fitted. */
export function noAnswer(result, none) {
  if (!result.weighing.null) return null;
  return h(
    "li",
    { class: "null" },
    h("div", { class: "weight" }, h("div", { class: "share" }, percent(none)), bar(none, "null")),
    h("div", { class: "hit quiet" }, "No answer"),
  );
}

/** Below the list: what `rest` of the attended share, and `more`, which shows some of them. */
export function tail(weights, rest, listable, more) {
  if (!rest.length) return null;
  const share = rest.reduce((sum, at) => sum + weights[at], 0);
  const button = listable ? h("button", { type: "button", class: "plain", on: { click: more } }, `Show ${Math.min(20, listable)} more`) : null;
  return h("div", { class: "tail" }, `${count(rest.length)} more, ${percent(share)} together. `, button);
}
