// Recommending: pick what is liked and what is not, and see which of it put each entry there.

import { latest, of, post } from "./api.js";
import { bar, byId, h, tell } from "./dom.js";
import { number, percent, short } from "./format.js";
import { drawHit, fullBar } from "./hits.js";
import { queryOf } from "./queries.js";
import { read, reopenOnReturn, write } from "./state.js";
import { titlesOf } from "./titles.js";

const FOUND = 8;
const BECAUSE = 4;
const form = byId("recommend");
const field = (name) => form.elements[name];
const path = (...parts) => of(field("collection").value, ...parts);

let picked = new Map(); // id → true for liked, false for disliked
const names = new Map();

const look = latest(async () => {
  const query = field("q").value.trim();
  if (!query) return byId("found").replaceChildren();
  await tried(async () => {
    const asked = await queryOf(field("collection").value, query);
    const { hits } = await post(path("search"), { query: asked, k: FOUND, exclude_self: false, fields: [], title: true });
    byId("found").replaceChildren(...hits.map(candidate));
  });
});

function candidate(hit) {
  names.set(hit.id, hit.title);
  const choose = (likes, word) => h("button", { type: "button", "aria-label": `${word} ${short(names.get(hit.id), 60)}`, on: { click: () => pick(hit.id, likes) } }, word);
  return h("li", {}, h("span", { dir: "auto" }, short(names.get(hit.id), 70)), h("span", { class: "row marks" }, choose(true, "Like"), choose(false, "Dislike")));
}

function pick(id, likes) {
  picked.set(id, likes);
  changed();
}

function changed() {
  for (const [place, likes] of [["liked", true], ["disliked", false]]) {
    const chosen = [...picked].filter(([, each]) => each === likes).map(([id]) => chip(id));
    byId(place).replaceChildren(...(chosen.length ? chosen : [h("li", { class: "quiet" }, "nothing yet")]));
  }
  remember();
  ask();
}

function chip(id) {
  const drop = () => {
    picked.delete(id);
    changed();
  };
  return h("li", {}, h("button", { type: "button", "aria-label": `Forget ${nameOf(id)}`, on: { click: drop } }, h("span", { dir: "auto" }, short(nameOf(id), 50)), h("span", { "aria-hidden": "true" }, "×")));
}

const nameOf = (id) => names.get(id) ?? id;
const those = (likes) => [...picked].filter(([, each]) => each === likes).map(([id]) => id);

const ask = latest(async () => {
  byId("diversity-said").textContent = number(Number(field("diversity").value), 2);
  if (!those(true).length) return byId("results").replaceChildren(h("p", { class: "quiet" }, "Like at least one document."));
  await tried(async () => {
    const body = { positive: those(true), negative: those(false), diversity: Number(field("diversity").value), k: Number(field("k").value) || 10, title: true, explain: true, on_missing: "skip" };
    const { hits, missing } = await post(path("recommend"), body);
    const full = fullBar(hits.map((hit) => hit.weight));
    const items = hits.map((hit, rank) => drawHit(field("collection").value, hit, hit.weight, rank + 1, full, because(hit)));
    byId("results").replaceChildren(h("ol", { class: "hits", "aria-label": "Recommended" }, items));
    if (missing.length) throw new Error(`${missing.map(({ id }) => `“${short(id, 40)}”`).join(", ")}: no document has this id; the list is made without.`);
  });
});

/** The attention over the history that put an entry there. */
function because(hit) {
  const rows = (hit.because ?? []).slice(0, BECAUSE).map((each) =>
    h("li", {}, h("span", { class: "name", dir: "auto" }, short(each.id === undefined ? String(each.text ?? each.field ?? "") : nameOf(each.id), 60)), bar(each.weight), h("span", { class: "number" }, percent(each.weight))),
  );
  return rows.length ? h("div", { class: "because" }, h("p", { class: "label" }, "Because of"), h("ul", { class: "shares" }, rows)) : null;
}

function remember() {
  const list = (ids) => (ids.length ? JSON.stringify(ids) : "");
  const { diversity, k } = Object.fromEntries(new FormData(form));
  write({ collection: field("collection").value, like: list(those(true)), dislike: list(those(false)), diversity: diversity === "0" ? "" : diversity, k: k === "10" ? "" : k });
}

/** What the address names is looked up, so that it has its titles again. */
async function restore() {
  const given = read();
  for (const name of ["collection", "diversity", "k"]) if (given[name]) field(name).value = given[name];
  for (const [name, likes] of [["like", true], ["dislike", false]]) {
    for (const id of idsOf(given[name])) picked.set(id, likes);
  }
  await tried(async () => {
    for (const [id, title] of await titlesOf(field("collection").value, [...picked.keys()])) names.set(id, title);
  });
}

function idsOf(text) {
  try {
    const ids = JSON.parse(text ?? "[]");
    return Array.isArray(ids) ? ids.filter((id) => typeof id === "string") : [];
  } catch {
    return [];
  }
}

async function tried(work) {
  try {
    await work();
    tell(byId("status"), null);
  } catch (error) {
    tell(byId("status"), error);
  }
}

async function start() {
  await restore();
  field("q").addEventListener("input", look);
  for (const name of ["diversity", "k"]) {
    field(name).addEventListener("input", () => {
      remember();
      ask();
    });
  }
  field("collection").addEventListener("change", () => {
    picked = new Map();
    look();
    changed();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  reopenOnReturn();
  changed();
}

start();
