// Recommending: pick what is liked and what is not, and see which of it put each entry there.

import { get, latest, of, post } from "./api.js";
import { bar, byId, h, tried } from "./dom.js";
import { number, percent, plural, short } from "./format.js";
import { drawHits, fullBar } from "./hits.js";
import { queryOf } from "./queries.js";
import { addressOf, read, reopenOnReturn, write } from "./state.js";
import { titlesOf } from "./titles.js";
import { plain } from "./values.js";

const FOUND = 8;
const BECAUSE = 4;
const LOOKED = 1000; // interactions whose users are offered
const HISTORY = 60; // interactions of a user that are shown
const form = byId("recommend");
const field = (name) => form.elements[name];
const path = (...parts) => of(field("collection").value, ...parts);

let picked = new Map(); // id → true for liked, false for disliked
const names = new Map();

/** Offer the users whose interactions are stored, those with most first; none, no field. */
async function offerUsers() {
  byId("as-user").hidden = true;
  byId("users").replaceChildren();
  // Who the users are is for keys that may write; without one, documents are picked by hand.
  const page = await get(`${path("interactions")}?limit=${LOOKED}`).catch(() => null);
  if (!page?.interactions) return;
  const counts = new Map();
  for (const { user } of page.items) counts.set(user, (counts.get(user) ?? 0) + 1);
  const users = [...counts].sort((a, b) => b[1] - a[1]);
  byId("users").replaceChildren(...users.map(([user]) => h("option", { value: user })));
  byId("users-said").textContent = `${plural(page.users, "user")} with ${plural(page.interactions, "interaction")}`;
  byId("as-user").hidden = false;
}

/** Show what the user interacted with, each with its value. */
const showHistory = latest(async () => {
  const user = field("user").value;
  const place = byId("history");
  if (!user) return place.replaceChildren();
  await tried("history", async () => {
    const { items } = await get(`${path("interactions")}?limit=${HISTORY + 1}&user=${encodeURIComponent(user)}`);
    const shown = items.slice(0, HISTORY);
    for (const [id, title] of await titlesOf(field("collection").value, shown.map(({ id }) => id))) names.set(id, title);
    const chips = shown.map(({ id, value }) =>
      h("li", {}, h("a", { href: addressOf("/document", { collection: field("collection").value, id }) }, h("span", { dir: "auto" }, short(nameOf(id), 40)), value === null ? null : h("span", { class: "count" }, plain(value)))),
    );
    const more = items.length > HISTORY ? h("li", { class: "quiet" }, "and more") : null;
    place.replaceChildren(...(chips.length ? chips : [h("li", { class: "quiet" }, "no interactions are stored of this user")]), ...(more ? [more] : []));
  });
});

const look = latest(async () => {
  const query = field("q").value.trim();
  if (!query) return byId("found").replaceChildren();
  await tried("find", async () => {
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
  const user = field("user").value;
  if (!user && !those(true).length) return byId("results").replaceChildren(h("p", { class: "quiet" }, byId("as-user").hidden ? "Like at least one document." : "Choose a user, or like at least one document."));
  await tried("recommend", async () => {
    const body = { positive: those(true), negative: those(false), diversity: Number(field("diversity").value), k: Number(field("k").value) || 10, title: true, explain: true, on_missing: "skip" };
    if (user) body.user = user;
    const { hits, missing } = await post(path("recommend"), body);
    const full = fullBar(hits.map((hit) => hit.weight));
    const unnamed = hits.flatMap((hit) => (hit.because ?? []).slice(0, BECAUSE)).filter(({ id }) => id !== undefined && !names.has(id));
    for (const [id, title] of await titlesOf(field("collection").value, unnamed.map(({ id }) => id))) names.set(id, title);
    const items = hits.map((hit, rank) => ({ collection: field("collection").value, hit, weight: hit.weight, rank: rank + 1, full, extra: because(hit) }));
    const list = h("div");
    drawHits(list, "Recommended", items);
    byId("results").replaceChildren(h("p", { class: "quiet" }, `A full bar is ${percent(full)} of the weight.`), list);
    const lost = missing.filter(({ id }) => id !== undefined);
    if (lost.length) throw new Error(`${lost.map(({ id }) => `“${short(id, 40)}”`).join(", ")}: no document has this id; the list is made without.`);
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
  write({ collection: field("collection").value, user: field("user").value, like: list(those(true)), dislike: list(those(false)), diversity: diversity === "0" ? "" : diversity, k: k === "10" ? "" : k });
}

/** What the address names is looked up, so that it has its titles again. */
async function restore() {
  const given = read();
  for (const name of ["collection", "user", "diversity", "k"]) if (given[name]) field(name).value = given[name];
  for (const [name, likes] of [["like", true], ["dislike", false]]) {
    for (const id of idsOf(given[name])) picked.set(id, likes);
  }
  await tried("restore", async () => {
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

function start() {
  field("user").addEventListener("change", () => {
    showHistory();
    changed();
  });
  field("q").addEventListener("input", look);
  for (const name of ["diversity", "k"]) {
    field(name).addEventListener("input", () => {
      remember();
      ask();
    });
  }
  field("collection").addEventListener("change", () => {
    picked = new Map();
    field("user").value = "";
    offerUsers();
    showHistory();
    look();
    changed();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  reopenOnReturn();
  show();
}

/** What the address names; a reader may begin to type before it is there. */
async function show() {
  await restore();
  offerUsers().then(() => those(true).length || field("user").value || ask());
  showHistory();
  changed();
}

start();
