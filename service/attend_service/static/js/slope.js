// Two rankings side by side, joined by lines: what rose, what fell, what came and went.

import { s } from "./dom.js";
import { ends, percent } from "./format.js";
import { colours, frame } from "./pictures.js";

const ROW = 34;
const TOP = 44;
const MIDDLE = [60, 320]; // as wide as there is room for
const LINES = 0.3; // the share of the room that lines have, however long the titles are
const NARROW = 440; // too little for weights beside the names
const LETTER = 7.3; // about what one takes
const [WEIGHT, EDGE] = [62, 18]; // beside a name, with its weight and without

/**
 * `before` and `after` are lists of {id, title, weight}; `names` says what each side is called.
 * What only one side has ends at the edge, dashed. `room` is the width to fit into where that can be.
 */
export function slopes(before, after, names, room) {
  const c = colours();
  const rows = Math.max(before.length, after.length);
  const narrow = room < NARROW;
  const beside = narrow ? EDGE : WEIGHT;
  const absent = narrow ? "not here" : "not among these";
  const least = Math.max(MIDDLE[0], Math.min(MIDDLE[1], LINES * room));
  const fitting = Math.max(absent.length, Math.min(40, Math.floor(((room - least) / 2 - beside) / LETTER)));
  const longest = Math.max(absent.length, ...[...before, ...after].map((each) => ends(each.title, fitting).length));
  const side = longest * LETTER + beside;
  const middle = Math.max(least, Math.min(MIDDLE[1], room - 2 * side));
  const [width, height] = [2 * side + middle, TOP + (rows + 1) * ROW];
  const [x1, x2] = [side, side + middle];
  const y = (rank) => TOP + (rank + 0.5) * ROW;
  const out = y(rows); // the place of what is not among the best
  const rankIn = (list) => new Map(list.map((each, rank) => [each.id, rank]));
  const [was, is] = [rankIn(before), rankIn(after)];
  const ids = [...new Set([...was.keys(), ...is.keys()])];
  return s(
    "svg",
    frame(width, height, `Ranks in ${names[0]} and ${names[1]}`),
    [[x1, "end", names[0]], [x2, "start", names[1]]].map(([x, anchor, name]) =>
      s("text", { x, y: 20, "text-anchor": anchor, fill: c.soft, "font-size": 13, "font-weight": 600 }, name),
    ),
    ids.map((id) => line(x1, x2, y(was.get(id) ?? rows), y(is.get(id) ?? rows), was.get(id), is.get(id), c)),
    before.map((each, rank) => label(each, ends(each.title, fitting), narrow, x1, y(rank), "end", c)),
    after.map((each, rank) => label(each, ends(each.title, fitting), narrow, x2, y(rank), "start", c)),
    s("text", { x: x1 - 14, y: out + 4, "text-anchor": "end", fill: c.soft }, absent),
    s("text", { x: x2 + 14, y: out + 4, fill: c.soft }, absent),
  );
}

function line(x1, x2, from, to, was, is, c) {
  const moved = is === undefined ? -1 : was === undefined ? 1 : Math.sign(was - is);
  const stroke = moved > 0 ? c.accent : moved < 0 ? c.warm : c.edge;
  const dashed = was === undefined || is === undefined ? { "stroke-dasharray": "5 5" } : {};
  return s(
    "g",
    {},
    s("line", { x1: x1 + 8, y1: from, x2: x2 - 8, y2: to, stroke, "stroke-width": moved ? 2.2 : 1.4, ...dashed }),
    was === undefined ? null : s("circle", { cx: x1 + 8, cy: from, r: 3.5, fill: stroke }),
    is === undefined ? null : s("circle", { cx: x2 - 8, cy: to, r: 3.5, fill: stroke }),
  );
}

function label(each, title, narrow, x, y, anchor, c) {
  const side = anchor === "end" ? -1 : 1;
  const weight = s("tspan", { fill: c.soft, "font-size": 12 }, percent(each.weight));
  const name = s("tspan", { fill: c.ink }, title);
  const parts = narrow ? [name] : side < 0 ? [name, "  ", weight] : [weight, "  ", name];
  return s("text", { x: x + side * 6, y: y + 4, "text-anchor": anchor, "xml:space": "preserve" }, parts);
}
