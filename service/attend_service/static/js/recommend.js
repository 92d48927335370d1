// Recommending: for a user, or by what is liked and what is not; each suggestion says why.

import { get, latest, of, post } from "./api.js";
import { byId, h, tried } from "./dom.js";
import { number, plural, short } from "./format.js";
import { queryOf } from "./queries.js";
import { addressOf, read, reopenOnReturn, write } from "./state.js";
import { changes, drawSuggestions, leftOut } from "./suggestions.js";
import { titlesOf } from "./titles.js";
import { plain } from "./values.js";

const FOUND = 8;
const USERS = 6; // users in the list at first, and with each "More"
const HISTORY = 8; // interactions of a user that are shown at first
const LONGEST = 100; // interactions of a user that are shown at most
const EXAMPLES = 6; // documents to like where nothing is chosen
const form = byId("recommend");
const field = (name) => form.elements[name];
const path = (...parts) => of(field("collection").value, ...parts);

let user = "";
let picked = new Map(); // id → true for liked, false for disliked
let without = new Set(); // ids of the history or of what is picked that are left out
const names = new Map();
const nameOf = (id) => names.get(id) ?? id;
const those = (likes) => [...picked].filter(([, liked]) => liked === likes).map(([id]) => id);

async function name(ids) {
  const unnamed = ids.filter((id) => !names.has(id));
  for (const [id, title] of await titlesOf(field("collection").value, unnamed)) names.set(id, title);
}

// -- users and their histories ----------------------------------------------------------------

/** Offer the users whose interactions are stored. Who they are is for keys that may write. */
const offerUsers = latest(async (cursor = null) => {
  const typed = field("who").value.trim();
  const parameters = new URLSearchParams({ limit: USERS, ...(typed && { contains: typed }), ...(cursor && { cursor }) });
  const page = await get(`${path("users")}?${parameters}`).catch(() => null);
  byId("as-user").hidden = !page?.users;
  if (!page?.users) return;
  const rows = page.items.map(({ user: id, interactions, latest: last }) =>
    h(
      "li",
      {},
      h("button", { type: "button", on: { click: () => choose(id) } }, h("span", { dir: "auto" }, short(id, 40)), h("span", { class: "count" }, plural(interactions, "interaction")), h("span", { class: "quiet", dir: "auto" }, last.map(({ title }) => short(title, 30)).join(", "))),
    ),
  );
  if (cursor) byId("users").append(...rows);
  else byId("users").replaceChildren(...(rows.length ? rows : [h("li", { class: "quiet" }, "No user's name has this.")]));
  byId("users-count").textContent = plural(page.users, "user");
  byId("more-users").hidden = page.next === null;
  byId("more-users").onclick = () => offerUsers(page.next);
});

function choose(id) {
  user = id;
  without = new Set();
  showHistory().then(() => (user ? byId("another") : field("who")).focus());
  changed();
}

/** Show what the user interacted with, each with its value, and whether it counts as liked. */
const showHistory = latest(async () => {
  byId("chosen").hidden = !user;
  byId("choose").hidden = Boolean(user);
  byId("user").textContent = user;
  if (!user) return;
  await tried("history", async () => {
    const { items, liked_from: threshold } = await get(`${path("interactions")}?limit=${LONGEST}&user=${encodeURIComponent(user)}`);
    await name(items.map(({ id }) => id));
    const rows = items.map((interaction) => entry(interaction, threshold));
    const more = h("button", { type: "button", class: "plain", on: { click: () => byId("history").replaceChildren(...rows) } }, `All ${items.length}`);
    byId("history").replaceChildren(...(rows.length ? rows.slice(0, HISTORY) : [h("li", { class: "quiet" }, "No interactions of this user are stored.")]), ...(rows.length > HISTORY ? [h("li", {}, more)] : []));
    const dislikes = items.filter(({ value }) => !isLiked(value, threshold)).length;
    byId("liking").textContent = dislikes ? `${plural(dislikes, "document")} not liked${threshold === null ? "" : ` (below ${number(threshold)})`}: not recommended again, but it pulls nothing down.` : "";
  });
});

function entry({ id, value }, threshold) {
  const out = without.has(id);
  const toggle = h("button", { type: "button", class: "plain", "aria-pressed": String(out), "aria-label": `Without ${short(nameOf(id), 60)}`, on: { click: () => leave(id, !out) } }, out ? "Back" : "Without");
  return h(
    "li",
    {},
    h("a", { class: out ? "left-out" : null, dir: "auto", href: addressOf("/document", { collection: field("collection").value, id }) }, short(nameOf(id), 60)),
    value === null ? null : h("span", { class: "number" }, plain(value)),
    isLiked(value, threshold) ? toggle : h("span", { class: "number" }, "not liked"),
  );
}

/** Whether a value is a like, as the library tells it. */
function isLiked(value, threshold) {
  if (typeof value === "number") return threshold === null ? value > 0 : value >= threshold;
  return value !== false;
}

// -- what is picked by hand -------------------------------------------------------------------

const look = latest(async () => {
  const query = field("q").value.trim();
  if (!query) return byId("found").replaceChildren();
  await tried("find", async () => {
    const encoded = await queryOf(field("collection").value, query);
    const { hits } = await post(path("search"), { query: encoded, k: FOUND, exclude_self: false, fields: [], title: true });
    for (const { id, title } of hits) names.set(id, title);
    byId("found").replaceChildren(...hits.map(({ id }) => candidate(id)));
  });
});

function candidate(id) {
  const button = (likes, word) => h("button", { type: "button", "aria-label": `${word} ${short(nameOf(id), 60)}`, on: { click: () => pick(id, likes) } }, word);
  return h("li", {}, h("span", { dir: "auto" }, short(nameOf(id), 70)), h("span", { class: "row marks" }, button(true, "Like"), button(false, "Dislike")));
}

function pick(id, likes) {
  picked.set(id, likes);
  changed();
}

function changed() {
  for (const [place, likes] of [["liked", true], ["disliked", false]]) {
    const chips = those(likes).map(chip);
    byId(place).replaceChildren(...(chips.length ? chips : [h("li", { class: "quiet" }, "nothing yet")]));
  }
  remember();
  return ask();
}

function chip(id) {
  const drop = () => {
    picked.delete(id);
    without.delete(id);
    changed();
  };
  return h("li", {}, h("button", { type: "button", "aria-label": `Forget ${nameOf(id)}`, on: { click: drop } }, h("span", { dir: "auto" }, short(nameOf(id), 50)), h("span", { "aria-hidden": "true" }, "×")));
}

// -- the list ---------------------------------------------------------------------------------

async function leave(id, out = true) {
  if (out) without.add(id);
  else without.delete(id);
  await Promise.all([showHistory(), changed()]);
  // The button that was pressed may be gone; the keyboard goes on where that can be undone.
  if (document.activeElement === document.body) (byId("left-out").querySelector("button") ?? byId("another")).focus();
}

/** A request; what is left out keeps its place outside of the list, and counts for nothing. */
function bodyOf(excluded) {
  const kept = (ids) => ids.filter((id) => !excluded.has(id));
  const history = [...excluded].map((id) => ({ id, weight: 0 }));
  const body = { positive: kept(those(true)), negative: kept(those(false)), history, diversity: Number(field("diversity").value), k: Number(field("k").value) || 10, title: true, explain: true, on_missing: "skip" };
  return user ? { ...body, user } : body;
}

const ask = latest(async () => {
  byId("diversity-said").textContent = number(Number(field("diversity").value), 2);
  if (!user && !those(true).length) {
    await tried("recommend", examples);
    form.removeAttribute("aria-busy");
    return;
  }
  byId("examples").replaceChildren();
  await tried("recommend", async () => {
    const before = without.size ? await post(path("recommend"), bodyOf(new Set())) : null;
    const remains = user || those(true).some((id) => !without.has(id));
    // Every reason may be left out: then there is nothing to recommend by.
    const answer = remains ? await post(path("recommend"), bodyOf(without)).catch((error) => (without.size && error.status === 422 ? null : Promise.reject(error))) : null;
    const shown = answer ?? { hits: [], attended: 0, missing: [] };
    await name([...without, ...shown.hits.flatMap((hit) => [...(hit.because ?? []), ...(hit.against ?? [])]).map(({ id }) => id).filter((id) => id !== undefined)]);
    const sentence = answer ? before && changes(before, answer) : "nothing that was liked is left";
    byId("left-out").replaceChildren(...(without.size ? [leftOut([...without], { nameOf, sentence, onBack: (id) => leave(id, false) })] : []));
    byId("reading").hidden = !shown.hits.length;
    const down = shown.hits.some((hit) => hit.against?.length);
    byId("reading").textContent = `Each bar is a part of what was liked${down ? " or disliked: to the right it pulls the document up, to the left down" : ", and how much of the suggestion is owed to it"}.`;
    drawSuggestions(byId("results"), { collection: field("collection").value, answer: shown, nameOf, onWithout: leave, before });
    const lost = shown.missing.filter(({ id }) => id !== undefined);
    if (lost.length) throw new Error(`${lost.map(({ id }) => `“${short(id, 40)}”`).join(", ")}: no document has this id; the list is made without.`);
  });
  form.removeAttribute("aria-busy");
});

/** Documents to begin with, where nothing is chosen. */
async function examples() {
  const { documents } = await get(`${path("documents")}?limit=${EXAMPLES}`);
  await name(documents.map(({ id }) => id));
  byId("left-out").replaceChildren();
  byId("reading").hidden = true;
  drawSuggestions(byId("results"), { collection: field("collection").value, answer: { hits: [], attended: 0 }, nameOf });
  const invitation = byId("as-user").hidden ? "Like a document, and the list begins." : "Choose a user, or like a document.";
  const list = h("ul", { class: "found", "aria-label": "Examples to like" }, documents.map(({ id }) => candidate(id)));
  byId("examples").replaceChildren(...(documents.length ? [h("p", {}, invitation), list] : [h("p", { class: "quiet" }, "This collection has no documents."), h("p", {}, h("a", { class: "button", href: addressOf("/add", { collection: field("collection").value }) }, "Add documents"))]));
}

// -- the address ------------------------------------------------------------------------------

function remember() {
  const list = (ids) => (ids.length ? JSON.stringify(ids) : "");
  const { diversity, k } = Object.fromEntries(new FormData(form));
  write({ collection: field("collection").value, user, like: list(those(true)), dislike: list(those(false)), without: list([...without]), diversity: diversity === "0" ? "" : diversity, k: k === "10" ? "" : k });
}

/** What the address names is looked up, so that it has its titles again. */
async function restore() {
  const parameters = read();
  for (const input of ["collection", "diversity", "k"]) if (parameters[input]) field(input).value = parameters[input];
  user = parameters.user ?? "";
  without = new Set(idsOf(parameters.without));
  for (const [input, likes] of [["like", true], ["dislike", false]]) {
    for (const id of idsOf(parameters[input])) picked.set(id, likes);
  }
  await tried("restore", () => name([...picked.keys(), ...without]));
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
  field("who").addEventListener("input", () => offerUsers());
  field("q").addEventListener("input", look);
  byId("another").addEventListener("click", () => choose(""));
  for (const input of ["diversity", "k"]) {
    field(input).addEventListener("input", () => {
      remember();
      ask();
    });
  }
  field("collection").addEventListener("change", () => {
    picked = new Map();
    names.clear();
    field("who").value = "";
    user = "";
    without = new Set();
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
  showHistory();
  await offerUsers();
  changed();
}

start();
