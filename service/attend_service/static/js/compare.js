// Two projections side by side, for one query or for a set.

import { batch, get, latest, of, post } from "./api.js";
import { byId, h, tell, tried } from "./dom.js";
import { percent, short } from "./format.js";
import { onTheme, savePng, saveSvg } from "./pictures.js";
import { drawGains } from "./gains.js";
import { queryOf } from "./queries.js";
import { drawReport } from "./report.js";
import { slopes } from "./slope.js";
import { addressOf, read, reopenOnReturn, write } from "./state.js";
import { versionName } from "./versions.js";

const MOST = 64;
const SUGGESTED = 5;
const PADDING = 42; // of the picture's panel
const form = byId("compare");
const field = (name) => form.elements[name];

let found = [];
let chosen = 0;
let report = null;
let gains = null;

/** The versions of the collection, the active one against its parent unless the address says more. */
async function open(given = {}) {
  try {
    const { active, projections } = await get(of(field("collection").value, "projections"));
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
    await suggest();
    changed();
  } catch (error) {
    tell(byId("status"), error);
  }
}

/** With one version there is nothing to compare: say what makes another one. */
function alone(projections) {
  const only = projections.length < 2;
  for (const part of [...byId("compared").children, ...form.querySelectorAll(".several")]) part.hidden = only !== (part.id === "alone");
  if (only) {
    const link = h("a", { href: addressOf("/teach", { collection: field("collection").value }) }, "Label documents and train on the labels");
    byId("alone").replaceChildren("There is one version so far, so there is nothing to compare. ", link, " to make another one.");
  }
  return only;
}

/** Queries that were taught, where the address names none: an empty box shows nothing. */
async function suggest() {
  if (field("q").value.trim()) return;
  const { items } = await get(`${of(field("collection").value, "feedback")}?limit=100`);
  const queries = new Set(items.filter((each) => each.query && each.label > 0).map((each) => each.query));
  field("q").value = [...queries].slice(0, SUGGESTED).join("\n");
}

function changed() {
  remember();
  showReport();
  ask();
}

const ask = latest(async () => {
  const said = lines().map(([query]) => query);
  await tried("search", async () => {
    const sides = await Promise.all(["before", "after"].map((name) => ranked(said, Number(field(name).value))));
    found = said.map((query, at) => ({ query, before: sides[0][at], after: sides[1][at] }));
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
    byId("source").textContent = items.length ? "On the judgements in the list." : "On the newest examples gathered, which a version may have learned from: the promotion test above is on questions that were held out.";
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
  const searches = asked.map((query) => ({ query, k, projection, fields: [], title: true }));
  const { answers } = await batch(field("collection").value, searches, queries);
  return answers.map(({ hits }) => hits.map((hit) => ({ id: hit.id, title: hit.title, weight: hit.weight })));
}

function paint() {
  const place = byId("picture");
  byId("tools").hidden = !found.length;
  if (!found.length) return place.replaceChildren(h("p", { class: "quiet" }, "Write one query per line."));
  const names = ["before", "after"].map((name) => `Version ${field(name).value}`);
  const { query, before, after } = found[chosen];
  place.replaceChildren(slopes(before, after, names, place.clientWidth - PADDING));
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
    report = await get(of(field("collection").value, "projections", field("after").value));
    paintReport();
  });
}

function paintReport() {
  if (report) byId("report").replaceChildren(drawReport(report, byId("report").clientWidth));
}

function remember() {
  const { q, collection, before, after, n } = Object.fromEntries(new FormData(form));
  write({ q, collection, before, after, n: n === "10" ? "" : n });
}

function start() {
  const given = read();
  for (const name of ["q", "n", "collection"]) if (given[name]) field(name).value = given[name];
  for (const name of ["q", "n", "before"]) {
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
