// Operating: collections, jobs, and where the time of a search goes, as it goes.

import { get, of, text } from "./api.js";
import { bar, byId, h, tell } from "./dom.js";
import { bytes, count, number, percent, seconds } from "./format.js";
import { drawJob } from "./jobs.js";
import { figure, parse, quantiles } from "./prometheus.js";

const EVERY = 3000;
const KEPT = 20; // readings: the last minute
const STAGES = { queue: "waiting for the model", tokenise: "cutting into tokens", encode: "encoding", search: "finding candidates", attend: "weighing them", fetch: "reading values" };

const readings = [];

async function look() {
  try {
    const [{ collections }, { jobs }, metrics] = await Promise.all([get("/v1/collections"), get("/v1/jobs"), figures()]);
    const infos = await Promise.all(collections.slice(0, 50).map(info));
    tell(byId("status"), null, "look");
    drawCollections(infos, metrics);
    byId("jobs").replaceChildren(...(jobs.length ? jobs.slice(0, 10).map((job) => drawJob(job, (error) => tell(byId("status"), error))) : [h("p", { class: "quiet" }, "No trainings yet.")]));
    if (metrics) drawLatency(metrics);
  } catch (error) {
    tell(byId("status"), error, "look");
  }
}

/** Figures are for keys of the whole server; without them the rest is shown all the same. */
async function figures() {
  try {
    const samples = parse(await text("/metrics"));
    readings.push(samples);
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

function drawCollections(infos, metrics) {
  const rows = infos.map((each) => {
    const link = h("th", { scope: "row" }, h("a", { href: `/search?collection=${encodeURIComponent(each.name)}` }, each.name));
    if (each.error) return h("tr", {}, link, h("td", { class: "bad", colspan: 7 }, each.error));
    const of_ = { collection: each.name };
    const size = metrics ? (figure(metrics, "attend_database_bytes", of_) ?? 0) + (figure(metrics, "attend_index_bytes", of_) ?? 0) : null;
    const recall = each.index.exact ? "exact" : `recall ${percent(Number(each.index.recall ?? 0))}`;
    const cells = [count(each.documents), count(each.keys), size === null ? "–" : bytes(size), `${each.index.type}, ${recall}`, count(each.index.fresh ?? 0), count(each.generation), `${each.projection}`];
    return h("tr", {}, link, cells.map((cell) => h("td", { class: "number" }, cell)));
  });
  byId("collections").replaceChildren(...rows);
}

function drawLatency(now) {
  const then = readings[0] === now ? null : readings[0];
  const [stages, since] = stagesOf(now, then);
  const most = Math.max(...stages.map((each) => each.quantiles[1] ?? 0), 1e-9);
  const order = Object.keys(STAGES);
  stages.sort((a, b) => order.indexOf(a.value) - order.indexOf(b.value));
  const rows = stages.map(({ value, total, quantiles: [half, most95] }) =>
    h("tr", {},
      h("th", { scope: "row" }, value, h("br"), h("span", { class: "quiet" }, STAGES[value] ?? "")),
      h("td", { class: "wide" }, bar((half ?? 0) / most)),
      h("td", { class: "number" }, seconds(half ?? 0)), h("td", { class: "number" }, seconds(most95 ?? 0)), h("td", { class: "number" }, count(total))),
  );
  byId("stages").replaceChildren(...rows);
  byId("since").textContent = stages.length ? since : "";
  byId("latency-none").hidden = stages.length > 0;
  const searches = quantiles(now, "attend_request_seconds", "route", [0.5, 0.95], then).filter((each) => each.value.includes("search"));
  const recent = searches.reduce((sum, each) => sum + each.total, 0);
  const hits = figure(now, "attend_cache_hits_total") ?? 0;
  const told = {
    "Collections": number(figure(now, "attend_collections") ?? 0),
    "Searches in the last minute": then ? number(recent) : "…",
    "Requests waiting": number(figure(now, "attend_queue_length") ?? 0),
    "Requests rejected": number(figure(now, "attend_queue_refused_total") ?? 0),
    "Answered from cache": percent(hits / Math.max(1, hits + (figure(now, "attend_cache_misses_total") ?? 0))),
    "Memory": bytes(figure(now, "process_resident_memory_bytes") ?? 0),
  };
  byId("figures").replaceChildren(...Object.entries(told).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** What was searched in the last minute, or else since the server started; and which of them it is. */
function stagesOf(now, then) {
  const of_ = (earlier) => quantiles(now, "attend_stage_seconds", "stage", [0.5, 0.95], earlier).filter((each) => each.total);
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
