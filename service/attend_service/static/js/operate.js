// Operating: collections, jobs, and where the time of a search goes, as it goes.

import { get, of, text } from "./api.js";
import { bar, byId, h, tell } from "./dom.js";
import { bytes, count, moment, number, percent, seconds } from "./format.js";
import { drawJob, isOver } from "./jobs.js";
import { figure, parse, quantiles } from "./prometheus.js";
import { addressOf } from "./state.js";
import { learnedFromUse } from "./versions.js";

const EVERY = 3000;
const KEPT = 20; // readings: the last minute
const JOBS = 10;
const COLUMNS = ["Documents", "Keys", "On disk", "Index", "Unmerged keys", "Revision", "Version"];
const STAGES = { queue: "waiting for the model", tokenise: "cutting into tokens", encode: "encoding", search: "finding candidates", attend: "weighing them", fetch: "reading values" };

const readings = []; // {at, samples}: when each was made, in seconds
const results = new Map(); // id of a job that is over → what came of it

async function look() {
  try {
    const [{ collections }, { jobs }, metrics] = await Promise.all([get("/v1/collections"), get("/v1/jobs"), figures()]);
    const latest = jobs.slice(0, JOBS);
    const [infos] = await Promise.all([Promise.all(collections.slice(0, 50).map(info)), ...latest.map(learnResult)]);
    const stories = await Promise.all(infos.filter((each) => each.used).map(storyOf));
    tell(byId("status"), null, "look");
    drawCollections(infos, metrics);
    byId("learned").replaceChildren(...stories.filter(Boolean));
    byId("jobs").replaceChildren(...(latest.length ? latest.map(jobOf) : [h("p", { class: "quiet" }, "No trainings yet.")]));
    if (metrics) drawLatency(metrics);
    byId("loaded").hidden = false;
  } catch (error) {
    tell(byId("status"), error, "look");
  }
}

/** Figures are for keys of the whole server; without them the rest is shown all the same. */
async function figures() {
  try {
    const samples = parse(await text("/metrics"));
    readings.push({ at: performance.now() / 1000, samples });
    if (readings.length > KEPT) readings.shift();
    return samples;
  } catch {
    return null;
  }
}

async function info(summary) {
  if (summary.error) return summary;
  try {
    return await get(of(summary.name));
  } catch (error) {
    return { name: summary.name, error: error.message };
  }
}

/** What trainings by use have changed in a collection that logs its searches; empty where they have changed nothing. */
async function storyOf({ name }) {
  const { learned } = await get(of(name, "projections")).catch(() => ({}));
  const sentence = learned ? learnedFromUse(learned) : "";
  return sentence && h("p", { class: "quiet" }, h("a", { href: addressOf("/compare", { collection: name }) }, name), `: ${sentence}`);
}

async function learnResult({ id, state }) {
  if (state !== "done" || results.has(id)) return;
  // One that was deleted meanwhile has none.
  results.set(id, (await get(`/v1/jobs/${id}`).catch(() => ({ result: null }))).result);
}

/** A job, when it began, how long it took, and the version that it made. */
function jobOf(job) {
  const began = Date.parse(job.started ?? job.created) / 1000;
  const took = isOver(job) && job.started && job.finished ? seconds((Date.parse(job.finished) - Date.parse(job.started)) / 1000) : null;
  const result = results.get(job.id);
  const version = result?.version ? `version ${result.version}${result.promoted ? "" : ", not promoted"}` : null;
  const line = [`${moment(Math.floor(began))} UTC`, took, version].filter(Boolean).join(" · ");
  return h("div", {}, drawJob(job, (error) => tell(byId("status"), error)), h("p", { class: "quiet" }, line));
}

function drawCollections(infos, metrics) {
  const rows = infos.map((each) => {
    const link = h("th", { scope: "row" }, h("a", { href: `/collection?collection=${encodeURIComponent(each.name)}` }, each.name));
    if (each.error) return h("tr", {}, link, h("td", { class: "bad", colspan: 7 }, each.error));
    const of_ = { collection: each.name };
    const size = metrics ? (figure(metrics, "attend_database_bytes", of_) ?? 0) + (figure(metrics, "attend_index_bytes", of_) ?? 0) : null;
    const recall = each.index.exact ? "exact" : `recall ${percent(Number(each.index.recall ?? 0))}`;
    const cells = [count(each.documents), count(each.keys), size === null ? "–" : bytes(size), `${each.index.type}, ${recall}`, count(each.index.fresh ?? 0), count(each.generation), `${each.projection}`];
    return h("tr", {}, link, cells.map((cell, at) => h("td", { class: "number", "data-label": COLUMNS[at] }, cell)));
  });
  byId("collections").replaceChildren(...rows);
}

function drawLatency(now) {
  const then = readings.length > 1 ? readings[0] : null;
  const [stages, since] = stagesOf(now, then?.samples);
  const whole = stages.reduce((sum, each) => sum + each.spent, 0) || 1;
  const order = Object.keys(STAGES);
  stages.sort((a, b) => order.indexOf(a.value) - order.indexOf(b.value));
  const rows = stages.map(({ value, total, spent, quantiles: [half, most] }) =>
    h("tr", {},
      h("th", { scope: "row" }, value, h("span", { class: "quiet" }, h("br"), STAGES[value] ?? "")),
      h("td", { class: "wide", "data-label": "Share" }, bar(spent / whole), percent(spent / whole)),
      ...[["p50", seconds(half ?? 0)], ["p95", seconds(most ?? 0)], ["Searches", count(total)]].map(([label, cell]) => h("td", { class: "number", "data-label": label }, cell))),
  );
  byId("stages").replaceChildren(...rows);
  byId("since").textContent = stages.length ? since : "";
  byId("latency-none").hidden = stages.length > 0;
  const hits = figure(now, "attend_cache_hits_total") ?? 0;
  const told = {
    "Collections": number(figure(now, "attend_collections") ?? 0),
    "Searches a minute": rate(now, then),
    "Requests waiting": number(figure(now, "attend_queue_length") ?? 0),
    "Requests rejected": number(figure(now, "attend_queue_refused_total") ?? 0),
    "Answered from cache": percent(hits / Math.max(1, hits + (figure(now, "attend_cache_misses_total") ?? 0))),
    "Memory": bytes(figure(now, "process_resident_memory_bytes") ?? 0),
  };
  byId("figures").replaceChildren(...Object.entries(told).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** Searches a minute: since the first reading of this page, and on the first one since the start. */
function rate(now, then) {
  const searches = quantiles(now, "attend_request_seconds", "route", [], then?.samples).filter((each) => each.value.includes("search"));
  const total = searches.reduce((sum, each) => sum + each.total, 0);
  if (then) return number((total * 60) / (readings.at(-1).at - then.at), 2);
  const start = figure(now, "process_start_time_seconds"); // absent where several processes serve
  return start === undefined ? "–" : number((total * 60) / Math.max(60, Date.now() / 1000 - start), 2);
}

/** What was searched in the last minute, or else since the server started; and which of them it is. */
function stagesOf(now, then) {
  const spent = (samples, stage) => (samples && figure(samples, "attend_stage_seconds_sum", { stage })) ?? 0;
  const of_ = (earlier) =>
    quantiles(now, "attend_stage_seconds", "stage", [0.5, 0.95], earlier).filter((each) => each.total)
      .map((each) => ({ ...each, spent: spent(now, each.value) - spent(earlier, each.value) }));
  const recent = then ? of_(then) : [];
  if (recent.length) return [recent, "In the last minute."];
  return [of_(null), `Since the server started${then ? "; no searches in the last minute" : ""}.`];
}

async function go() {
  for (;;) {
    if (!document.hidden) await look();
    await new Promise((done) => setTimeout(done, EVERY));
  }
}

go();
