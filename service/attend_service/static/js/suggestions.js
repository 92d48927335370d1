// Recommendations, each with its reasons first: what pulls it up, and what pulls it down.

import { h } from "./dom.js";
import { number, percent, plural, short } from "./format.js";
import { Facts } from "./hits.js";
import { draw, html } from "./html.js";
import { addressOf } from "./state.js";

const REASONS = 3; // of each suggestion
const LEAST = 0.005; // a smaller share is not shown

/**
 * Draw an answer of the API, asked with `explain` and `title`, into a place that nothing else fills.
 * `nameOf` names a document by its id. With `onWithout` every reason that is a document has a button
 * that leaves it out. `before` is the answer with nothing left out: what moved since is marked.
 */
export function drawSuggestions(place, { collection, answer, nameOf, onWithout = null, before = null }) {
  const { hits, attended } = answer;
  const strengths = hits.map((hit) => Math.exp(hit.score));
  const most = Math.max(...strengths, 0);
  const reasons = hits.map((hit) => reasonsOf(hit));
  const longest = Math.max(...reasons.flat().map(({ share }) => Math.abs(share)), 0) || 1;
  const signed = reasons.some((rows) => rows.some(({ share }) => share < 0));
  const places = before && new Map(before.hits.map((hit, rank) => [hit.id, rank]));
  const row = (hit, rank) => html`<li key=${hit.id} data-id=${hit.id}>
    <div class="weight">
      <div class="share"><span>${often(strengths[rank] * attended)}</span><span class="rank">${rank + 1}</span></div>
      <span class="bar" aria-hidden="true"><i style=${{ "--share": most ? strengths[rank] / most : 0 }}></i></span>
    </div>
    <div class="hit">
      <h3 dir="auto"><a href=${addressOf("/document", { collection, id: hit.id })}>${short(hit.title, 140)}</a>${places && moved(places.get(hit.id), rank)}</h3>
      <ul class=${`pulls${signed ? " signed" : ""}`} aria-label=${`Why ${short(hit.title, 60)}`}>${reasons[rank].map((reason) => reasonRow(reason, { longest, nameOf, onWithout }))}</ul>
      <details class="fold"><summary>Details</summary><${Facts} hit=${hit} /></details>
    </div>
  </li>`;
  draw(place, html`<ol class="hits suggestions" aria-label="Recommended">${hits.map(row)}</ol>`);
}

/** The strongest reasons of a hit: shares above zero of what speaks for it, below zero of what speaks against. */
export function reasonsOf(hit) {
  const against = hit.against ?? [];
  const kept = 1 - against.reduce((sum, { weight }) => sum + weight, 0);
  const rows = [
    ...(hit.because ?? []).map((part) => ({ part, share: part.weight * kept })),
    ...against.map((part) => ({ part, share: -part.weight })),
  ];
  const strongest = rows.filter(({ share }) => Math.abs(share) >= LEAST).sort((a, b) => Math.abs(b.share) - Math.abs(a.share)).slice(0, REASONS);
  return strongest.sort((a, b) => b.share - a.share);
}

function reasonRow({ part, share }, { longest, nameOf, onWithout }) {
  const name = part.id === undefined ? String(part.text ?? part.fact ?? "a vector") : nameOf(part.id);
  const leave = onWithout && part.id !== undefined;
  return html`<li key=${JSON.stringify([part.id, part.text, part.fact, part.value, share < 0])}>
    <span class="name" dir="auto" title=${name}>${short(name, 60)}</span>
    <span class="pull" data-down=${share < 0 ? "" : null} aria-hidden="true"><i style=${{ "--share": Math.abs(share) / longest }}></i></span>
    <span class="number">${share < 0 ? "−" : "+"}${percent(Math.abs(share))}</span>
    ${leave && html`<button type="button" class="plain" aria-label=${`Without ${short(name, 60)}`} onClick=${() => onWithout(part.id)}>Without</button>`}
  </li>`;
}

/** How many times as often a document comes as an average one. */
function often(times) {
  return times >= 1.05 ? `${number(times, 2)} × average` : "average";
}

function moved(rank, now) {
  if (rank === now) return null;
  return html`<span class="chip moved" data-up=${String(rank === undefined || rank > now)}>${rank === undefined ? "new" : `${rank > now ? "↑" : "↓"} was ${rank + 1}`}</span>`;
}

/** What changed in a list, in a sentence. */
export function changes(before, answer) {
  const places = new Map(before.hits.map((hit, rank) => [hit.id, rank]));
  const fresh = answer.hits.filter((hit) => !places.has(hit.id)).length;
  const shifted = answer.hits.filter((hit, rank) => places.has(hit.id) && places.get(hit.id) !== rank).length;
  if (!fresh && !shifted) return "the list stays as it was";
  return [fresh && `${fresh} of ${answer.hits.length} are new`, shifted && `${plural(shifted, "document")} moved`].filter(Boolean).join(", ");
}

/** What is left out, with a way to bring each back. */
export function leftOut(ids, { nameOf, onBack, sentence }) {
  const chips = ids.map((id) =>
    h("li", {}, h("button", { type: "button", "aria-label": `Bring back ${short(nameOf(id), 60)}`, on: { click: () => onBack(id) } }, h("span", { dir: "auto" }, `without ${short(nameOf(id), 40)}`), h("span", { "aria-hidden": "true" }, "×"))),
  );
  return h("div", { class: "bring-back" }, h("ul", { class: "chips", "aria-label": "Left out" }, chips), h("span", { class: "quiet", role: "status" }, sentence));
}
