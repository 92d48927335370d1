// Two versions measured on judged queries: means with intervals, and which queries gained and lost.

import { h, s, scrolled } from "./dom.js";
import { short } from "./format.js";
import { colours, frame } from "./pictures.js";
import { figureTable, signed } from "./report.js";

const [WIDTH, HEIGHT, EDGE] = [420, 230, 40];
const FIRST = 8; // questions that are not folded

/** A comparison of the API, drawn. */
export function drawGains(measured) {
  const { before, after, differences, queries } = measured;
  const rows = Object.keys(before.measures).map((name) => {
    const { mean, interval, p } = differences[name];
    return { label: name, before: before.measures[name], after: after.measures[name], gain: mean, interval, p, count: queries };
  });
  const told = `${measured.gained} gained, ${measured.lost} lost, ${measured.unchanged} stayed`;
  return h(
    "div",
    {},
    figureTable(rows),
    h("figure", {}, scrolled("Picture", histogram(measured)), h("figcaption", { class: "quiet" }, told)),
    drawChanged([...measured.most_gained, ...measured.most_lost]),
  );
}

/** Queries whose best document changed from a wrong one to a right one or back; others say nothing. */
export function drawChanged(items) {
  const shown = items.filter(isChanged);
  if (!shown.length) return h("p", { class: "quiet" }, "The best document changed from a wrong one to a right one, or back, for none of these.");
  const [first, rest] = [shown.slice(0, FIRST), shown.slice(FIRST)].map((part, at) => h("ol", { class: "plain changed", start: at ? FIRST + 1 : null }, part.map(changed)));
  return h("div", {}, first, shown.length > FIRST ? h("details", { class: "fold" }, h("summary", {}, `${shown.length - FIRST} more`), rest) : null);
}

const first = ({ documents_before: before, documents_after: after }) => [before[0], after[0]];
const isRight = (document) => (document?.grade ?? 0) > 0;

function isChanged(item) {
  const [before, after] = first(item);
  return before?.id !== after?.id && isRight(before) !== isRight(after);
}

function changed(item) {
  const [before, after] = first(item).map((document) => {
    const title = document ? short(document.text || document.id, 60) : "nothing";
    return h("span", { dir: "auto", class: isRight(document) ? "good" : "bad" }, title, isRight(document) ? " ✓" : " ✗", h("span", { class: "hidden" }, isRight(document) ? " (right)" : " (wrong)"));
  });
  return h("li", {}, h("span", { dir: "auto" }, short(item.text, 90)), " ", h("strong", { class: item.gain > 0 ? "good" : "bad" }, signed(item.gain)), h("br"), before, " → ", after);
}

/** Queries by how much they gained; those that stayed are told beside. */
function histogram({ histogram: { edges, counts }, measure }) {
  const c = colours();
  const most = Math.max(1, ...counts);
  const x = (value) => EDGE + ((value + 1) / 2) * (WIDTH - EDGE - 12);
  const y = (count) => HEIGHT - 32 - (count / most) * (HEIGHT - 56);
  return s(
    "svg",
    frame(WIDTH, HEIGHT, `Gains in ${measure} by query`),
    counts.map((count, at) =>
      s("rect", { x: x(edges[at]) + 1, width: x(edges[at + 1]) - x(edges[at]) - 2, y: y(count), height: y(0) - y(count), rx: 2, fill: edges[at] < -1e-9 ? c.warm : c.accent }),
    ),
    s("line", { x1: x(-1), x2: x(1), y1: y(0), y2: y(0), stroke: c.edge }),
    s("line", { x1: x(0), x2: x(0), y1: y(most) - 6, y2: y(0), stroke: c.ink }),
    [-1, -0.5, 0, 0.5, 1].map((tick) => s("text", { x: x(tick), y: HEIGHT - 12, "text-anchor": "middle", "font-size": 12, fill: c.soft }, String(tick).replace("-", "−"))),
    s("text", { x: EDGE - 8, y: y(most) + 4, "text-anchor": "end", "font-size": 12, fill: c.soft }, String(most)),
    s("text", { x: EDGE, y: 14, "font-size": 12, fill: c.soft }, `queries by gain in ${measure}`),
  );
}
