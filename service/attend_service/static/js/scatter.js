// Keys as points: their kind by colour, a query's attention by size, movement as a line behind.

import { s } from "./dom.js";
import { short } from "./format.js";
import { colours, frame, KINDS } from "./pictures.js";

const EDGE = 26;
const NAMED = 6;

/** Draw a map of the API within `width` pixels; `kinds` maps a document's id to a number or null. */
export function scatter(map, kinds, width) {
  const c = colours();
  const height = Math.round(Math.max(320, Math.min(640, width * 0.72)));
  const to = placing(map, width, height);
  const heaviest = Math.max(...map.points.map((each) => each.weight ?? 0), 0);
  const [plain, attended] = [[], []];
  map.points.forEach((each, at) => (each.weight === null ? plain : attended).push([each, at]));
  attended.sort(([a], [b]) => b.weight - a.weight);
  const far = map.query !== null;
  const size = width < 480 ? 0.65 : 1; // of points, where they are crowded
  return s(
    "svg",
    frame(width, height, `Map of ${map.points.length} documents${far ? " with a query" : ""}`),
    map.points.map((each) => movement(each, to, c)),
    plain.map(([each, at]) => dot(each, at, to, { r: 3 * size, fill: colourOf(each, kinds, c), "fill-opacity": far ? 0.35 : 0.8 })),
    [...attended].reverse().map(([each, at]) => link(each, map.query, to, heaviest, c, at)),
    [...attended].reverse().map(([each, at]) =>
      dot(each, at, to, { r: size * (3.5 + 7 * Math.sqrt(each.weight / heaviest)), fill: colourOf(each, kinds, c), stroke: c.ink, "stroke-width": 0.8 }),
    ),
    map.query ? star(map.query, to, c) : null,
    apart(attended.map(([each]) => each), map.query, to).map((each) => name(each, to, width, c)),
  );
}

/** From places to pixels, of one scale in both directions, so that distances are true. */
function placing(map, width, height) {
  const all = [...map.points.flatMap((each) => [each.place, each.was]), map.query?.place, map.query?.was].filter(Boolean);
  const range = (axis) => [Math.min(...all.map((p) => p[axis])), Math.max(...all.map((p) => p[axis]))];
  const [[left, right], [low, high]] = all.length ? [range(0), range(1)] : [[0, 1], [0, 1]];
  const scale = Math.min((width - 2 * EDGE) / (right - left || 1), (height - 2 * EDGE) / (high - low || 1));
  const middle = [(left + right) / 2, (low + high) / 2];
  return ([x, y]) => [width / 2 + (x - middle[0]) * scale, height / 2 - (y - middle[1]) * scale];
}

function colourOf(each, kinds, c) {
  const kind = kinds.get(each.id);
  return kind === undefined ? c.accent : kind === null ? c.edge : KINDS[kind % KINDS.length];
}

/** The first few whose names do not lie over one another, nor over the query's. */
function apart(attended, query, to) {
  const named = [];
  const taken = query ? [query] : [];
  for (const each of attended.slice(0, 3 * NAMED)) {
    const [x, y] = to(each.place);
    const isFree = [...taken, ...named].every((other) => Math.abs(to(other.place)[1] - y) > 15 || Math.abs(to(other.place)[0] - x) > 170);
    if (isFree && named.length < NAMED) named.push(each);
  }
  return named;
}

function dot(each, at, to, looks) {
  const [cx, cy] = to(each.place);
  return s("circle", { cx: cx.toFixed(1), cy: cy.toFixed(1), "data-at": at, ...looks });
}

function movement(each, to, c) {
  if (!each.was) return null;
  const [[x1, y1], [x2, y2]] = [to(each.was), to(each.place)];
  if (Math.hypot(x2 - x1, y2 - y1) < 1.5) return null;
  return s("line", { x1, y1, x2, y2, stroke: c.edge, "stroke-opacity": 0.45, "stroke-width": 1 });
}

function link(each, query, to, heaviest, c) {
  if (!query) return null;
  const [[x1, y1], [x2, y2]] = [to(query.place), to(each.place)];
  const share = each.weight / heaviest;
  return s("line", { x1, y1, x2, y2, stroke: c.accent, "stroke-opacity": (0.08 + 0.72 * share).toFixed(3), "stroke-width": (0.6 + 2.4 * share).toFixed(2) });
}

function star(query, to, c) {
  const [x, y] = to(query.place);
  const was = query.was && to(query.was);
  return [
    was ? s("line", { x1: was[0], y1: was[1], x2: x, y2: y, stroke: c.ink, "stroke-dasharray": "4 3", "stroke-width": 1.5 }) : null,
    s("path", { d: `M${x},${y - 9}l9,9l-9,9l-9,-9z`, fill: c.ink, stroke: c.panel, "stroke-width": 2 }),
    s("text", { x: x + 13, y: y + 4, fill: c.ink, "font-weight": 600, "paint-order": "stroke", stroke: c.panel, "stroke-width": 3 }, "query"),
  ];
}

function name(each, to, width, c) {
  const [x, y] = to(each.place);
  const left = x > width * 0.66;
  const looks = { x: x + (left ? -11 : 11), y: y + 4, "text-anchor": left ? "end" : "start", fill: c.ink, "font-size": 12, "paint-order": "stroke", stroke: c.panel, "stroke-width": 3 };
  return s("text", looks, short(each.title, 28));
}
