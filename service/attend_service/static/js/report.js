// Promotion test result of a version: before and after on held-out questions, with intervals.

import { h, s, scrolled } from "./dom.js";
import { number, plural } from "./format.js";
import { colours, frame } from "./pictures.js";
import { versionName } from "./versions.js";

const WORDS = { random: "Questions not trained on", latest: "Latest interactions", unseen: "Documents not trained on", new: "New documents among new ones", mix: "Both, as in use" };
const ENOUGH = 200; // questions, from which most gains can be proved
const [WIDTH, ROW, LEFT] = [620, 46, 190];
const NARROW = 460; // names stand above their lines

/** The whole report of a version, or a sentence where none was trained, in `room` pixels. */
export function drawReport(projection, room = WIDTH) {
  const { report } = projection;
  if (!report?.reason) {
    return h("p", { class: "quiet" }, `${versionName(projection)}: it was not trained, so it has no report.`);
  }
  const views = Object.entries(report.views ?? {});
  return h(
    "div",
    {},
    h("p", {}, h("strong", {}, report.promoted ? "Promoted. " : "Not promoted. "), verdict(report)),
    views.length ? scrolled("Means before and after, drawn", gains(views, Math.max(220, Math.min(WIDTH, room)))) : null,
    views.length ? table(views) : null,
    calibration(report.calibration ?? {}),
  );
}

/** The reason in a sentence, with the means that it compares; the table has all the others. */
function verdict({ reason, promoted, views }) {
  const mix = views?.mix;
  if (!mix) return reason;
  const few = !promoted && mix.queries < ENOUGH ? ` ${plural(mix.queries, "question")} may be too few to be sure; a few hundred usually suffice.` : "";
  return `${reason.split(" (")[0].replace(/\.$/, "")}: ${mix.before.toFixed(3)} → ${mix.after.toFixed(3)}, p ${mix.p < 0.001 ? "< 0.001" : number(mix.p, 2)}.${few}`;
}

/** Each view's means before and after, joined by an arrow. */
function gains(views, width) {
  const c = colours();
  const narrow = width < NARROW;
  const left = narrow ? 10 : LEFT;
  const ends = views.flatMap(([, each]) => [each.before, each.after]);
  const step = [0.02, 0.05, 0.1, 0.2].find((each) => Math.max(...ends) - Math.min(...ends) + 0.1 <= 5 * each) ?? 0.25;
  const low = Math.max(0, Math.floor((Math.min(...ends) - step / 4) / step) * step);
  const high = Math.min(1, Math.ceil((Math.max(...ends) + step / 4) / step) * step);
  const x = (value) => left + ((value - low) / (high - low)) * (width - left - 40);
  const height = views.length * ROW + 40;
  const ticks = Array.from({ length: Math.round((high - low) / step) + 1 }, (_, at) => low + at * step);
  return s(
    "svg",
    frame(width, height, "Means before and after, on what was held out"),
    ticks.map((tick) => [
      s("line", { x1: x(tick), x2: x(tick), y1: 8, y2: height - 28, stroke: c.line }),
      s("text", { x: x(tick), y: height - 8, "text-anchor": "middle", fill: c.soft, "font-size": 12 }, tick.toFixed(2)),
    ]),
    views.map(([name, each], at) => {
      const y = 30 + at * ROW;
      const up = each.after >= each.before;
      const stroke = up ? c.accent : c.warm;
      return [
        s("text", { x: 0, y: narrow ? y - 12 : y + 4, fill: c.ink }, WORDS[name] ?? name),
        s("line", { x1: x(each.before), x2: x(each.after), y1: y, y2: y, stroke, "stroke-width": 3 }),
        s("circle", { cx: x(each.before), cy: y, r: 5, fill: c.panel, stroke: c.soft, "stroke-width": 2 }),
        s("circle", { cx: x(each.after), cy: y, r: 6, fill: stroke }),
      ];
    }),
  );
}

function table(views) {
  const head = ["", "before", "after", "gain", "95 % interval", "p", "queries"];
  const rows = views.map(([name, each]) => {
    const sign = (value) => `${value >= 0 ? "+" : ""}${value.toFixed(3)}`;
    const interval = each.interval ? `${sign(each.interval[0])} to ${sign(each.interval[1])}` : "–";
    const cells = [each.before.toFixed(3), each.after.toFixed(3), sign(each.difference), interval, each.p.toFixed(4), number(each.queries)];
    return h("tr", {}, h("th", { scope: "row" }, WORDS[name] ?? name), cells.map((text) => h("td", { class: "number" }, text)));
  });
  const columns = head.map((text, at) => h("th", { scope: "col", class: at ? "number" : "" }, text));
  return scrolled("Means before and after", h("table", {}, h("thead", {}, h("tr", {}, columns)), h("tbody", {}, rows)));
}

function calibration(found) {
  if (found.ece_after === undefined || found.ece_after === null) return null;
  const told = [
    `Calibrated on ${plural(found.questions, "question")}: the error of the largest weight went from ${number(found.ece_before, 3)} to ${number(found.ece_after, 3)}.`,
    found.threshold === null ? "" : ` Below a confidence of ${number(found.threshold, 3)} nothing is answered, wrongly in at most ${number(found.error_rate * 100, 3)} % of cases.`,
  ];
  if (typeof found.refused === "number") told.push(` Of questions outside of the fit it refuses ${number(found.refused * 100, 3)} %.`);
  return h("p", { class: "quiet" }, told.join(""), found.note ? ` ${found.note}` : "");
}
