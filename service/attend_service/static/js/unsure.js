// Questions that a judgement would help most: those whose two best documents are closest in weight.

import { get, of, post } from "./api.js";
import { widthOf } from "./queries.js";

const QUERIES = 40; // of the feedback, the newest
const DOCUMENTS = 24; // of the collection, each with a phrase of its text
const [FEWEST_WORDS, MOST_WORDS] = [3, 9];
const LISTED = 1000; // stored judgements that tell which documents are judged

/**
 * Questions of a collection, the least sure first: [{ query, weights }], with the weights of the best
 * two documents. Asked are the queries of the feedback, where the key may read it, and phrases of the
 * texts; one is offered while its best document is not judged.
 */
export async function leastSure(collection) {
  if ((await widthOf(collection)) !== null) return []; // of vectors there are no phrases
  const [examples, phrases] = await Promise.all([examplesOf(collection), phrasesOf(collection)]);
  const judged = new Set(examples.map(({ query, document }) => JSON.stringify([query, document])));
  const queries = [...new Set(examples.map(({ query }) => query))].filter((query) => query !== null).slice(0, QUERIES);
  const questions = [...new Set([...queries, ...phrases])];
  if (!questions.length) return [];
  const searches = questions.map((query) => ({ query, k: 2, fields: [] }));
  const { answers } = await post(`${of(collection, "search")}/batch`, { searches });
  return questions
    .map((query, place) => ({ query, hits: answers[place].hits ?? [] }))
    .filter(({ query, hits }) => hits.length === 2 && !judged.has(JSON.stringify([query, hits[0].id])))
    .map(({ query, hits }) => ({ query, weights: hits.map(({ weight }) => weight) }))
    .sort((a, b) => margin(a) - margin(b));
}

const margin = ({ weights: [first, second] }) => first - second;

/** The newest judgements; none for a key that may not read them. */
async function examplesOf(collection) {
  const page = await get(`${of(collection, "feedback")}?limit=${LISTED}`).catch(() => null);
  return page?.items ?? [];
}

async function phrasesOf(collection) {
  const { documents } = await get(`${of(collection, "documents")}?limit=${DOCUMENTS}`);
  return documents.map(({ fields, payload }, place) => phraseOf(Object.values(fields).join("\n"), String(payload?.title ?? ""), place)).filter(Boolean);
}

/** A phrase of a text that is not its title: of several the one whose turn it is; null without any. */
export function phraseOf(text, title, turn) {
  const clauses = text
    .slice(0, 4000)
    .split(/[.,;:!?()\n]+/)
    .map((clause) => clause.trim())
    .filter((clause) => {
      const words = clause.split(/\s+/).length;
      return words >= FEWEST_WORDS && words <= MOST_WORDS && !title.includes(clause);
    });
  return clauses.length ? clauses[turn % clauses.length] : null;
}
