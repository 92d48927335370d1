// What documents are called, by their ids.

import { of, post } from "./api.js";

const MOST = 256; // searches in one batch

/** Map(id → title) of those that there are: each is asked for by itself. */
export async function titlesOf(collection, ids) {
  const asked = [...new Set(ids)].slice(0, MOST);
  if (!asked.length) return new Map();
  const searches = asked.map((id) => ({ query: { id }, mask: { only: [id] }, k: 1, fields: [], title: true }));
  const { answers } = await post(`${of(collection, "search")}/batch`, { searches });
  return new Map(answers.flatMap(({ hits = [] }) => hits.map((hit) => [hit.id, hit.title])));
}
