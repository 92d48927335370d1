// What is typed, as the API takes a query: text, or numbers where documents brought vectors.

import { get, of } from "./api.js";

const SHOWN = 12;
const widths = new Map();

/** The width of the vectors that a collection without an encoder is asked with; null for others. */
export async function widthOf(collection) {
  if (!widths.has(collection)) {
    const { encoder, dimension } = await get(of(collection));
    widths.set(collection, encoder ? null : dimension);
  }
  return widths.get(collection);
}

/** A typed line as a query: of vectors its numbers, or the document that goes by that id. */
export async function queryOf(collection, line) {
  if ((await widthOf(collection)) === null) return line;
  return numbers(line) ?? { id: line };
}

/** Numbers between commas or blanks, with brackets or without; null where it is something else. */
export function numbers(line) {
  const parts = line.replace(/^\s*\[|\]\s*$/g, "").split(/[\s,;]+/).filter(Boolean);
  const found = parts.map(Number);
  return found.length > 1 && found.every(Number.isFinite) ? found : null;
}

/** Say in a field what it takes; `plain` is its placeholder where texts are searched. */
export async function explain(field, collection, plain) {
  const width = await widthOf(collection).catch(() => null);
  field.toggleAttribute("data-vectors", width !== null);
  field.placeholder = width === null ? plain : `${width} numbers${width <= SHOWN ? `, as in ${example(width)}` : ""}; or a document's id`;
}

const example = (width) => Array.from({ length: width }, (_, at) => (at ? 0 : 1)).join(" ");
