// Which column is the id, the text, the vector and the value; rows as documents by that choice.

import { isVector } from "./blend.js";

export const PARTS = ["id", "text", "value", "payload", "vector", "nothing"];

const IDS = ["_id", "id", "doc_id", "document_id", "uid", "uuid", "key", "pk"];
const TEXTS = [
  "title", "name", "question", "headline", "summary", "description", "abstract", "body", "content",
  "text", "passage", "document", "sentence", "utterance", "query", "caption", "synopsis", "message",
  "review", "comment", "transcript",
];
const VALUES = ["value", "label", "category", "class", "intent", "answer", "target"];

/** The columns of rows, in the order in which they first come. */
export function columns(rows, looked = 500) {
  return [...new Set(rows.slice(0, looked).flatMap(Object.keys))];
}

/** A part for each column, by its name and by what it holds: Map(column → part). */
export function guess(rows) {
  const sample = rows.slice(0, 500);
  const names = columns(rows);
  const parts = new Map(names.map((name) => [name, "payload"]));
  const cells = (name) => sample.map((row) => row[name]).filter((cell) => cell != null && cell !== "");
  const first = (list, fits) => list.map((like) => names.find((name) => name.toLowerCase() === like && fits(name))).find(Boolean);
  const mark = (name, part) => name && parts.set(name, part);
  mark(first(IDS, (name) => new Set(cells(name).map(String)).size === cells(name).length), "id");
  const free = (name) => parts.get(name) === "payload";
  const vector = names.find((name) => /^(vector|embedding)$/i.test(name) && cells(name).every(isVector));
  mark(vector, "vector");
  const isProse = (name) => free(name) && cells(name).length > 0 && cells(name).every((cell) => typeof cell === "string" && !/^(https?:|data:|www\.)/i.test(cell));
  mark(first(VALUES, (name) => free(name)), "value");
  if (vector) return parts;
  const named = names.filter((name) => TEXTS.includes(name.toLowerCase()) && isProse(name));
  const length = (name) => cells(name).reduce((sum, cell) => sum + cell.length, 0);
  const longest = names.filter(isProse).sort((a, b) => length(b) - length(a)).slice(0, 1);
  for (const name of named.length ? named : longest) parts.set(name, "text");
  return parts;
}

/** A sentence where rows are numbered although a column is called as ids are; null elsewhere. */
export function numbered(rows, parts) {
  if ([...parts.values()].includes("id")) return null;
  const name = columns(rows).find((each) => IDS.includes(each.toLowerCase()));
  if (!name) return null;
  const cells = rows.map((row) => row[name]);
  const filled = cells.filter((cell) => cell != null && cell !== "").map(String);
  const twice = filled.find((cell, at) => filled.indexOf(cell) < at);
  const missing = cells.length - filled.length;
  const reasons = [twice === undefined ? null : `repeats (“${twice}” more than once)`, missing ? `is empty in ${missing} of ${cells.length} rows` : null].filter(Boolean);
  return reasons.length ? `The column ${name} ${reasons.join(" and ")}, so rows are numbered.` : null;
}

/** Why a choice cannot be built, as a sentence; null where it can. */
export function wrong(parts) {
  const count = (part) => [...parts.values()].filter((each) => each === part).length;
  if (count("id") > 1) return "Two columns are the id; choose one.";
  if (count("vector") > 1) return "Two columns are the vector; choose one.";
  if (count("vector") && count("text")) return "A document has texts or a vector; choose one of them.";
  return count("vector") + count("text") ? null : "Choose at least one column as text.";
}

/**
 * Rows as documents of the API: {made, empty}. `places` says where each row stands in its file, and
 * `empty` has those places of rows without text or vector.
 */
export function documents(rows, parts, places = rows.map((_, at) => at + 1)) {
  const of = (part) => [...parts].filter(([, each]) => each === part).map(([name]) => name);
  const [[id], texts, values, rest, [vector]] = ["id", "text", "value", "payload", "vector"].map(of);
  const [made, empty] = [[], []];
  rows.forEach((row, at) => {
    const document = { id: id && row[id] != null ? String(row[id]) : String(at + 1) };
    if (vector) document.vector = row[vector];
    else document.fields = filled(row, texts);
    if (vector ? !isVector(document.vector) : !Object.keys(document.fields).length) return empty.push(places[at]);
    const value = values.length === 1 ? row[values[0]] : picked(row, values);
    if (values.length && value != null) document.value = value;
    document.payload = picked(row, rest);
    made.push({ document, place: places[at] });
  });
  return { made, empty };
}

function filled(row, names) {
  const texts = names.map((name) => [name, row[name]]).filter(([, cell]) => cell != null && String(cell).trim());
  return Object.fromEntries(texts.map(([name, cell]) => [name, String(cell)]));
}

function picked(row, names) {
  return Object.fromEntries(names.filter((name) => row[name] != null).map((name) => [name, row[name]]));
}
