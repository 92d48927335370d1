// The drawer of the map: one document with its neighbours, or what the lasso holds.

import { of, post } from "./api.js";
import { h } from "./dom.js";
import { count, percent, plural, short } from "./format.js";
import { queryOf } from "./queries.js";
import { addressOf } from "./state.js";
import { titlesOf } from "./titles.js";

const NEIGHBOURS = 8;
const LISTED = 8;
const MOST_TAUGHT = 50; // documents that are labelled at once
const ID = "@id";

/** Show a document and its neighbours; `go` is called with the id of a neighbour that is clicked. */
export async function drawDocument(drawer, { collection, id, projection, search, go, close }) {
  const searches = [{ query: { id }, mask: { only: [id] }, k: 1, title: true, highlight: true }, { query: { id }, projection, k: NEIGHBOURS, title: true, fields: [] }];
  const { answers } = await post(`${of(collection, "search")}/batch`, { searches });
  const [hit] = answers[0].hits ?? [];
  const title = hit?.title ?? id;
  const neighbours = (answers[1].hits ?? []).map((other) =>
    h("li", {}, h("button", { type: "button", class: "plain", dir: "auto", on: { click: () => go(other.id) } }, short(other.title, 60)), h("span", { class: "number" }, percent(other.weight))),
  );
  const passage = hit?.highlight?.passage;
  fill(drawer, short(title, 120), close, [
    passage && passage.trim() !== title ? h("p", { class: "quiet", dir: "auto" }, short(passage, 240)) : null,
    h("p", {}, h("a", { href: addressOf("/document", { collection, id }) }, "Open the document")),
    neighbours.length ? h("h3", { class: "label" }, "Its neighbours, by weight") : null,
    neighbours.length ? h("ol", { class: "map-neighbours" }, neighbours) : null,
    search.q ? h("p", { class: "quiet" }, h("a", { href: addressOf("/teach", { collection, q: search.q }) }, `Teach “${short(search.q, 40)}”`)) : null,
  ]);
}

/**
 * Show what the lasso holds. `names` are [value, how many] of the field that colours; `only` is
 * called with a filter to keep on the map, `taught` once labels were stored.
 */
export async function drawSelection(drawer, { collection, ids, names, search, filter, only, close, taught }) {
  const titles = await titlesOf(collection, ids.slice(0, LISTED));
  const items = ids.slice(0, LISTED).map((id) => h("li", { dir: "auto" }, h("a", { href: addressOf("/document", { collection, id }) }, short(titles.get(id) ?? id, 60))));
  const more = ids.length - items.length;
  const chosen = { [ID]: { in: ids } };
  const both = filter ? { $and: [filter, chosen] } : chosen;
  const address = addressOf("/search", { ...search, filter: JSON.stringify(both) });
  const isShort = address !== "/search";
  const button = (word, click) => h("button", { type: "button", on: { click } }, word);
  fill(drawer, `${plural(ids.length, "document")} selected`, close, [
    names.length ? h("ul", { class: "chips" }, names.map(([name, many]) => h("li", { class: "chip" }, h("span", { dir: "auto" }, name), h("span", { class: "count" }, count(many))))) : null,
    h("ol", { class: "plain" }, items),
    more > 0 ? h("p", { class: "quiet" }, `and ${count(more)} more`) : null,
    h("div", { class: "row" }, isShort ? h("a", { class: "button", href: address }, "Search among these") : null, isShort ? button("Show only these", () => only(both)) : null),
    isShort ? null : h("p", { class: "quiet" }, "These are too many for an address: select fewer to search among them."),
    teaching({ collection, ids, search, taught }),
  ]);
}

function teaching({ collection, ids, search, taught }) {
  if (!search.q) return h("p", { class: "quiet" }, "With a query you can teach which of these are relevant to it.");
  if (ids.length > MOST_TAUGHT) return h("p", { class: "quiet" }, `Select at most ${MOST_TAUGHT} to teach that they are relevant.`);
  const status = h("p", { class: "quiet", role: "status" });
  const label = async (value) => {
    try {
      const query = await queryOf(collection, search.q);
      await post(of(collection, "feedback"), { items: ids.map((id) => ({ query, id, label: value, source: "page" })) });
      status.textContent = `${plural(ids.length, "document")} marked as ${value ? "relevant" : "not relevant"}; the search follows at once.`;
      taught();
    } catch (error) {
      status.textContent = error.message;
    }
  };
  const button = (word, value) => h("button", { type: "button", on: { click: () => label(value) } }, word);
  return h(
    "div",
    {},
    h("h3", { class: "label" }, `Are these relevant to “${short(search.q, 60)}”?`),
    h("div", { class: "row" }, button("Relevant", 1), button("Not relevant", 0), h("a", { href: addressOf("/teach", { collection, q: search.q }) }, "One by one")),
    status,
  );
}

function fill(drawer, title, close, parts) {
  const head = h("div", { class: "map-head" }, h("h2", { dir: "auto" }, title), h("button", { type: "button", class: "plain", "aria-label": "Close", on: { click: close } }, "×"));
  drawer.replaceChildren(head, ...parts.filter(Boolean));
  drawer.hidden = false;
  drawer.scrollTop = 0;
  drawer.focus({ preventScroll: true }); // where Escape is heard, and a reader goes on
}
