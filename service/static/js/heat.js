// Attention as in the papers: shaded cells, or shaded lines from queries to documents.

import { s } from "./dom.js";
import { percent, short } from "./format.js";
import { colours, frame } from "./pictures.js";

const CELL = 38;
const ROW = 34;
const TOP = 150;
const SLANT = -42;

/** How dark a weight is: its root, so that small shares are still seen. */
const shade = (weight) => Math.sqrt(Math.max(0, Math.min(1, weight)));

/**
 * Cells: `rows` and `columns` are labels, `weights` (rows × columns). Each cell has its place in
 * `data-row` and `data-column`.
 */
export function cells(rows, columns, weights) {
  const c = colours();
  const left = labelWidth(rows, 210);
  const width = left + columns.length * CELL + 110;
  const height = TOP + rows.length * ROW + 12;
  return s(
    "svg",
    frame(width, height, `Attention of ${rows.length} queries over ${columns.length} documents`),
    columns.map((label, at) => heading(label, left + (at + 0.5) * CELL, c)),
    rows.map((label, at) => rowLabel(label, left - 12, TOP + (at + 0.5) * ROW, c)),
    weights.map((line, row) => line.map((weight, column) => cell(row, column, weight, left, c))),
  );
}

/** The same as lines, whose strength is the weight. */
export function lines(rows, columns, weights) {
  const c = colours();
  const [left, right] = [labelWidth(rows, 230), labelWidth(columns, 280)];
  const middle = 260;
  const height = Math.max(rows.length, columns.length) * ROW + 24;
  const y = (at, count) => ((at + 0.5) * height) / count;
  const links = weights.flatMap((line, row) =>
    line.map((weight, column) => ({ row, column, weight })),
  );
  links.sort((a, b) => a.weight - b.weight); // the strong ones on top
  return s(
    "svg",
    frame(left + middle + right, height, `Attention of ${rows.length} queries over ${columns.length} documents, as lines`),
    links.map((each) => link(each, left, middle, y(each.row, rows.length), y(each.column, columns.length), c)),
    rows.map((label, at) => rowLabel(label, left - 12, y(at, rows.length), c)),
    columns.map((label, at) => rowLabel(label, left + middle + 12, y(at, columns.length), c, "start")),
  );
}

function cell(row, column, weight, left, c) {
  const dark = shade(weight);
  const [x, y] = [left + column * CELL, TOP + row * ROW];
  const box = { x: x + 1, y: y + 1, width: CELL - 2, height: ROW - 2, rx: 4 };
  const number = Math.round(weight * 100);
  return s(
    "g",
    { "data-row": row, "data-column": column },
    s("rect", { ...box, fill: c.sunk, "fill-opacity": 0.7 }),
    s("rect", { ...box, fill: c.accent, "fill-opacity": dark.toFixed(3) }),
    number < 1
      ? null
      : s("text", { x: x + CELL / 2, y: y + ROW / 2 + 4, "text-anchor": "middle", "font-size": 11.5, fill: dark > 0.72 ? c["on-accent"] : c.ink }, String(number)),
    s("title", {}, percent(weight)),
  );
}

function link({ row, column, weight }, left, middle, from, to, c) {
  const bend = middle / 2;
  const path = `M${left},${from} C${left + bend},${from} ${left + bend},${to} ${left + middle},${to}`;
  const dark = shade(weight);
  return s(
    "g",
    { "data-row": row, "data-column": column },
    s("path", { d: path, fill: "none", stroke: c.accent, "stroke-width": (0.6 + 6 * dark).toFixed(2), "stroke-opacity": Math.max(0.03, dark).toFixed(3), "stroke-linecap": "round" }),
    s("title", {}, percent(weight)),
  );
}

function heading(label, x, c) {
  const y = TOP - 10;
  return s("text", { x, y, fill: c.ink, transform: `rotate(${SLANT} ${x} ${y})` }, short(label, 26));
}

function rowLabel(label, x, y, c, anchor = "end") {
  return s("text", { x, y: y + 4, "text-anchor": anchor, fill: c.ink }, short(label, 34));
}

/** About what the longest label takes, at 13 pixels. */
function labelWidth(labels, most) {
  const longest = Math.max(...labels.map((label) => short(label, 34).length));
  return Math.min(most, longest * 7.4 + 20);
}
