// One user: the history with its values, and what is recommended from it, each with its reasons.

import { get, of, post } from "./api.js";
import { bar, byId, h, tell, tried } from "./dom.js";
import { moment, percent, plural, short } from "./format.js";
import { drawHits, fullBar } from "./hits.js";
import { addressOf, read, reopenOnReturn } from "./state.js";
import { titlesOf } from "./titles.js";
import { shown } from "./values.js";

const LISTED = 50;
const RECOMMENDED = 10;
const BECAUSE = 3;
const { collection = "default", user = "" } = read();
const path = (...parts) => of(collection, ...parts);
const titles = new Map();

async function open() {
  document.title = `${short(user, 60)} · Attend`;
  document.querySelector("main h1").textContent = short(user, 120) || "User";
  try {
    // Users are for keys that may write; for another one the server refuses, and nothing is shown.
    const page = await interactions();
    const { items } = page;
    document.querySelector("main .lead").replaceChildren(...said(page));
    if (items.length) await recommend();
    await drawHistory(page);
    tell(byId("status"), null);
    byId("loaded").hidden = !items.length;
  } catch (error) {
    tell(byId("status"), error);
  }
}

const interactions = (cursor = "") => get(`${path("interactions")}?limit=${LISTED}&user=${encodeURIComponent(user)}${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`);

function said({ items, next, users }) {
  const home = h("a", { href: addressOf("/collection", { collection }) }, collection);
  if (!items.length) return [`No interactions of this user are stored in `, home, users ? `; ${plural(users, "other user")} interacted with its documents.` : "."];
  const many = next === null ? plural(items.length, "interaction") : `More than ${plural(items.length, "interaction")}`;
  return [`${many} in `, home, ". ", h("a", { href: addressOf("/recommend", { collection, user }) }, "Pick and leave out")];
}

async function drawHistory({ items, next }) {
  await learnTitles(items.map((each) => each.id));
  const cell = (label, content, kind) => h("td", { "data-label": label, class: kind }, content);
  const rows = items.map(({ id, value, time }) =>
    h("tr", {}, h("th", { scope: "row", dir: "auto" }, linkTo(id)), cell("Value", value === null ? "–" : shown(value), "number"), cell("Time", time === null ? "–" : moment(time))));
  byId("history").append(...rows);
  const more = h("button", { type: "button", on: { click: () => tried("history", async () => drawHistory(await interactions(next))) } }, "More");
  byId("pages").replaceChildren(...(next === null ? [] : [more]));
}

async function recommend() {
  const asked = { user, k: RECOMMENDED, title: true, explain: true, on_missing: "skip" };
  const { hits } = await post(path("recommend"), asked);
  await learnTitles(hits.flatMap((hit) => (hit.because ?? []).slice(0, BECAUSE).map((each) => each.id)));
  const full = fullBar(hits.map((hit) => hit.weight));
  byId("scale").textContent = hits.length ? `A full bar is ${percent(full)} of the weight.` : "Nothing is recommended from this history.";
  drawHits(byId("results"), "Recommended", hits.map((hit, rank) => ({ collection, hit, weight: hit.weight, rank: rank + 1, full, extra: because(hit) })));
}

/** The documents of the history that put an entry there. */
function because(hit) {
  const rows = (hit.because ?? []).slice(0, BECAUSE).filter(({ id }) => id !== undefined).map(({ id, weight }) =>
    h("li", {}, h("span", { class: "name", dir: "auto" }, short(titles.get(id) ?? id, 60)), bar(weight), h("span", { class: "number" }, percent(weight))));
  return rows.length ? h("div", { class: "because" }, h("p", { class: "label" }, "Because of"), h("ul", { class: "shares" }, rows)) : null;
}

async function learnTitles(ids) {
  const unknown = ids.filter((id) => id !== undefined && !titles.has(id));
  for (const [id, title] of await titlesOf(collection, unknown)) titles.set(id, title);
}

const linkTo = (id) => h("a", { href: addressOf("/document", { collection, id }) }, short(titles.get(id) ?? id, 80));

reopenOnReturn();
open();
