// Two versions measured on judged queries: which gained and lost, and how true their weights are.

import { h, s, scrolled } from "./dom.js";
import { number, plural, short } from "./format.js";
import { colours, frame } from "./pictures.js";

const [WIDTH, HEIGHT, EDGE] = [420, 230, 40];

/** A comparison of the API, drawn. */
export function drawGains(found) {
  const pictures = [
    [histogram(found), `${found.gained} gained, ${found.lost} lost, ${found.unchanged} stayed`],
    [reliability(found), "Weight of the best document against how often it is relevant"],
  ];
  return h(
    "div",
    {},
    table(found),
    h("div", { class: "two" }, pictures.map(([picture, told]) => h("figure", {}, scrolled("Picture", picture), h("figcaption", { class: "quiet" }, told)))),
    h("div", { class: "two" }, changed("Gained most", found.most_gained), changed("Lost most", found.most_lost)),
  );
}

function table({ before, after, differences, queries }) {
  const rows = Object.keys(before.measures).map((name) => {
    const { mean, interval, p } = differences[name];
    const span = interval ? `${signed(interval[0])} to ${signed(interval[1])}` : "–";
    const cells = [before.measures[name].toFixed(3), after.measures[name].toFixed(3), signed(mean), span, p.toFixed(4)];
    return h("tr", {}, h("th", { scope: "row" }, name), cells.map((text) => h("td", { class: "number" }, text)));
  });
  const names = [plural(queries, "query", "queries"), `version ${before.projection}`, `version ${after.projection}`, "gain", "95 % interval", "p"];
  const head = names.map((text, at) => h("th", { scope: "col", class: at ? "number" : "" }, text));
  return scrolled("Measures", h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
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
    [-1, -0.5, 0, 0.5, 1].map((tick) => s("text", { x: x(tick), y: HEIGHT - 12, "text-anchor": "middle", "font-size": 12, fill: c.soft }, String(tick))),
    s("text", { x: EDGE - 8, y: y(most) + 4, "text-anchor": "end", "font-size": 12, fill: c.soft }, String(most)),
    s("text", { x: EDGE, y: 14, "font-size": 12, fill: c.soft }, `queries by gain in ${measure}`),
  );
}

/** On the diagonal, a weight of 0.8 is right 8 times of 10. */
function reliability({ before, after }) {
  const c = colours();
  const size = HEIGHT - 78; // the lines are named above
  const x = (value) => EDGE + value * (WIDTH - EDGE - 12);
  const y = (value) => HEIGHT - 32 - value * size;
  const sides = [[before, c.warm, "6 4"], [after, c.accent, ""]].map(([side, stroke, dashes]) => {
    const { bins, ece } = side.reliability.weight;
    const filled = bins.filter((bin) => bin.predicted !== null && bin.observed !== null);
    const points = filled.map((bin) => `${x(bin.predicted).toFixed(1)},${y(bin.observed).toFixed(1)}`);
    return { side, stroke, dashes, points, ece };
  });
  return s(
    "svg",
    frame(WIDTH, HEIGHT, "Reliability of the largest weight"),
    s("line", { x1: x(0), y1: y(0), x2: x(1), y2: y(1), stroke: c.edge, "stroke-dasharray": "2 3" }),
    s("line", { x1: x(0), x2: x(1), y1: y(0), y2: y(0), stroke: c.edge }),
    s("line", { x1: x(0), x2: x(0), y1: y(0), y2: y(1), stroke: c.edge }),
    sides.map(({ stroke, dashes, points }) => [
      s("polyline", { points: points.join(" "), fill: "none", stroke, "stroke-width": 2, "stroke-dasharray": dashes || null }),
      points.map((point) => s("circle", { cx: point.split(",")[0], cy: point.split(",")[1], r: 3.5, fill: stroke })),
    ]),
    sides.map(({ side, stroke, ece }, at) =>
      s("text", { x: x(0.02), y: 14 + 16 * at, "font-size": 12, fill: stroke }, `version ${side.projection}, error ${number(ece, 2)}`),
    ),
    [0, 0.5, 1].map((tick) => s("text", { x: x(tick), y: HEIGHT - 12, "text-anchor": "middle", "font-size": 12, fill: c.soft }, String(tick))),
  );
}

function changed(title, list) {
  const items = list.map((each) =>
    h("li", {}, h("span", { dir: "auto" }, short(each.text, 80)), " ", h("strong", { class: each.gain > 0 ? "good" : "bad" }, signed(each.gain)), h("br"), h("span", { class: "quiet" }, `${first(each.documents_before)} → ${first(each.documents_after)}`)),
  );
  return h("section", {}, h("h3", {}, title), items.length ? h("ol", { class: "plain" }, items) : h("p", { class: "quiet" }, "None."));
}

const first = (documents) => (documents.length ? short(documents[0].id, 40) : "nothing");
const signed = (value) => `${value >= 0 ? "+" : ""}${value.toFixed(3)}`;
