// Attention as in the papers: shaded cells, or shaded lines from queries to documents.

import { s } from "./dom.js";
import { ends, percent } from "./format.js";
import { colours, frame } from "./pictures.js";

const CELL = [26, 38]; // as wide as there is room for
const ROW = 34;
const TOP = 150;
const SLANT = -42;
const BEYOND = 135; // what the last heading takes to the right of its cell
const LETTER = 7.4; // about what one takes, at 13 pixels

/** How dark a weight is: its root, so that small shares are still seen. */
const shade = (weight) => Math.sqrt(Math.max(0, Math.min(1, weight)));

/**
 * Cells: `rows` and `columns` are labels, `weights` (rows × columns), `room` the pixels to fit into
 * where that can be. Columns from `documents` on stand for no document. Each cell has its place in `data-row` and `data-column`.
 */
export function cells(rows, columns, weights, room, documents = columns.length) {
  const c = colours();
  const left = labelWidth(rows, Math.min(210, Math.max(110, room / 3)));
  const size = Math.max(CELL[0], Math.min(CELL[1], (room - left - BEYOND) / columns.length));
  const width = left + columns.length * size + BEYOND;
  const height = TOP + rows.length * ROW + 12;
  return s(
    "svg",
    frame(width, height, `Attention of ${rows.length} queries over ${columns.length} documents`),
    columns.map((label, at) => heading(label, left + (at + 0.5) * size, c)),
    rows.map((label, at) => rowLabel(label, left, TOP + (at + 0.5) * ROW, c)),
    weights.map((line, row) => line.map((weight, column) => cell(row, column, weight, [left + column * size, TOP + row * ROW], size, column < documents ? c.accent : c.edge, c))),
  );
}

/** The same as lines, whose strength is the weight. */
export function lines(rows, columns, weights, room, documents = columns.length) {
  const c = colours();
  const left = labelWidth(rows, Math.min(230, room * 0.34));
  const right = labelWidth(columns, Math.min(280, room * 0.4));
  const middle = Math.max(70, Math.min(260, room - left - right));
  const height = Math.max(rows.length, columns.length) * ROW + 24;
  const y = (at, count) => ((at + 0.5) * height) / count;
  const links = weights.flatMap((line, row) =>
    line.map((weight, column) => ({ row, column, weight, colour: column < documents ? c.accent : c.edge })),
  );
  links.sort((a, b) => a.weight - b.weight); // the strong ones on top
  return s(
    "svg",
    frame(left + middle + right, height, `Attention of ${rows.length} queries over ${columns.length} documents, as lines`),
    links.map((each) => link(each, left, middle, y(each.row, rows.length), y(each.column, columns.length), c)),
    rows.map((label, at) => rowLabel(label, left, y(at, rows.length), c)),
    columns.map((label, at) => columnLabel(label, left + middle, right, y(at, columns.length), c)),
  );
}

function cell(row, column, weight, [x, y], size, colour, c) {
  const dark = shade(weight);
  const box = { x: x + 1, y: y + 1, width: size - 2, height: ROW - 2, rx: 4 };
  const number = Math.round(weight * 100);
  return s(
    "g",
    { "data-row": row, "data-column": column },
    s("rect", { ...box, fill: c.sunk, "fill-opacity": 0.7 }),
    s("rect", { ...box, fill: colour, "fill-opacity": dark.toFixed(3) }),
    number < 1
      ? null
      : s("text", { x: x + size / 2, y: y + ROW / 2 + 4, "text-anchor": "middle", "font-size": 11.5, fill: dark > 0.72 ? c["on-accent"] : c.ink }, String(number)),
    s("title", {}, percent(weight)),
  );
}

function link({ row, column, weight, colour }, left, middle, from, to, c) {
  const bend = middle / 2;
  const path = `M${left},${from} C${left + bend},${from} ${left + bend},${to} ${left + middle},${to}`;
  const dark = shade(weight);
  return s(
    "g",
    { "data-row": row, "data-column": column },
    s("path", { d: path, fill: "none", stroke: colour, "stroke-width": (0.6 + 6 * dark).toFixed(2), "stroke-opacity": Math.max(0.03, dark).toFixed(3), "stroke-linecap": "round" }),
    s("title", {}, percent(weight)),
  );
}

function heading(label, x, c) {
  const y = TOP - 10;
  return s("text", { x, y, fill: c.ink, transform: `rotate(${SLANT} ${x} ${y})` }, ends(label, 24));
}

/** To the left of `x`, in the room that there is. */
function rowLabel(label, x, y, c) {
  return s("text", { x: x - 12, y: y + 4, "text-anchor": "end", fill: c.ink }, ends(label, letters(x)));
}

function columnLabel(label, x, width, y, c) {
  return s("text", { x: x + 12, y: y + 4, fill: c.ink }, ends(label, letters(width)));
}

const letters = (width) => Math.floor((width - 20) / LETTER);

/** What the longest label takes, up to the most. */
function labelWidth(labels, most) {
  const longest = Math.max(...labels.map((label) => ends(label, 34).length));
  return Math.min(most, longest * LETTER + 22);
}
