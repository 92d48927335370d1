// Files as rows: CSV and TSV (RFC 4180), JSON lines, a JSON list.

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;
const SNIFFED = [",", "\t", ";"];

/** {rows, problems}: objects by field, and a sentence for each line that is none. */
export function parse(name, text) {
  const plain = text.replace(/^\uFEFF/, "");
  if (/\.(jsonl|ndjson)$/i.test(name)) return jsonLines(plain);
  if (/\.json$/i.test(name)) return jsonList(plain);
  if (/\.(csv|tsv|txt)$/i.test(name)) return delimited(plain);
  return /^\s*[{[]/.test(plain) ? jsonLines(plain) : delimited(plain);
}

function jsonLines(text) {
  const [rows, problems] = [[], []];
  text.split("\n").forEach((line, at) => {
    if (!line.trim()) return;
    try {
      const row = JSON.parse(line);
      if (isObject(row)) rows.push(row);
      else problems.push(`Line ${at + 1} is no object.`);
    } catch {
      problems.push(`Line ${at + 1} is not JSON.`);
    }
  });
  return { rows, problems };
}

function jsonList(text) {
  let given;
  try {
    given = JSON.parse(text);
  } catch {
    return jsonLines(text);
  }
  if (!Array.isArray(given)) return { rows: isObject(given) ? [given] : [], problems: [] };
  const problems = given.flatMap((row, at) => (isObject(row) ? [] : [`Item ${at + 1} is no object.`]));
  return { rows: given.filter(isObject), problems };
}

function delimited(text) {
  const [head, ...lines] = records(text, sniffed(text));
  if (!head) return { rows: [], problems: [] };
  const names = head.map((name, at) => name.trim() || `column ${at + 1}`);
  const problems = [];
  const kept = lines.filter((cells, at) => {
    const fits = cells.length === names.length;
    if (!fits) problems.push(`Row ${at + 2} has ${cells.length} cells, but there are ${names.length} columns.`);
    return fits;
  });
  const kinds = names.map((_, column) => kindOf(kept.map((cells) => cells[column])));
  const rows = kept.map((cells) =>
    Object.fromEntries(cells.map((cell, column) => [names[column], typed(cell, kinds[column])])),
  );
  return { rows, problems };
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
