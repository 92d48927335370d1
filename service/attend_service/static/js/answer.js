// The answer above the list: a mean with its spread, a distribution, a vector, the best text.

import { bar, h, s } from "./dom.js";
import { number, percent } from "./format.js";
import { shown, sparkline } from "./values.js";

const SHARES = 8;
const FEW = 3; // of a field among others

/**
 * The body of an answer of any type. `share` is the weight of all that answers, so that shares are
 * those of the list; `spread` has values and weights for a picture of numbers, and `listed` the
 * fields that are not drawn, as the list shows them.
 */
export function drawn(answer, { spread = null, share = 1, listed = new Set(), most = SHARES } = {}) {
  const part = share * (answer.coverage ?? 1);
  if (answer.type === "object" && answer.fields) return fields(answer.fields, share, listed);
  if (answer.type === "number") return mean(answer, spread);
  if (answer.distribution) return distribution(answer, part, most);
  if (answer.vector) return h("div", {}, sparkline(answer.vector), " ", size(answer.vector));
  if (answer.values) return values(answer.values.slice(0, most), part);
  return h("p", { class: "quiet" }, "These documents carry no value to answer with.");
}

export function nothing(why) {
  return big(why, null, "text");
}

function big(said, beside = null, kind = "") {
  const spread = beside === null ? null : h("span", { class: "spread" }, ` ${beside}`);
  return h("p", { class: `big ${kind}` }, said, spread);
}

function mean(answer, spread) {
  if (answer.mean === null || answer.mean === undefined) return big("–", "no number here");
  const said = big(number(answer.mean), answer.std ? `± ${number(answer.std, 3)}` : null);
  return spread ? h("div", {}, said, strip(answer, spread)) : said;
}

/** Where the attended numbers lie, by weight, with the mean and its spread. */
function strip(answer, { values, weights }) {
  const kept = values.map((v, at) => [v, weights[at]]).filter(([v]) => Number.isFinite(v));
  const [low, high] = [Math.min(...kept.map(([v]) => v)), Math.max(...kept.map(([v]) => v))];
  if (!(high > low)) return null;
  const most = Math.max(...kept.map(([, w]) => w)) || 1;
  const x = (v) => 1 + 98 * ((v - low) / (high - low));
  const dots = kept.map(([v, w]) =>
    s("rect", { x: x(v) - 0.2, width: 0.4, y: 22 * (1 - Math.sqrt(w / most)), height: Math.max(0.6, 22 * Math.sqrt(w / most)), fill: "var(--accent)", opacity: 0.75 }),
  );
  const from = x(Math.max(low, answer.mean - answer.std));
  const to = x(Math.min(high, answer.mean + answer.std));
  const picture = s(
    "svg",
    { class: "scale", viewBox: "0 0 100 26", preserveAspectRatio: "none", role: "img", "aria-label": `Weights over values from ${number(low)} to ${number(high)}` },
    s("line", { x1: 1, x2: 99, y1: 22.5, y2: 22.5, stroke: "var(--line)", "stroke-width": 0.6 }),
    s("rect", { x: from, width: Math.max(0.3, to - from), y: 22, height: 1.6, fill: "var(--accent)", opacity: 0.5 }),
    dots,
    s("rect", { x: x(answer.mean) - 0.25, width: 0.5, y: 19, height: 7, fill: "var(--ink)" }),
  );
  const ends = h("div", { class: "field quiet" }, h("span", {}, number(low)), h("span", {}, number(high)));
  return h("div", {}, picture, ends);
}

function distribution(answer, part, most) {
  const ranked = answer.ranked ?? Object.entries(answer.distribution);
  const head = ranked.length > 1 ? null : big(ranked[0][0], null, "text");
  const rest = ranked.length - most;
  return h(
    "div",
    {},
    head ?? shares(ranked.slice(0, most), part),
    rest > 0 ? h("p", { class: "quiet" }, `and ${rest} more`) : null,
  );
}

function values(list, part) {
  const [first, ...rest] = list;
  const best = h("div", { class: "big text" }, shown(first.value));
  if (!rest.length) return best;
  return shares(list.map((each) => [shown(each.value), each.weight]), part);
}

function shares(rows, part) {
  const line = ([name, share]) =>
    h("li", {}, h("span", { class: "name", dir: "auto" }, name), bar(share * part), h("span", { class: "number" }, percent(share * part)));
  return h("ul", { class: "shares" }, rows.map(line));
}

function fields(parts, share, listed) {
  const names = Object.keys(parts).filter((name) => !listed.has(name));
  const rows = (names.length ? names : Object.keys(parts)).map((name) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, drawn(parts[name], { share, most: FEW }))),
  );
  return h("dl", {}, rows);
}

const size = (vector) => h("span", { class: "quiet" }, `${vector.length} numbers`);
