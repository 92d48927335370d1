// What the promotion test measured of a version: gains with intervals, the steps of learning, and how
// true the weights are. All of it on held-out questions.

import { bar, h, s, scrolled } from "./dom.js";
import { number, plural } from "./format.js";
import { colours, frame } from "./pictures.js";
import { versionName } from "./versions.js";

const WORDS = { random: "Questions not trained on", latest: "Latest interactions", unseen: "Documents not trained on", new: "New documents alone", mix: "Both, as in use" };
const STEPS = { encoded: "As encoded", feedback: "With feedback", previous: "Version before", trained: "Trained" };
const [WIDTH, LEAST, ROW, EDGE] = [620, 240, 74, 14];
const TICKS = 4;

/**
 * The whole report of a version, or a sentence where none was trained, in `room` pixels. What the
 * server says of its evidence is the page's to show, above; a training's result comes without it.
 */
export function drawReport(projection, room = WIDTH) {
  const { report, evidence } = projection;
  if (!report?.reason) {
    return h("p", { class: "quiet" }, `${versionName(projection)}: it was not trained, so it has no report.`);
  }
  const rows = rowsOf(report.views ?? {});
  return h(
    "div",
    {},
    evidence ? null : h("p", {}, h("strong", {}, report.promoted ? "Promoted." : "Not promoted."), ` ${report.reason.split(" (")[0].replace(/\.$/, "")}.`),
    rows.length ? scrolled("Gains on held-out questions", gainPicture(rows, Math.max(LEAST, Math.min(WIDTH, room)))) : null,
    rows.length ? h("p", { class: "quiet" }, "Dot: the gain. Line: its 95 % interval; a gain is there where it lies right of zero. The measure that decides is bold.") : null,
    steps(report),
    calibration(report.calibration ?? {}),
    rows.length ? h("details", { class: "fold" }, h("summary", {}, "Means, intervals and p values"), figureTable(rows), h("p", { class: "quiet" }, report.reason)) : null,
  );
}

/** The comparisons of a report as rows, the one that decides first; of errors a gain is a fall. */
function rowsOf(views) {
  const entries = Object.entries(views).filter(([, view]) => view.before !== undefined);
  const rows = entries.map(([name, view]) => ({
    label: WORDS[name] ?? capital(view.label ?? name),
    before: view.before,
    after: view.after,
    ...(view.errors ? turned(view) : { gain: view.difference ?? view.after - view.before, interval: view.interval }),
    p: view.p,
    count: view.queries,
    decides: view.decides ?? (name === "mix" || name === "log likelihood"),
  }));
  return [...rows.filter((row) => row.decides), ...rows.filter((row) => !row.decides)];
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

function turned({ label, difference, interval }) {
  return { label: `${capital(label)} (less is better)`, gain: -difference, interval: interval && [-interval[1], -interval[0]] };
}

/** Each row's gain with its interval around zero, on an axis of its own. */
export function gainPicture(rows, width) {
  const c = colours();
  return s("svg", frame(width, rows.length * ROW, "Gains with their 95 % intervals"), rows.map((row, at) => gainRow(row, at * ROW, width, c)));
}

function gainRow({ label, before, after, gain, interval, decides }, top, width, c) {
  const ticks = ticksOf([0, gain, ...(interval ?? [])]);
  const [low, high] = [ticks[0], ticks.at(-1)];
  const x = (value) => EDGE + ((value - low) / (high - low)) * (width - 2 * EDGE);
  const y = top + 36;
  const sure = interval && (interval[0] > 0 || interval[1] < 0);
  const stroke = !sure ? c.soft : gain > 0 ? c.accent : c.warm;
  const at = (value) => (value === low ? "start" : value === high ? "end" : "middle");
  return s(
    "g",
    {},
    s("text", { x: 0, y: top + 15, fill: c.ink, "font-weight": decides ? 650 : 400 }, label),
    s("text", { x: width, y: top + 15, "text-anchor": "end", fill: c.soft, "font-size": 12 }, `${figure(before)} → ${figure(after)}`),
    s("line", { x1: x(low), x2: x(high), y1: y + 10, y2: y + 10, stroke: c.line }),
    ticks.map((tick) => [
      s("line", { x1: x(tick), x2: x(tick), y1: y + 7, y2: y + 13, stroke: c.edge }),
      s("text", { x: at(tick) === "start" ? 0 : at(tick) === "end" ? width : x(tick), y: y + 26, "text-anchor": at(tick), fill: c.soft, "font-size": 11 }, tick === 0 ? "0" : signed(tick, places(ticks))),
    ]),
    s("line", { x1: x(0), x2: x(0), y1: y - 13, y2: y + 10, stroke: c.ink, "stroke-width": 1.5 }),
    interval ? s("line", { x1: x(interval[0]), x2: x(interval[1]), y1: y, y2: y, stroke, "stroke-width": 3, "stroke-linecap": "round" }) : null,
    s("circle", { cx: x(gain), cy: y, r: 6, fill: stroke }, s("title", {}, signed(gain))),
  );
}

/** Round ticks that hold all of some values. */
export function ticksOf(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const span = high - low || 0.01;
  const power = 10 ** Math.floor(Math.log10(span / TICKS));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => span / each <= TICKS);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.max(first + 1, Math.ceil(high / step - 1e-9));
  return Array.from({ length: last - first + 1 }, (_, at) => Number(((first + at) * step).toPrecision(12)));
}

const places = (ticks) => Math.max(0, Math.ceil(-Math.log10(ticks[1] - ticks[0]) - 1e-9));

/** Two columns, which a telephone holds too: means under the name, interval and p under the gain. */
export function figureTable(rows) {
  const body = rows.map(({ label, before, after, gain, interval, p, count }) => {
    const span = interval ? `${signed(interval[0])} to ${signed(interval[1])}` : "no interval";
    const chance = `p ${p < 0.001 ? "< 0.001" : p.toFixed(3)}${count === undefined ? "" : `, n ${number(count)}`}`;
    const name = h("th", { scope: "row" }, label, h("br"), h("span", { class: "quiet" }, `${figure(before)} → ${figure(after)}`));
    return h("tr", {}, name, h("td", { class: "number" }, signed(gain), h("br"), h("span", { class: "quiet" }, span, h("br"), chance)));
  });
  const head = ["Measure, before → after", "Gain, 95 % interval"].map((text, at) => h("th", { scope: "col", class: at ? "number" : "" }, text));
  return h("table", { class: "gains" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body));
}

/** What each step of learning is worth, where the report has it, with one bar each. */
function steps({ steps: list, views, chosen, questions, previous }) {
  const accuracy = views?.accuracy;
  const measured = list?.length
    ? list.map(({ name, means }) => [STEPS[name] ?? name, means.mix])
    : accuracy
      ? [[previous > 1 ? `Version ${previous}` : "As encoded", accuracy.before], ["Trained", accuracy.after]]
      : [];
  if (measured.length < 2 || measured.some(([, mean]) => mean === undefined || mean === null)) return null;
  const what = list?.length ? "nDCG@10, both as in use" : "accuracy";
  const told = list?.length
    ? `Each of ${plural(questions, "question")} is answered without its own feedback and with what the others taught.`
    : `Each of ${plural(accuracy.queries, "document")} is answered by the others.`;
  return h(
    "section",
    { class: "learned" },
    h("h3", {}, `Steps of learning (${what})`),
    h("ol", { class: "shares" }, measured.map(([name, mean]) => h("li", {}, h("span", { class: "name" }, name), bar(mean), h("span", { class: "number" }, figure(mean))))),
    h("p", { class: "quiet" }, told, chosen?.memory === 0 && list?.some(({ name }) => name === "feedback") ? " In the trained version feedback moves no query: what it teaches is in the version." : ""),
  );
}

function calibration({ ece_before: before, ece_after: after, questions, threshold, error_rate: rate, refused, note }) {
  if (after === undefined || after === null) return null;
  const points = (share) => `${number(share * 100, 2)} percentage points`;
  const told = [`How true weights are: on ${plural(questions, "held-out answer")}, the largest weight differs from how often it is right by ${points(before)} with the scale before, by ${points(after)} with the fitted one.`];
  if (typeof threshold === "number") told.push(` Below a confidence of ${number(threshold, 3)} nothing is answered, wrongly in at most ${number(rate * 100, 3)} % of cases.`);
  if (typeof refused === "number") told.push(` Of questions outside of the fit it refuses ${number(refused * 100, 3)} %.`);
  return h("p", { class: "quiet" }, told.join(""), note ? ` ${note}` : "");
}

/** A number with three decimals and a true minus sign. */
const figure = (value) => value.toFixed(3).replace("-", "−");

/** The same with its sign. */
export const signed = (value, digits = 3) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;
