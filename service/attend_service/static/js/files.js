// Files as rows: CSV and TSV (RFC 4180), JSON lines, a JSON list.

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;
const SNIFFED = [",", "\t", ";"];

/**
 * {rows, places, problems}: objects by field, the line or row of the file where each stands, and a
 * {place, reason} for each line that is none.
 */
export function parse(name, text) {
  if (isBinary(text)) throw new Error(`${name} is not a text file. Send CSV with a header line, or JSON lines.`);
  const plain = text.replace(/^\uFEFF/, "");
  if (/\.(jsonl|ndjson)$/i.test(name)) return jsonLines(plain);
  if (/\.json$/i.test(name)) return jsonList(plain);
  if (/\.(csv|tsv|txt)$/i.test(name)) return delimited(plain);
  return /^\s*[{[]/.test(plain) ? jsonLines(plain) : delimited(plain);
}

/** Whether a text is none: it has a NUL, or more than a few control characters. */
function isBinary(text) {
  const sample = text.slice(0, 10_000);
  const controls = [...sample].filter((sign) => sign < " " && !"\t\n\r\f".includes(sign)).length;
  return sample.includes("\0") || controls > sample.length / 20;
}

/** Rows of what `items` holds, each a {place, row}, or {place, reason} where it is no row. */
function sorted(items) {
  const good = items.filter((item) => item.row);
  return { rows: good.map((item) => item.row), places: good.map((item) => item.place), problems: items.filter((item) => item.reason) };
}

function jsonLines(text) {
  const lines = text.split("\n").map((line, at) => ({ line, place: at + 1 })).filter(({ line }) => line.trim());
  return sorted(
    lines.map(({ line, place }) => {
      try {
        const row = JSON.parse(line);
        return isObject(row) ? { place, row } : { place, reason: "is no object" };
      } catch {
        return { place, reason: "is not JSON" };
      }
    }),
  );
}

function jsonList(text) {
  let content;
  try {
    content = JSON.parse(text);
  } catch {
    return jsonLines(text);
  }
  const list = Array.isArray(content) ? content : [content];
  return sorted(list.map((row, at) => (isObject(row) ? { place: at + 1, row } : { place: at + 1, reason: "is no object" })));
}

function delimited(text) {
  const [head, ...lines] = records(text, sniffed(text));
  if (!head) return sorted([]);
  const names = head.map((name, at) => name.trim() || `column ${at + 1}`);
  const fits = (cells) => cells.length === names.length;
  const good = lines.filter(fits);
  const kinds = names.map((_, column) => kindOf(good.map((cells) => cells[column])));
  const row = (cells) => Object.fromEntries(cells.map((cell, column) => [names[column], typed(cell, kinds[column])]));
  const wrong = (cells) => `has ${cells.length} ${cells.length === 1 ? "cell" : "cells"}, but there are ${names.length} columns`;
  // The header is the first row of the file.
  return sorted(lines.map((cells, at) => (fits(cells) ? { place: at + 2, row: row(cells) } : { place: at + 2, reason: wrong(cells) })));
}

function sniffed(text) {
  const first = text.slice(0, Math.max(0, text.indexOf("\n")) || text.length);
  const counts = SNIFFED.map((each) => first.split(each).length);
  return SNIFFED[counts.indexOf(Math.max(...counts))];
}

/** Records of cells; quotes may hold separators, line ends and doubled quotes. */
function* scan(text, separator) {
  let [cell, record, quoted] = ["", [], false];
  for (let at = 0; at < text.length; at++) {
    const sign = text[at];
    if (quoted) {
      if (sign !== '"') cell += sign;
      else if (text[at + 1] === '"') [cell, at] = [`${cell}"`, at + 1];
      else quoted = false;
    } else if (sign === '"' && cell === "") quoted = true;
    else if (sign === separator) [record, cell] = [[...record, cell], ""];
    else if (sign === "\n" || sign === "\r") {
      if (sign === "\r" && text[at + 1] === "\n") at++;
      yield [...record, cell];
      [cell, record] = ["", []];
    } else cell += sign;
  }
  if (cell !== "" || record.length) yield [...record, cell];
}

const records = (text, separator) =>
  [...scan(text, separator)].filter((cells) => cells.length > 1 || cells[0].trim() !== "");

/** A column is of numbers or truth values only if all of it is: "007" and "1e5x" stay texts. */
function kindOf(cells) {
  const filled = cells.filter((cell) => cell.trim() !== "");
  if (filled.length && filled.every((cell) => NUMBER.test(cell))) return "number";
  return filled.length && filled.every((cell) => /^(true|false)$/i.test(cell)) ? "boolean" : "text";
}

function typed(cell, kind) {
  if (cell.trim() === "") return null;
  if (kind === "number") return Number(cell);
  return kind === "boolean" ? cell.toLowerCase() === "true" : cell;
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
