// What stands above and below the list: what the documents say together, and who shares the rest.

import { drawn, nothing } from "./answer.js";
import { blend, hardAnswer } from "./blend.js";
import { bar, h } from "./dom.js";
import { percent, plural } from "./format.js";
import { isAnswered, weigh } from "./weigh.js";

/**
 * The answer above the list. `found` is an answer of the API with `explain`, `weighed` its weights
 * at a temperature `heat`, and `served` what the server says at that one, if it was asked.
 */
export function panel(found, weighed, heat, hard, served) {
  const answered = isAnswered(found, weighed.nothing, heat);
  return h(
    "section",
    { class: "answer", "aria-label": "Answer" },
    h("h2", {}, hard ? "Answer of the best document" : "Blended answer"),
    answered ? body(found, weighed, heat, hard, served) : nothing(found.attended ? "Nothing here answers that." : "No document passes these filters."),
    facts(found, heat, weighed.nothing),
  );
}

/** Whether what they say together takes the server: it was not asked at this temperature yet. */
export function takesServer(found, heat) {
  return heat !== 1 && !isOurs(found);
}

function body(found, { weights, order }, heat, hard, served) {
  const values = found.hits.map((hit) => hit.value);
  const ids = found.hits.map((hit) => hit.id);
  if (hard) return drawn(hardAnswer(found.answer, values, order, ids));
  const list = [...weights.slice(0, values.length)];
  const spread = { values, weights: list };
  if (isOurs(found)) return drawn(blend(found.answer, values, list, ids), spread);
  if (heat === 1) return drawn(found.answer, spread);
  return served ? drawn(served, spread) : h("p", { class: "quiet" }, "The server blends this when the slider rests.");
}

/** Whether the page blends as the server did: W_V and W_O, or more attended than listed, it cannot. */
function isOurs(found) {
  if (found.attended > found.hits.length) return false;
  if (found.ours === undefined) {
    const values = found.hits.map((hit) => hit.value);
    const ids = found.hits.map((hit) => hit.id);
    const own = blend(found.answer, values, [...weigh(found, 1).weights], ids);
    found.ours = isNear(own, found.answer);
  }
  return found.ours;
}

function isNear(own, theirs) {
  if (!theirs.vector || !own.vector) return true;
  return theirs.vector.every((each, at) => Math.abs(each - own.vector[at]) < 1e-6 * (1 + Math.abs(each)));
}

function facts(found, heat, none) {
  const calibrated = found.calibrated && heat === 1;
  const told = [
    found.answer.type === "nothing" ? null : found.answer.type,
    calibrated ? `confidence ${percent(found.attended ? 1 - none : 0)}` : "confidence not fitted yet",
    found.exact ? "exact" : "approximate",
    `projection ${found.projection}`,
  ];
  return h("p", { class: "quiet" }, told.filter(Boolean).join(" · "));
}

/** Below the list: the null key, and what `rest` of the attended share. */
export function tail(found, { weights, nothing: none }, rest, full) {
  const share = rest.reduce((sum, at) => sum + weights[at], 0);
  const lines = [];
  if (found.weighing.null) {
    lines.push(
      h("li", { class: "null" },
        h("div", { class: "weight" }, h("div", { class: "share" }, percent(none)), bar(none / full, "null")),
        h("div", { class: "hit quiet" }, "No answer.")),
    );
  }
  const said = rest.length ? `${plural(rest.length, "more document")} share ${percent(share)}. ` : "";
  const scale = `A full bar is ${percent(full)} of the attention.`;
  return h("div", {}, lines.length ? h("ul", { class: "hits" }, lines) : null, h("p", { class: "tail" }, said + scale));
}
