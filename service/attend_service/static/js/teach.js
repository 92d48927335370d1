// Teaching: say what is relevant, see what was said, train on it, promote or roll back.

import { del, get, latest, of, post } from "./api.js";
import { byId, h, tell, tried } from "./dom.js";
import { number, plural, short } from "./format.js";
import { drawHits } from "./hits.js";
import { drawJob, follow, isOver } from "./jobs.js";
import { drawReport } from "./report.js";
import { explain, queryOf } from "./queries.js";
import { addressOf, read, reopenOnReturn, write } from "./state.js";
import { titlesOf } from "./titles.js";
import { versionName } from "./versions.js";

const K = 20;
const PAGE = 30;
const ENOUGH = 200; // queries
const form = byId("teach");
const field = (name) => form.elements[name];
const path = (...parts) => of(field("collection").value, ...parts);

let answer = null;
let asked = null; // the query of it, as the API takes it
let said = new Map(); // document → label, of the query that is shown
let at = 0;
let known = null;

const remember = () => write({ collection: field("collection").value, q: field("q").value });

const ask = latest(async () => {
  const query = field("q").value.trim();
  if (!query) return byId("results").replaceChildren();
  await tried("search", async () => {
    asked = await queryOf(field("collection").value, query);
    answer = await post(path("search"), { query: asked, k: K, highlight: true, title: true });
    said = await judged(query);
    at = 0;
    paint();
  });
});

/** What was said of this query before, as far as the newest thousand examples go back. */
async function judged(query) {
  known ??= (await get(`${path("feedback")}?limit=1000`)).items;
  return new Map(known.filter((each) => each.query === query).map((each) => [each.document, Math.sign(each.label) > 0 ? 1 : 0]));
}

function paint() {
  const items = answer.hits.map((hit, rank) => {
    const more = { tabindex: rank === at ? 0 : -1, "data-said": said.get(hit.id) ?? "", onFocus: () => move(rank, false) };
    return { collection: field("collection").value, hit, weight: hit.weight, rank: rank + 1, extra: marks(hit, rank), more };
  });
  drawHits(byId("results"), "Documents to judge", items);
}

function marks(hit, rank) {
  const button = (label, word) =>
    h("button", { type: "button", "aria-pressed": String(said.get(hit.id) === label), on: { click: () => judge(rank, label) } }, word);
  return h("div", { class: "row marks" }, button(1, "Relevant"), button(0, "Not relevant"));
}

/** One judgement is stored at once; said again, it is taken back. */
async function judge(rank, label) {
  const { id, title } = answer.hits[rank];
  const query = field("q").value.trim();
  await act(async () => {
    if (said.get(id) === label) {
      await forget(id, query);
      said.delete(id);
    } else {
      await post(path("feedback"), { items: [{ query: asked, id, label, position: rank + 1, source: "page" }] });
      said.set(id, label);
    }
    at = rank;
    known = null;
    const within = byId("results").contains(document.activeElement);
    paint();
    if (within) items()[rank].focus();
    byId("said").textContent = `${short(title, 40)}: ${said.has(id) ? (label ? "relevant" : "not relevant") : "not judged"}`;
    examples();
  });
}

async function forget(id, query) {
  const { items: stored } = await get(`${path("feedback")}?limit=1000`);
  const ids = stored.filter((each) => each.document === id && each.query === query).map((each) => each.id);
  if (ids.length) await del(path("feedback"), { ids });
}

const items = () => [...byId("results").querySelectorAll(".hits > li")];

function move(rank, focus = true) {
  const all = items();
  at = Math.max(0, Math.min(all.length - 1, rank));
  all.forEach((item, place) => (item.tabIndex = place === at ? 0 : -1));
  if (focus) all[at]?.focus();
}

const KEYS = {
  ArrowDown: () => move(at + 1),
  j: () => move(at + 1),
  ArrowUp: () => move(at - 1),
  k: () => move(at - 1),
  y: () => judge(at, 1),
  "+": () => judge(at, 1),
  n: () => judge(at, 0),
  "-": () => judge(at, 0),
};

function onKey(event) {
  const key = KEYS[event.key];
  if (!key || event.ctrlKey || event.metaKey || event.altKey || !answer) return;
  event.preventDefault();
  key();
}

async function examples(before = null) {
  await tried("examples", async () => {
    const page = before === null ? "" : `&before=${before}`;
    const found = await get(`${path("feedback")}?limit=${PAGE}${page}`);
    byId("count").textContent = `${plural(found.examples, "example")} of ${plural(found.questions, "query", "queries")}${found.questions < ENOUGH ? `; about ${ENOUGH} queries usually prove a gain` : ""}`;
    const titles = await titlesOf(field("collection").value, found.items.map((each) => each.document));
    const rows = found.items.map((each) => row(each, titles.get(each.document) ?? each.document));
    const body = byId("examples").querySelector("tbody");
    if (before === null) body.replaceChildren(...rows);
    else body.append(...rows);
    const more = byId("more");
    more.hidden = found.next === null;
    more.onclick = () => examples(found.next);
  });
}

function row(example, title) {
  const remove = async () => {
    await act(() => del(path("feedback"), { ids: [example.id] }));
    known = null;
    examples();
    ask();
  };
  const query = example.query ?? "a vector";
  const word = example.label > 0 ? `relevant${example.label === 1 ? "" : ` (${number(example.label)})`}` : "not relevant";
  const gone = h("button", { type: "button", class: "plain", "aria-label": `Delete ${short(query, 40)}, ${short(title, 40)}`, on: { click: remove } }, "Delete");
  return h("tr", {}, h("td", { dir: "auto" }, short(query, 80)), h("td", { dir: "auto" }, short(title, 60)), h("td", { class: example.label > 0 ? "good" : "bad" }, word), h("td", {}, gone));
}

async function versions() {
  await tried("versions", async () => {
    const { active, projections } = await get(path("projections"));
    const rows = [...projections].reverse().map((each) => version(each, active));
    byId("versions").replaceChildren(...rows);
    byId("back").disabled = projections.find((each) => each.version === active)?.parent === null;
    byId("back").hidden = false;
  });
}

function version(each, active) {
  const isActive = each.version === active;
  const kept = each.report.kept === true;
  const promote = () => change(() => post(`${path("projections", each.version, "activate")}?force=${kept}`));
  return h(
    "li",
    {},
    h("div", {}, h("strong", {}, `Version ${each.version}`), ` ${versionName(each).split(", ")[1]}`, h("br"), h("span", { class: "quiet" }, new Date(each.created).toLocaleString())),
    isActive ? h("span", { class: "chip" }, "in use") : h("button", { type: "button", on: { click: promote } }, kept ? "Use it all the same" : "Promote"),
  );
}

async function change(what) {
  await act(what);
  await versions();
  dispatchEvent(new Event("attend-version"));
  if (field("q").value) ask();
}

async function train() {
  await act(async () => {
    const job = await post(path("train"), { promote: byId("promote").checked });
    await watch(job.id);
  });
}

async function watch(id) {
  byId("train").disabled = true;
  try {
    const job = await follow(id, (now) => byId("job").replaceChildren(drawJob(now, (error) => tell(byId("status"), error))));
    if (job.result) byId("job").append(drawReport({ version: job.result.version ?? "", report: job.result }, byId("job").clientWidth), next(job.result));
    await change(async () => {});
  } finally {
    byId("train").disabled = false;
  }
}

/** What can be done after a training, so that its end is not the end. */
function next({ promoted, version }) {
  const collection = field("collection").value;
  const label = h("button", { type: "button", on: { click: () => field("q").focus() } }, "Label more queries");
  const compare = version === null ? null : h("a", { class: "button", href: addressOf("/compare", { collection, after: version }) }, "Compare the versions");
  const search = promoted ? h("a", { class: "button", href: addressOf("/search", { collection, q: field("q").value }) }, "Search with it") : null;
  const hint = promoted ? null : h("p", { class: "quiet" }, "Searches answer as before. What was learned is kept until the next training: you can compare it, and use it all the same.");
  return h("div", {}, hint, h("div", { class: "row" }, promoted ? null : label, search, compare));
}

/** A training that runs already is gone on with. */
async function running() {
  await tried("running", async () => {
    const { jobs } = await get("/v1/jobs");
    const job = jobs.find((each) => each.collection === field("collection").value && !isOver(each));
    if (job) watch(job.id);
  });
}

/** What somebody does, and not what the view reads by itself: what was told before is over. */
function act(work) {
  tell(byId("status"), null);
  return tried("act", work);
}

function open() {
  known = null;
  remember();
  explain(field("q"), field("collection").value, "A query people ask");
  byId("job").replaceChildren();
  examples();
  versions();
  running();
  ask();
}

function start() {
  const given = read();
  for (const name of ["collection", "q"]) if (given[name]) field(name).value = given[name];
  field("q").addEventListener("input", () => {
    remember();
    ask();
  });
  field("collection").addEventListener("change", open);
  form.addEventListener("submit", (event) => event.preventDefault());
  byId("results").addEventListener("keydown", onKey);
  byId("train").addEventListener("click", train);
  byId("back").addEventListener("click", () => change(() => post(path("projections", "rollback"))));
  reopenOnReturn();
  open();
}

start();
