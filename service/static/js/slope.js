// Two rankings side by side, joined by lines: what rose, what fell, what came and went.

import { s } from "./dom.js";
import { percent, short } from "./format.js";
import { colours, frame } from "./pictures.js";

const ROW = 34;
const TOP = 44;
const MIDDLE = 200;

/**
 * `before` and `after` are lists of {id, title, weight}; `names` says what each side is called.
 * What only one side has ends at the edge, dashed.
 */
export function slopes(before, after, names) {
  const c = colours();
  const rows = Math.max(before.length, after.length);
  const longest = Math.max(14, ...[...before, ...after].map((each) => short(each.title, 30).length));
  const side = longest * 7.3 + 62; // about what the longest label takes
  const [width, height] = [2 * side + MIDDLE, TOP + (rows + 1) * ROW];
  const [x1, x2] = [side, side + MIDDLE];
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
    before.map((each, rank) => label(each, x1, y(rank), "end", c)),
    after.map((each, rank) => label(each, x2, y(rank), "start", c)),
    s("text", { x: x1 - 14, y: out + 4, "text-anchor": "end", fill: c.soft }, "not among these"),
    s("text", { x: x2 + 14, y: out + 4, fill: c.soft }, "not among these"),
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

function label(each, x, y, anchor, c) {
  const side = anchor === "end" ? -1 : 1;
  const weight = s("tspan", { fill: c.soft, "font-size": 12 }, percent(each.weight));
  const name = s("tspan", { fill: c.ink }, short(each.title, 30));
  const parts = side < 0 ? [name, "  ", weight] : [weight, "  ", name];
  return s("text", { x: x + side * 6, y: y + 4, "text-anchor": anchor, "xml:space": "preserve" }, parts);
}
