// Bring your own: a file, its columns, a collection, and the first search.

import { get, of, post, put } from "./api.js";
import { columns, documents, guess, numbered, PARTS, wrong } from "./columns.js";
import { bar, byId, h, tell } from "./dom.js";
import { parse } from "./files.js";
import { bytes, count, percent, plural, short } from "./format.js";
import { read } from "./state.js";
import { plain } from "./values.js";

const MAX_BYTES = 100e6;
const BATCH = 128;
const BATCH_CHARACTERS = 1e6;
const PREVIEWED = 6;
const TOLD = 20;
const WORDS = { id: "id", text: "text to search", value: "value to return", payload: "shown and filtered", vector: "vector", nothing: "leave out" };

const { to } = read(); // the collection to add to, where its page leads here

let rows = [];
let places = []; // of the rows in their file
let unread = []; // {place, reason} of what is no row
let unit = "row"; // how places of the file are called
let parts = new Map();
let stopped = false;

async function take(file) {
  byId("built").replaceChildren();
  if (!file) return;
  if (file.size > MAX_BYTES) {
    return tell(byId("status"), new Error(`The file has ${bytes(file.size)}, and a page takes ${bytes(MAX_BYTES)} at most; use attend build.`));
  }
  try {
    ({ rows, places, problems: unread } = parse(file.name, await file.text()));
  } catch (error) {
    byId("preview").hidden = true;
    return tell(byId("status"), error);
  }
  unit = /\.(jsonl|ndjson)$/i.test(file.name) ? "line" : "row";
  byId("preview").hidden = !rows.length;
  if (!rows.length) return tell(byId("status"), new Error(`${file.name} has no rows. Send CSV with a header line, or JSON lines.`));
  parts = guess(rows);
  byId("name").value ||= nameOf(file.name);
  tell(byId("status"), null);
  byId("status").textContent = `${file.name}: ${plural(rows.length, "row")}${unread.length ? `; ${unread.length} cannot be read` : ""}`;
  preview();
}

/** Whether a collection exists: then it keeps its settings. */
async function isThere(name) {
  return get(of(name)).then(() => true, (error) => {
    if (error.status === 404) return false;
    throw error;
  });
}

/** A name that collections may have. */
function nameOf(file) {
  const name = file.replace(/\.[^.]*$/, "").replace(/[^A-Za-z0-9_-]+/g, "-").replace(/^[-_]+|[-_]+$/g, "");
  return name.slice(0, 63) || "mine";
}

function preview() {
  const names = columns(rows);
  const choose = (name) =>
    h("select", { "aria-label": `Part of ${name}`, on: { change: (event) => change(name, event.target.value) } },
      PARTS.map((part) => h("option", { value: part, selected: parts.get(name) === part }, WORDS[part])));
  const head = names.map((name) => h("th", { scope: "col" }, h("span", { dir: "auto" }, short(name, 40)), choose(name)));
  const body = rows.slice(0, PREVIEWED).map((row) => h("tr", {}, names.map((name) => h("td", { dir: "auto" }, row[name] == null ? "" : plain(row[name])))));
  byId("rows").replaceChildren(h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
  check();
}

function change(name, part) {
  parts.set(name, part);
  check();
}

function check() {
  const reason = wrong(parts);
  byId("wrong").textContent = reason ?? "";
  byId("noted").replaceChildren(...leftOut(unread), h("p", { class: "quiet" }, numbered(rows, parts) ?? ""));
  byId("build").disabled = reason !== null;
}

async function build(event) {
  event.preventDefault();
  const name = byId("name").value;
  const { made, empty } = documents(rows, parts, places);
  byId("build").disabled = true;
  stopped = false;
  try {
    const settings = made[0]?.document.vector ? { dimension: made[0].document.vector.length } : byId("encoder").value ? { encoder: byId("encoder").value } : {};
    if (name !== to || !(await isThere(name))) await put(of(name), settings);
    const done = await send(name, made);
    tell(byId("status"), null);
    const without = empty.map((place) => ({ place, reason: "has no text" }));
    finished(name, done, [...unread, ...without, ...done.problems].sort((a, b) => a.place - b.place));
  } catch (error) {
    tell(byId("status"), error);
  } finally {
    byId("build").disabled = false;
  }
}

async function send(name, made) {
  const done = { written: 0, problems: [] };
  for (let at = 0; at < made.length && !stopped; ) {
    const batch = next(made, at);
    await write(name, batch, done);
    at += batch.length;
    progress(at, made.length, name);
  }
  return done;
}

/** Documents from one on, as many as make a small request. */
function next(made, at) {
  let [count, size] = [0, 0];
  while (count < BATCH && at + count < made.length && size < BATCH_CHARACTERS) {
    size += JSON.stringify(made[at + count].document).length;
    count++;
  }
  return made.slice(at, at + count);
}

/** A batch is taken whole or not at all; of one that is refused each document is tried alone. */
async function write(name, batch, done) {
  try {
    await post(of(name, "documents"), batch.map(({ document }) => document));
    done.written += batch.length;
  } catch (error) {
    if (error.status !== 422) throw error;
    if (batch.length === 1) done.problems.push({ place: batch[0].place, reason: `was rejected: ${error.message}` });
    else for (const each of batch) await write(name, [each], done);
  }
}

function progress(done, total, name) {
  const stop = () => (stopped = true);
  byId("built").replaceChildren(
    h("div", { role: "progressbar", "aria-label": `Building ${name}`, "aria-valuemin": 0, "aria-valuemax": total, "aria-valuenow": done }, bar(done / total)),
    h("div", { class: "field" }, h("span", {}, `${count(done)} of ${plural(total, "document")}, ${percent(done / total)}`), h("button", { type: "button", on: { click: stop } }, "Stop")),
  );
}

function finished(name, done, out) {
  const total = rows.length + unread.length;
  byId("noted").replaceChildren();
  byId("built").replaceChildren(
    h("p", {}, h("strong", {}, `${plural(done.written, "document")} in ${name}`), ` of ${plural(total, "row")}. `, stopped ? "Stopped; add the same file again to resume." : ""),
    ...[numbered(rows, parts)].filter(Boolean).map((sentence) => h("p", {}, sentence)),
    ...leftOut(out),
    h("p", {}, h("a", { class: "button main", href: `/search?collection=${encodeURIComponent(name)}` }, `Search ${name}`), " ", h("a", { class: "button", href: `/collection?collection=${encodeURIComponent(name)}` }, "Browse it")),
  );
  byId("built").querySelector("a").focus();
}

/** The rows that are left out, each with its reason; an empty list where there are none. */
function leftOut(out) {
  if (!out.length) return [];
  const numbers = out.slice(0, TOLD).map(({ place }) => place).join(", ");
  const items = out.slice(0, TOLD).map(({ place, reason }) => h("li", {}, `${unit === "row" ? "Row" : "Line"} ${place} ${reason}.`));
  const more = out.length > TOLD ? h("li", {}, `and ${count(out.length - TOLD)} more`) : null;
  return [h("div", { class: "bad" }, h("p", {}, `${out.length} left out: ${unit} ${numbers}${more ? ", …" : ""}`), h("ul", {}, items, more))];
}

function start() {
  if (to) byId("name").value = to;
  const zone = byId("drop");
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("over");
  });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    take(event.dataTransfer.files[0]);
  });
  byId("file").addEventListener("change", (event) => take(event.target.files[0]));
  byId("add").addEventListener("submit", build);
}

start();
