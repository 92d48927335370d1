// Two projections side by side, for one query or for a set.

import { batch, get, latest, of, post } from "./api.js";
import { byId, h, tell, tried } from "./dom.js";
import { percent, plural, short } from "./format.js";
import { onTheme, savePng, saveSvg } from "./pictures.js";
import { drawChanged, drawGains } from "./gains.js";
import { queryOf } from "./queries.js";
import { drawReport } from "./report.js";
import { slopes } from "./slope.js";
import { addressOf, read, reopenOnReturn, write } from "./state.js";
import { learnedFromUse, versionName } from "./versions.js";

const MOST = 64;
const SUGGESTED = 5;
const PADDING = 42; // of the picture's panel
const form = byId("compare");
const field = (name) => form.elements[name];

let found = [];
let chosen = 0;
let version = null; // the one after, with its report
let gains = null;

/** The versions of the collection, the active one against its parent unless the address says more. */
async function open(given = {}) {
  try {
    const { active, projections, learned } = await get(of(field("collection").value, "projections"));
    byId("learned").textContent = learnedFromUse(learned);
    const parent = projections.find((each) => each.version === active)?.parent;
    const others = projections.filter((each) => each.version !== active);
    const start = { before: parent ?? others.at(-1)?.version ?? active, after: active };
    for (const name of ["before", "after"]) {
      field(name).replaceChildren(...projections.map((each) => h("option", { value: String(each.version) }, versionName(each))));
      field(name).value = String(given[name] ?? start[name]);
      if (!field(name).value) field(name).value = String(start[name]);
    }
    tell(byId("status"), null);
    if (alone(projections)) return remember();
    await changed();
  } catch (error) {
    tell(byId("status"), error);
  }
}

/** With one version there is nothing to compare: say what makes another one. */
function alone(projections) {
  const only = projections.length < 2;
  byId("compared").classList.toggle("late", !only);
  for (const part of [...byId("compared").children, ...form.querySelectorAll(".several")]) part.hidden = only !== (part.id === "alone");
  if (only) {
    const link = h("a", { href: addressOf("/teach", { collection: field("collection").value }) }, "Label documents and train on the labels");
    byId("alone").replaceChildren("There is one version so far, so there is nothing to compare. ", link, " to make another one.");
  }
  return only;
}

/** Show both versions; without a query those that gained most on what was held out. */
async function changed() {
  remember();
  const written = lines().length > 0;
  await Promise.all([written ? ask() : null, showReport(), showQuestions()]);
  if (!written) await ask();
  byId("compared").classList.remove("late");
  byId("own").hidden = false; // what stands above it has its height by now
}

const ask = latest(async () => {
  const queries = lines().map(([query]) => query);
  await tried("search", async () => {
    const sides = await Promise.all(["before", "after"].map((name) => ranked(queries, Number(field(name).value))));
    found = queries.map((query, at) => ({ query, before: sides[0][at], after: sides[1][at] }));
    chosen = Math.min(chosen, Math.max(0, found.length - 1));
    paint();
  });
});

/** The queries that were written, each with the document that is said to answer it, if one is. */
function lines() {
  // Blanks first: a pattern with blanks on both sides takes quadratic time over a run of them.
  const written = field("q").value.split("\n").map((line) => line.replace(/\s+/g, " ").trim()).filter(Boolean);
  return written.slice(0, MOST).map((line) => line.split(" => "));
}

/** Both versions on what is judged here, or else on the examples that were gathered. */
async function measure() {
  const items = lines().filter(([, id]) => id).map(([query, id]) => ({ query, id }));
  const [before, after] = ["before", "after"].map((name) => Number(field(name).value));
  byId("measure").disabled = true;
  try {
    gains = await post(of(field("collection").value, "compare"), { before, after, ...(items.length ? { items } : {}) });
    const which = items.length ? `the ${plural(items.length, "judgement")} in the list` : `the ${plural(gains.queries, "newest taught question")}, which a version may have learned from`;
    byId("source").textContent = `Measured now on ${which}: these are not the held-out questions above. Feedback moves no query here.`;
    tell(byId("status"), null);
    paintGains();
  } catch (error) {
    tell(byId("status"), error);
  } finally {
    byId("measure").disabled = false;
  }
}

function paintGains() {
  byId("gains").replaceChildren(gains ? drawGains(gains) : "");
}

async function ranked(queries, projection) {
  if (!queries.length) return [];
  const k = Number(field("n").value);
  const asked = await Promise.all(queries.map((line) => queryOf(field("collection").value, line)));
  const memory = field("feedback").checked ? {} : { memory: 0 };
  const searches = asked.map((query) => ({ query, k, projection, fields: [], title: true, ...memory }));
  const { answers } = await batch(field("collection").value, searches, queries);
  return answers.map(({ hits }) => hits.map((hit) => ({ id: hit.id, title: hit.title, weight: hit.weight })));
}

function paint() {
  const place = byId("picture");
  byId("tools").hidden = !found.length;
  if (!found.length) return place.replaceChildren(h("p", { class: "quiet" }, lines().length ? "Searching…" : "Write one query per line."));
  const names = ["before", "after"].map((name) => `Version ${field(name).value}`);
  const { query, before, after } = found[chosen];
  place.replaceChildren(slopes(before, after, names, place.clientWidth - PADDING));
  byId("moved").textContent = field("feedback").checked
    ? "Feedback moves the queries, as in use: a version that was not trained changes too as one teaches."
    : "Without feedback: a version ranks the same here however much is taught.";
  byId("which").textContent = `for “${short(query, 80)}”`;
  byId("set").replaceChildren(found.length > 1 ? table() : "");
}

function table() {
  const rows = found.map((each, at) => {
    const { shared, rose, fell } = changes(each);
    const pick = () => {
      chosen = at;
      paint();
      byId("set").querySelectorAll("button")[at].focus();
    };
    const name = h("button", { type: "button", class: "plain", "aria-pressed": String(at === chosen), on: { click: pick } }, each.query);
    const cells = [percent(shared), String(rose), String(fell)];
    return h("tr", {}, h("th", { scope: "row" }, name), cells.map((text) => h("td", { class: "number" }, text)));
  });
  const head = ["Query", "shared", "rose or came", "fell or went"].map((text, at) => h("th", { scope: "col", class: at ? "number" : "" }, text));
  return h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows));
}

/** How much of both lists is in common, and how many documents of either moved which way. */
export function changes({ before, after }) {
  const was = new Map(before.map((each, rank) => [each.id, rank]));
  const is = new Map(after.map((each, rank) => [each.id, rank]));
  const shared = after.filter((each) => was.has(each.id)).length;
  const rose = after.filter((each, rank) => rank < (was.get(each.id) ?? Infinity)).length;
  const fell = before.filter((each, rank) => rank < (is.get(each.id) ?? Infinity)).length;
  return { shared: after.length ? shared / Math.max(before.length, after.length) : 0, rose, fell };
}

async function showReport() {
  await tried("report", async () => {
    version = await get(of(field("collection").value, "projections", field("after").value));
    paintReport();
  });
}

function paintReport() {
  if (!version) return;
  byId("verdict").textContent = version.evidence.verdict;
  byId("verdict").dataset.state = version.evidence.state;
  byId("report").replaceChildren(drawReport(version, byId("report").clientWidth));
}

/** Held-out questions of the training: they are feedback, which not every key shows. */
async function showQuestions() {
  byId("held-out").hidden = true;
  try {
    const { questions, right_first: right, measure, items } = await get(of(field("collection").value, "projections", field("after").value, "questions"));
    if (!questions) return;
    byId("held-out").hidden = false;
    const what = measure === "ndcg@10" ? ["question", "best document"] : ["document", "answer"];
    const told = `Of ${plural(questions, what[0])}, each held out once, the ${what[1]} is right for ${right[0]} before and ${right[1]} after.`;
    byId("questions").replaceChildren(h("p", {}, told), drawChanged(items));
    if (!field("q").value.trim()) field("q").value = items.slice(0, SUGGESTED).map((item) => item.text.replace(/\s+/g, " ")).join("\n");
  } catch (error) {
    byId("held-out").hidden = error.status !== 403;
    byId("questions").replaceChildren(h("p", { class: "quiet" }, "These questions are feedback, which is shown with a key of the scope write."));
  }
}

function remember() {
  const { q, collection, before, after, n, feedback } = Object.fromEntries(new FormData(form));
  write({ q, collection, before, after, n: n === "10" ? "" : n, feedback });
}

function start() {
  const given = read();
  for (const name of ["q", "n", "collection"]) if (given[name]) field(name).value = given[name];
  field("feedback").checked = given.feedback === "1";
  for (const name of ["q", "n", "before", "feedback"]) {
    field(name).addEventListener("input", () => {
      remember();
      ask();
    });
  }
  field("after").addEventListener("change", changed);
  field("collection").addEventListener("change", () => open());
  byId("swap").addEventListener("click", () => {
    [field("before").value, field("after").value] = [field("after").value, field("before").value];
    changed();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  byId("svg").addEventListener("click", () => saveSvg(byId("picture").firstChild, "ranks"));
  byId("png").addEventListener("click", () => savePng(byId("picture").firstChild, "ranks"));
  addEventListener("resize", () => {
    paint();
    paintReport();
  });
  onTheme(() => {
    paint();
    paintReport();
    paintGains();
  });
  byId("measure").addEventListener("click", measure);
  reopenOnReturn();
  open(given);
}

start();
