// The parts of a score as a chart of signed bars, beside those of the next document.

import { h } from "./dom.js";
import { percent } from "./format.js";

const PARTS = [
  ["meaning", "Meaning", "the encoder’s comparison of the two texts"],
  ["learned", "Learned", "what this version changes of it"],
  ["memory", "Feedback", "what stored judgements move"],
  ["lexical", "Words", "BM25 times its weight"],
  ["recency", "Time", "how old the document is"],
  ["layer", "Second layer", "what the best documents say in other words"],
  ["rerank", "Re-ranking", "the texts compared word by word"],
  ["partition", "Softmax", "less the log of the sum over all documents"],
];
const DIGITS = 2;

/**
 * A table of the parts of some scores; of each column its `name`, `parts` and `score` as the API
 * explains them, and its `weight`. The numbers that are written add up to the score that is.
 */
export function waterfall(columns) {
  const written = columns.map(({ parts, score }) => rounded(PARTS.map(([name]) => parts[name]), score));
  const shown = PARTS.map((_, at) => at).filter((at) => at === 0 || columns.some(({ parts }) => parts[PARTS[at][0]] !== 0));
  const steps = written.map((numbers) => chained(numbers.slice(0, -1)));
  const ends = steps.flat(2);
  const axis = [Math.min(0, ...ends), Math.max(0, ...ends)];
  const rows = shown.map((at) => {
    const [, label, says] = PARTS[at];
    const head = h("th", { scope: "row" }, label, h("span", { class: "says" }, says));
    return h("tr", {}, head, written.map((numbers, column) => cell(steps[column][at], numbers[at], axis)));
  });
  const score = h("tr", { class: "sum" }, h("th", { scope: "row" }, "Score"), written.map((numbers) => cell([0, numbers.at(-1)], numbers.at(-1), axis, "whole")));
  const weight = h("tr", {}, h("th", { scope: "row" }, "Weight"), columns.map((column) => h("td", { class: "weighs" }, column.weight === null ? "–" : percent(column.weight))));
  const head = h("tr", {}, h("td", {}), columns.map(({ name }) => h("th", { scope: "col" }, h("span", { class: "name", dir: "auto" }, name))));
  return h("table", { class: "waterfall" }, h("thead", {}, head), h("tbody", {}, rows, score, weight));
}

/** A bar from where the part before ends, and the number. */
function cell([from, to], value, [least, most], kind = "") {
  const width = most - least || 1;
  const bar = h("i", { class: kind || (value < 0 ? "less" : "more") });
  bar.style.setProperty("--from", String((Math.min(from, to) - least) / width));
  bar.style.setProperty("--long", String(Math.abs(to - from) / width));
  return h("td", {}, h("span", { class: "fall", "aria-hidden": "true" }, bar), h("span", { class: "number" }, signed(value, kind !== "whole")));
}

/** Where each of several parts begins and ends, one after the other. */
function chained(parts) {
  let end = 0;
  return parts.map((part) => [end, (end += part)]);
}

/**
 * Round parts so that they add up to their rounded sum, which is the last of the numbers: what
 * rounding leaves goes to those that it took most from (the largest remainders).
 */
export function rounded(parts, sum, digits = DIGITS) {
  const unit = 10 ** digits;
  const exact = parts.map((part) => part * unit);
  const whole = exact.map(Math.floor);
  const total = Math.round(sum * unit);
  const order = exact.map((_, at) => at).filter((at) => parts[at] !== 0);
  order.sort((a, b) => exact[b] - whole[b] - (exact[a] - whole[a]) || a - b);
  const left = total - whole.reduce((a, b) => a + b, 0);
  for (let at = 0; at < left && order.length; at++) whole[order[at % order.length]]++;
  return [...whole, total].map((each) => each / unit);
}

/** A number with its sign, if it is a part of a sum. */
export function signed(value, isPart = true, digits = DIGITS) {
  const text = Math.abs(value).toFixed(digits);
  if (Number(text) === 0) return text;
  return value < 0 ? `−${text}` : isPart ? `+${text}` : text;
}
