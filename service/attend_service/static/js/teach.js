// Teaching: judge documents, see what a judgement changes, train on all of them, promote or roll back.

import { del, get, latest, of, post } from "./api.js";
import { bar, byId, h, tell, tried } from "./dom.js";
import { number, percent, plural, short } from "./format.js";
import { drawHits } from "./hits.js";
import { draw, html } from "./html.js";
import { drawJob, follow, isOver } from "./jobs.js";
import { Judgements, NOT_RELEVANT, RELEVANT, effectChip, judgeButtons } from "./judge.js";
import { drawReport } from "./report.js";
import { explain, queryOf } from "./queries.js";
import { addressOf, read, reopenOnReturn, write } from "./state.js";
import { titlesOf } from "./titles.js";
import { leastSure } from "./unsure.js";
import { versionName } from "./versions.js";

const K = 20;
const FIRST = 5; // hits that are shown before "More"
const PAGE = 10; // stored judgements
const ENOUGH = 200; // questions, from which most gains can be proved
const OFFERED = 3; // questions to judge next
const form = byId("teach");
const field = (name) => form.elements[name];
const path = (...parts) => of(field("collection").value, ...parts);

let judgements = null;
let answer = null;
let effects = new Map(); // document → what feedback did to it
let shown = FIRST;
let current = null; // the id of the hit that keys judge
let unsure = []; // questions to judge next, the least sure first

const remember = () => write({ collection: field("collection").value, q: field("q").value });

const ask = latest(async () => {
  const query = field("q").value.trim();
  const collection = field("collection").value;
  if (!query) {
    judgements = answer = null;
    paint();
    return;
  }
  await tried("search", async () => {
    if (judgements?.line !== query || judgements.collection !== collection) {
      const opened = new Judgements(collection, await queryOf(collection, query));
      opened.line = query;
      await opened.read();
      judgements = opened;
      current = null;
      shown = FIRST;
      byId("said").textContent = "";
    }
    ({ answer, effects } = await judgements.ask({ k: K, highlight: true, title: true }));
    paint();
  });
  form.removeAttribute("aria-busy");
});

/** The hits that are shown: the first ones, and those further down that are judged. */
function listed() {
  return answer ? answer.hits.map((hit, rank) => ({ hit, rank })).filter(({ hit, rank }) => rank < shown || judgements.labels.has(hit.id)) : [];
}

function paint() {
  const rows = listed();
  if (!rows.some(({ hit }) => hit.id === current)) current = rows[0]?.hit.id ?? null;
  const items = rows.map(({ hit, rank }) => {
    const more = { tabindex: hit.id === current ? 0 : -1, "data-said": judgements.labels.get(hit.id) ?? "", onFocus: () => (current = hit.id) };
    const extra = html`<div class="judged">${judgeButtons(hit, judgements, rank + 1, judged)}${effectChip(effects.get(hit.id), hit.weight)}</div>`;
    return { collection: field("collection").value, hit, weight: hit.weight, rank: rank + 1, extra, more };
  });
  keepFocus(() => drawHits(byId("results"), "Documents to judge", items));
  byId("keys").hidden = !items.length;
  byId("wider").hidden = !answer || shown >= answer.hits.length || answer.hits.length <= FIRST;
  const others = rows.filter(({ hit, rank }) => rank < shown && !judgements.labels.has(hit.id));
  byId("others").hidden = !others.length || ![...(judgements?.labels.values() ?? [])].includes(RELEVANT);
  byId("others").textContent = others.length === 1 ? "The other one is not relevant" : `The other ${others.length} are not relevant`;
  drawNext();
}

/** Draw, and leave the focus where it was: an element that is moved loses it. */
function keepFocus(drawing) {
  const focused = byId("results").contains(document.activeElement) ? document.activeElement : null;
  drawing();
  if (!focused?.isConnected || document.activeElement === focused) return;
  focused.focus({ preventScroll: true });
  focused.scrollIntoView({ block: "nearest" });
}

/** What follows a judgement: the query is asked again, and the list moves. */
async function judged(error, hit, label) {
  await act(async () => {
    if (error) throw error;
    current = hit.id;
    await ask();
    const word = judgements.labels.has(hit.id) ? (label === RELEVANT ? "relevant" : "not relevant") : "not judged";
    byId("said").textContent = `${short(hit.title, 40)}: ${word}. ${changed(hit.id)}`;
    gathered();
  });
}

/** What the feedback of this query changes now, in a sentence. */
function changed(id) {
  const effect = effects.get(id);
  const moved = [...effects.values()].filter(({ rank, without }) => rank !== without.rank).length;
  if (effect && effect.rank !== effect.without.rank) return `It is at place ${effect.rank + 1} and was ${effect.without.weight ? `at ${effect.without.rank + 1}` : `below ${effect.without.rank}`} without feedback.`;
  const [now, before] = effect ? [percent(answer.hits[effect.rank].weight), percent(effect.without.weight)] : [];
  if (now !== before) return `Its weight is ${now} and was ${before} without feedback.`;
  return moved ? `Feedback moves ${plural(moved, "document")}.` : "The answer stays as it was.";
}

function judgeBy(label) {
  const place = answer.hits.findIndex((hit) => hit.id === current);
  if (place < 0) return;
  const hit = answer.hits[place];
  judgements.toggle(hit.id, label, place + 1).then(() => judged(null, hit, label), (error) => judged(error, hit, label));
}

async function judgeOthers() {
  const rows = listed().filter(({ hit, rank }) => rank < shown && !judgements.labels.has(hit.id));
  const items = rows.map(({ hit, rank }) => ({ id: hit.id, label: NOT_RELEVANT, position: rank + 1 }));
  await act(async () => {
    await judgements.store(items);
    await ask();
    byId("said").textContent = `${plural(items.length, "document")} judged not relevant.`;
    gathered();
  });
}

function move(step) {
  const rows = listed();
  const place = rows.findIndex(({ hit }) => hit.id === current);
  current = rows[Math.max(0, Math.min(rows.length - 1, place + step))]?.hit.id ?? null;
  paint();
  [...byId("results").querySelectorAll(".hits > li")].find((item) => item.dataset.id === current)?.focus();
}

const KEYS = {
  ArrowDown: () => move(1),
  j: () => move(1),
  ArrowUp: () => move(-1),
  k: () => move(-1),
  y: () => judgeBy(RELEVANT),
  "+": () => judgeBy(RELEVANT),
  n: () => judgeBy(NOT_RELEVANT),
  "-": () => judgeBy(NOT_RELEVANT),
};

function onKey(event) {
  const key = KEYS[event.key];
  if (!key || event.ctrlKey || event.metaKey || event.altKey || !answer) return;
  event.preventDefault();
  key();
}

// -- the question to judge next --------------------------------------------------------------

/** Look for the questions whose answers are least sure; without any the place stays empty. */
async function offer() {
  const collection = field("collection").value;
  const questions = await leastSure(collection).catch(() => []);
  if (field("collection").value !== collection) return;
  unsure = questions;
  drawNext();
}

function drawNext() {
  const rows = unsure.filter(({ query }) => query !== field("q").value.trim()).slice(0, OFFERED);
  byId("next").hidden = !rows.length;
  draw(byId("unsure"), html`<ul class="unsure">${rows.map(({ query, weights }) => html`<li key=${query}>
    <button type="button" dir="auto" onClick=${() => goOn(query)}>${short(query, 70)}</button>
    <span class="quiet">best two ${percent(weights[0])} and ${percent(weights[1])}</span>
  </li>`)}</ul>`);
}

function goOn(query) {
  field("q").value = query;
  unsure = unsure.filter((each) => each.query !== query);
  remember();
  ask().then(() => byId("results").querySelector(".hits > li")?.focus());
}

// -- what is stored --------------------------------------------------------------------------

/** How far the stored judgements are on the way to a gain that can be proved. */
async function gathered() {
  await tried("examples", async () => {
    const open = byId("stored").open;
    const page = await get(`${path("feedback")}?limit=${open ? PAGE : 1}`);
    const missing = page.needed - page.relevant;
    const goal = estimate ?? ENOUGH;
    byId("count").textContent = `${plural(page.relevant, "question")} of about ${goal} that ${estimate ? "would prove the gain measured last" : "usually prove a gain"}`;
    byId("far").replaceChildren(bar(page.relevant / goal));
    byId("far").setAttribute("aria-valuemax", goal);
    byId("far").setAttribute("aria-valuenow", Math.min(goal, page.relevant));
    byId("missing").textContent = missing > 0 ? `Training begins at ${page.needed}: ${plural(missing, "question")} with a relevant document to go.` : "";
    byId("missing").hidden = missing <= 0;
    byId("train").disabled = missing > 0 || Boolean(running);
    byId("train").classList.toggle("main", missing <= 0);
    byId("stored-count").textContent = `Stored judgements (${page.examples})`;
    if (open) await examples(page);
  });
}

/** A page of the stored judgements; `before` is the cursor of it. */
async function examples(page, before = null) {
  const { items, next } = page ?? (await get(`${path("feedback")}?limit=${PAGE}&before=${before}`));
  const titles = await titlesOf(field("collection").value, items.map(({ document }) => document));
  const rows = items.map((example) => row(example, titles.get(example.document) ?? example.document));
  byId("examples").querySelector("tbody").replaceChildren(...rows);
  byId("older").hidden = next === null;
  byId("older").onclick = () => tried("examples", () => examples(null, next));
  byId("newest").hidden = before === null;
}

function row(example, title) {
  const remove = () =>
    act(async () => {
      await del(path("feedback"), { ids: [example.id] });
      judgements = null;
      await gathered();
      await ask();
    });
  const query = example.query ?? "a vector";
  const word = example.label > 0 ? `relevant${example.label === 1 ? "" : ` (${number(example.label)})`}` : "not relevant";
  const gone = h("button", { type: "button", class: "plain", "aria-label": `Delete ${short(query, 40)}, ${short(title, 40)}`, on: { click: remove } }, "Delete");
  return h("tr", {}, h("td", { dir: "auto" }, short(query, 80)), h("td", { dir: "auto" }, short(title, 60)), h("td", { class: example.label > 0 ? "good" : "bad" }, word), h("td", {}, gone));
}

// -- versions and trainings ------------------------------------------------------------------

let running = null; // the id of the training that runs
let estimate = null; // questions that would prove the gain of the newest version, where the server can tell

async function versions() {
  await tried("versions", async () => {
    const { active, projections } = await get(path("projections"));
    const { questions, more } = projections.findLast(({ role }) => role === "search")?.evidence ?? {};
    estimate = more ? questions + more : null;
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
    h("div", {}, h("strong", {}, `Version ${each.version}`), ` ${versionName({ ...each, active: false }).split(", ").slice(1).join(", ")}`, h("br"), h("span", { class: "quiet" }, new Date(each.created).toLocaleString())),
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
  byId("train").disabled = true;
  await act(async () => {
    const job = await post(path("train"), { promote: byId("promote").checked });
    await watch(job.id);
  });
  if (!running) gathered();
}

/** Follow a training: its progress stands in the bar, its result in the page. */
async function watch(id) {
  running = id;
  byId("train").disabled = true;
  byId("bar").dataset.running = "true";
  byId("report").replaceChildren();
  try {
    const job = await follow(id, (now) => byId("job").replaceChildren(drawJob(now, (error) => tell(byId("status"), error))));
    if (job.result) {
      byId("report").replaceChildren(drawReport({ version: job.result.version ?? "", report: job.result }, byId("report").clientWidth), next(job.result));
      byId("report").scrollIntoView({ block: "nearest" });
    }
    await change(async () => {});
  } finally {
    running = null;
    delete byId("bar").dataset.running;
    await gathered();
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
async function resume() {
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
  judgements = null;
  unsure = [];
  remember();
  explain(field("q"), field("collection").value, "A query people ask");
  byId("job").replaceChildren();
  byId("report").replaceChildren();
  versions().then(gathered);
  resume();
  ask().then(offer);
}

function start() {
  const query = read();
  for (const name of ["collection", "q"]) if (query[name]) field(name).value = query[name];
  field("q").addEventListener("input", () => {
    remember();
    ask();
  });
  field("collection").addEventListener("change", open);
  form.addEventListener("submit", (event) => event.preventDefault());
  byId("results").addEventListener("keydown", onKey);
  byId("wider").addEventListener("click", () => {
    shown = K;
    paint();
  });
  byId("others").addEventListener("click", judgeOthers);
  byId("stored").addEventListener("toggle", () => byId("stored").open && gathered());
  byId("newest").addEventListener("click", gathered);
  byId("train").addEventListener("click", train);
  byId("back").addEventListener("click", () => change(() => post(path("projections", "rollback"))));
  reopenOnReturn();
  open();
}

start();
