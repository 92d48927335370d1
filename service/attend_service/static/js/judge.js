// Judgements of a query's documents: stored at once, taken back by the same button, and what they change.

import { batch, del, get, of, post } from "./api.js";
import { percent } from "./format.js";
import { html } from "./html.js";

export const RELEVANT = 1;
export const NOT_RELEVANT = 0;
const LISTED = 1000; // the newest stored judgements, among which those of a query are looked for
const LEAST_GAIN = 1.02; // a weight that grew by less is as it was

/**
 * The judgements of one query; `query` is as the API takes it, a text or numbers or an id.
 * `labels` holds the label of each judged document, and `own` those that were judged here.
 */
export class Judgements {
  constructor(collection, query) {
    this.collection = collection;
    this.query = query;
    this.labels = new Map();
    this.own = new Set();
  }

  /** Read what is stored about the query; of a vector nothing can be told apart. */
  async read() {
    if (typeof this.query !== "string") return this;
    for (const example of await this.#stored()) this.labels.set(example.document, example.label > 0 ? RELEVANT : NOT_RELEVANT);
    return this;
  }

  /** Store labels of documents: [{ id, label, position }]. */
  async store(items) {
    await post(of(this.collection, "feedback"), { items: items.map((item) => ({ query: this.query, source: "page", ...item })) });
    for (const { id, label } of items) {
      this.labels.set(id, label);
      this.own.add(id);
    }
  }

  /** Store a label, or take it back where it is the label that the document has. */
  async toggle(id, label, position) {
    if (this.labels.get(id) !== label) return this.store([{ id, label, position }]);
    const ids = (await this.#stored()).filter((example) => example.document === id).map((example) => example.id);
    // Of vectors, which the list does not tell apart, only the one that was stored last goes.
    const gone = typeof this.query === "string" ? ids : ids.slice(0, 1);
    if (gone.length) await del(of(this.collection, "feedback"), { ids: gone });
    this.labels.delete(id);
    this.own.delete(id);
  }

  /** Ask the query with its feedback, and as if there were none: the answer, and what feedback changed. */
  async ask(options) {
    const body = { ...options, query: this.query };
    const plain = { query: this.query, k: options.k, memory: 0, fields: [] };
    const line = typeof this.query === "string" ? this.query : JSON.stringify(this.query);
    const { answers } = await batch(this.collection, [body, plain], [line, line]);
    const [answer, unmoved] = answers;
    const before = new Map(unmoved.hits.map((hit, rank) => [hit.id, { rank, weight: hit.weight }]));
    return { answer, effects: new Map(answer.hits.map((hit, rank) => [hit.id, this.#effect(hit, rank, before)])) };
  }

  /** What feedback did to a hit: its place and weight without, and the direction in which it moved, null for none. */
  #effect(hit, rank, before) {
    const without = before.get(hit.id) ?? { rank: before.size, weight: 0 };
    const label = this.labels.get(hit.id);
    const [up, down] = [rank < without.rank, rank > without.rank];
    const heavier = hit.weight > without.weight * LEAST_GAIN;
    const rose = up || (label === RELEVANT && !down && heavier);
    return { up: rose ? true : down && label === NOT_RELEVANT ? false : null, own: this.own.has(hit.id), rank, without };
  }

  async #stored() {
    const { items } = await get(`${of(this.collection, "feedback")}?limit=${LISTED}`);
    return items.filter((example) => example.query === (typeof this.query === "string" ? this.query : null));
  }
}

/**
 * Buttons that judge a hit, as a template for its `extra`. `position` is its place in the list, from 1,
 * and `done` is called once the judgement is stored or taken back: with null, or with the error.
 */
export function judgeButtons(hit, judgements, position, done) {
  const judge = (label) => () => judgements.toggle(hit.id, label, position).then(() => done(null, hit, label), (error) => done(error, hit, label));
  const button = (label, word) =>
    html`<button type="button" aria-pressed=${String(judgements.labels.get(hit.id) === label)} onClick=${judge(label)}>${word}</button>`;
  return html`<div class="row marks">${button(RELEVANT, "Relevant")}${button(NOT_RELEVANT, "Not relevant")}</div>`;
}

/** What feedback did to a hit, as a chip; nothing where it did nothing. */
export function effectChip(effect, weight) {
  if (!effect || effect.up === null) return null;
  const { up, own, rank, without } = effect;
  const place = rank === without.rank ? "" : `place ${without.weight ? without.rank + 1 : `below ${without.rank}`} → ${rank + 1}`;
  const share = without.weight ? `${percent(without.weight)} → ${percent(weight)}` : "";
  return html`<span class="chip moved" data-up=${String(up)}>
    ${up ? "↑" : "↓"} by ${own ? "your judgement" : "feedback"}<span class="count">${[place, share].filter(Boolean).join(", ")}</span>
  </span>`;
}
