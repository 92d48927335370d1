// A question above and a passage below, with lines between the words that bring them together.

import { h, s, scrolled } from "./dom.js";
import { plural } from "./format.js";
import { rounded, signed } from "./waterfall.js";

const STRONGEST = 10;
const OF_WORD = 5; // lines of a word that is pointed at
const MOST_ROWS = 16;
const MOST_COLUMNS = 18;

/**
 * What each pair of words adds to the comparison of two texts. `explanation` is one of the API with
 * `explain: "tokens"` that has `words`, `question` the text of the query.
 */
export function wordPairs(explanation, question) {
  const { words, passage, parts } = explanation;
  const ranked = pairsOf(words);
  const best = ranked.filter(({ row, column }) => !words.query[row].stop_word && !words.passage[column].stop_word);
  const strongest = (best.length ? best : ranked).slice(0, STRONGEST);
  const digits = decimals(strongest);
  const named = ({ row, column, share }) => `“${words.query[row].text}” – “${words.passage[column].text}” ${signed(share, true, digits)}`;
  const above = text(question, words.query, (at) => strongest.some(({ row }) => row === at));
  const below = text(passage, words.passage, (at) => strongest.some(({ column }) => column === at));
  const lines = s("svg", { class: "lines", "aria-hidden": "true" });
  const readout = h("p", { class: "quiet", role: "status" });
  const area = h("div", { class: "texts" }, lines, h("p", { class: "above", dir: "auto" }, above.parts), h("p", { class: "below", dir: "auto" }, below.parts));
  const show = (pairs) => paint(area, lines, pairs, above.words, below.words);
  pointed(area, above.words, below.words, (side, at) => {
    const own = at === null ? strongest : ranked.filter((pair) => pair[side] === at).slice(0, OF_WORD);
    show(own);
    readout.textContent = at === null ? "" : own.map(named).join(", ");
  });
  new ResizeObserver(() => show(strongest)).observe(area);
  const isMarked = [...words.query, ...words.passage].some((word) => word.lexical);
  return [
    area,
    readout,
    h("p", { class: "label" }, `The ${strongest.length === 1 ? "strongest pair" : `${strongest.length} strongest pairs`} of words`),
    h("ol", { class: "strongest" }, strongest.map((pair) => h("li", { dir: "auto" }, named(pair)))),
    h("p", { class: "quiet" }, "Solid lines add, dashed ones take away, against the mean of all pairs. ", sum(words, parts), isMarked ? " Words with a double line are in both texts: BM25 counts them too." : null),
    matrix(words, digits),
  ];
}

/** All pairs, the strongest first. */
function pairsOf({ shares }) {
  const pairs = shares.flatMap((line, row) => line.map((share, column) => ({ row, column, share })));
  return pairs.sort((a, b) => Math.abs(b.share) - Math.abs(a.share) || a.row - b.row || a.column - b.column);
}

/** The pairs and what they leave, which add up to the comparison of the texts. */
function sum({ shares, mean, remainder }, { meaning, learned }) {
  const pairs = shares.flat().reduce((all, each) => all + each, 0);
  const [own, common, rest, total] = rounded([pairs, mean, remainder], meaning + learned);
  const whole = learned ? "meaning and what was learned" : "meaning";
  return `Single pairs of words add ${signed(own, false)}, what all words of the two texts have in common ${signed(common)}, and all else ${signed(rest)} (marks that the encoder adds to a text, what was learned of this document): ${signed(total, false)}, the ${whole}.`;
}

/** A text with its words as elements, those that may be pointed at by keyboard as buttons. */
function text(whole, words, isPaired) {
  const characters = [...whole];
  const cut = (start, stop) => characters.slice(start, stop).join("");
  const elements = words.map((word, at) => {
    const kind = ["word", word.lexical && "bm25", word.stop_word && "weak"].filter(Boolean).join(" ");
    return isPaired(at) ? h("button", { type: "button", class: kind, "data-at": at }, word.text) : h("span", { class: kind, "data-at": at }, word.text);
  });
  let end = 0;
  const parts = words.flatMap(({ start, stop }, at) => {
    const before = cut(end, start);
    end = stop;
    return [before, elements[at]];
  });
  return { parts: [...parts, cut(end)], words: elements };
}

/** Tell which word is pointed at or focused: `row` or `column`, and its place; null where none is. */
function pointed(area, above, below, point) {
  const told = ({ target }) => {
    const word = target.closest?.(".word");
    if (!word) return point("row", null);
    point(above.includes(word) ? "row" : "column", Number(word.dataset.at));
  };
  for (const type of ["pointerover", "focusin"]) area.addEventListener(type, told);
  for (const type of ["pointerleave", "focusout"]) area.addEventListener(type, () => point("row", null));
}

/** Draw the lines of pairs, from word to word, and mark their words. */
function paint(area, lines, pairs, above, below) {
  for (const word of area.querySelectorAll(".word.on")) word.classList.remove("on");
  const { left, top, width, height } = area.getBoundingClientRect();
  if (!width) return;
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) lines.setAttribute(name, value);
  const most = Math.max(...pairs.map(({ share }) => Math.abs(share)), Number.MIN_VALUE);
  const drawn = pairs.map(({ row, column, share }) => {
    const [from, to] = [above[row], below[column]];
    for (const word of [from, to]) word.classList.add("on");
    const [a, b] = [from.getClientRects()[0], to.getClientRects()[0]];
    const [x1, y1, x2, y2] = [a.left + a.width / 2 - left, a.bottom - top, b.left + b.width / 2 - left, b.top - top];
    const bend = (y2 - y1) / 2;
    const strong = Math.abs(share) / most;
    return s("path", { d: `M${x1},${y1} C${x1},${y1 + bend} ${x2},${y2 - bend} ${x2},${y2}`, class: share < 0 ? "less" : "more", "stroke-width": (0.75 + 3.25 * strong).toFixed(2), "stroke-opacity": (0.25 + 0.6 * strong).toFixed(2) });
  });
  lines.replaceChildren(...drawn);
}

/** Decimals at which the strongest pair has two digits. */
function decimals(pairs) {
  const most = Math.abs(pairs[0]?.share ?? 1) || 1;
  return Math.max(1, Math.min(6, 1 - Math.floor(Math.log10(most))));
}

/** All pairs of words as a table, in a fold. */
function matrix({ query, passage, shares }, digits) {
  const rows = heaviest(shares, MOST_ROWS);
  const columns = heaviest(passage.map((_, column) => shares.map((line) => line[column])), MOST_COLUMNS);
  const most = Math.max(...shares.flat().map(Math.abs)) || 1;
  const head = h("tr", {}, h("td", {}), columns.map((column) => h("th", { scope: "col" }, h("span", { dir: "auto" }, passage[column].text))));
  const body = rows.map((row) =>
    h("tr", {}, h("th", { scope: "row", dir: "auto" }, query[row].text), columns.map((column) => h("td", { class: shares[row][column] < 0 ? "less" : null, share: Math.abs(shares[row][column]) / most }, signed(shares[row][column], false, digits)))),
  );
  const cut = [left(query, rows, "the question"), left(passage, columns, "the passage")].filter(Boolean).join(" and ");
  return h(
    "details",
    { class: "fold matrix" },
    h("summary", {}, "All pairs as a table"),
    h("p", { class: "quiet" }, `Words of the question at the left, of the passage above. The stronger the colour, the more a pair adds; a minus takes away.${cut ? ` Shown are the strongest ${cut}.` : ""}`),
    scrolled("Pairs of words", h("table", {}, h("thead", {}, head), h("tbody", {}, body))),
  );
}

/** The places of the `most` lines with the largest shares, in their own order. */
function heaviest(lines, most) {
  const sizes = lines.map((line) => Math.max(...line.map(Math.abs)));
  const places = sizes.map((_, at) => at).sort((a, b) => sizes[b] - sizes[a] || a - b);
  return places.slice(0, most).sort((a, b) => a - b);
}

const left = (words, shown, of) => (shown.length < words.length ? `${shown.length} of ${plural(words.length, "word")} of ${of}` : null);
