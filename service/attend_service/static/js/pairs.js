// Token by token: what each pair of tokens adds to a match, as a table under a hit.

import { h, scrolled, tell } from "./dom.js";
import { number, plural } from "./format.js";

const MOST_ROWS = 16;
const MOST_COLUMNS = 18;
const WRITTEN = 8; // of the strongest pairs have their number in the table
const NAMED = 3; // of them are named below it
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/**
 * What opens under a hit. `load` asks for the explanation of the hit, with its tokens, when it is
 * opened first; the hit keeps both, so that a list that is painted again asks nobody.
 */
export function tokenPairs(hit, load) {
  const place = h("div", {});
  const fill = async () => {
    try {
      hit.pairs ??= load(hit);
      place.replaceChildren(table(await hit.pairs));
    } catch (error) {
      tell(place, error);
    }
  };
  const toggled = ({ target }) => {
    hit.open = target.open;
    if (hit.open && !place.hasChildNodes()) fill();
  };
  if (hit.open) fill();
  return h("details", { class: "fold pairs", open: hit.open, on: { toggle: toggled } }, h("summary", {}, "Token by token"), place);
}

function table({ dense, tokens }) {
  if (!tokens?.query.length || !tokens.passage.length) return h("p", { class: "quiet" }, "The tokens of this document do not make up its match: a vector of its own or a question matched, or the scorer compares otherwise.");
  const { query, passage, shares, rest } = tokens;
  const rows = strongest(shares, MOST_ROWS);
  const columns = strongest(passage.map((_, column) => shares.map((line) => line[column])), MOST_COLUMNS);
  const cells = rows.map((row) => columns.map((column) => ({ share: shares[row][column], pair: [word(query[row]), word(passage[column])] })));
  const ranked = cells.flat().sort((a, b) => Math.abs(b.share) - Math.abs(a.share));
  const most = Math.abs(ranked[0].share) || 1;
  const said = (share) => share.toFixed(digits(most)).replace("-", "−");
  const named = ({ share, pair }) => `“${pair[0]}” with “${pair[1]}” ${said(share)}`;
  const written = new Set(ranked.slice(0, WRITTEN));
  const head = h("tr", {}, h("td", {}), columns.map((column) => h("th", { scope: "col" }, h("span", { dir: "auto" }, word(passage[column])))));
  const body = cells.map((line) =>
    h("tr", {}, h("th", { scope: "row", dir: "auto" }, line[0].pair[0]), line.map((cell) => drawn(cell.share, most, said, written.has(cell)))),
  );
  const readout = h("p", { class: "readout", role: "status" }, `Strongest: ${ranked.slice(0, NAMED).map(named).join(", ")}. Hover or use arrow keys for the others.`);
  const wide = scrolled("Pairs of tokens; arrow keys go from pair to pair", h("table", {}, h("thead", {}, head), h("tbody", {}, body)));
  walked(wide, rows.length, columns.length, (row, column) => {
    readout.textContent = named(cells[row][column]);
  });
  const left = [cut(query, rows, "the query"), cut(passage, columns, "the passage")].filter(Boolean).join(" and ");
  return h(
    "figure",
    {},
    h("figcaption", {}, `What each pair adds to the match of the embeddings, ${number(dense, 3)}: tokens of the query at the left, of the passage above. The stronger the colour, the more; a minus takes away.`),
    wide,
    readout,
    h("p", { class: "quiet" }, left ? `Shown in their order are the strongest ${left}. ` : null, sum(total(ranked.map(({ share }) => share)), total(shares.flat()), rest)),
  );
}

/** What the pairs shown, the others and all else add up to. */
function sum(shown, all, rest) {
  const others = Math.abs(all - shown) < 1e-6 ? "" : `, all other pairs ${number(all - shown, 2)}`;
  return `These pairs add ${number(shown, 2)}${others}; the remaining ${number(rest, 2)} come from tokens that the model adds to every text, and from what was learned.`;
}

/** The places of the `most` lines with the largest shares, in their own order. */
function strongest(lines, most) {
  const sizes = lines.map((line) => Math.max(...line.map(Math.abs)));
  const places = sizes.map((_, at) => at).sort((a, b) => sizes[b] - sizes[a] || a - b);
  return places.slice(0, most).sort((a, b) => a - b);
}

/** A token as a label: those of some encoders begin with a blank, or are one. */
const word = ({ text }) => text.trim() || "␣";

/** How many tokens of a text are shown, where some are left out; null where all are. */
function cut(words, shown, of) {
  return shown.length < words.length ? `${shown.length} of ${plural(words.length, "token")} of ${of}` : null;
}

/** A cell; the number of one that is pale is there for those who cannot see it. */
function drawn(share, most, said, isWritten) {
  const text = isWritten ? said(share) : h("span", { class: "hidden" }, said(share));
  return h("td", { class: share < 0 ? "less" : null, share: Math.abs(share) / most }, text);
}

/** Hovering and arrow keys point at one cell of a table; `point` is told its row and its column. */
function walked(wide, rows, columns, point) {
  let at = null;
  const go = (row, column) => {
    at = [row, column];
    for (const each of wide.querySelectorAll(".at")) each.classList.remove("at");
    const cell = wide.querySelectorAll("tbody tr")[row].querySelectorAll("td")[column];
    cell.classList.add("at");
    point(row, column);
    return cell;
  };
  wide.addEventListener("pointerover", ({ target }) => {
    const cell = target.closest("tbody td");
    if (cell) go(cell.parentElement.sectionRowIndex, cell.cellIndex - 1);
  });
  wide.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault();
    const within = (place, count) => Math.max(0, Math.min(count - 1, place));
    const [row, column] = at ? [within(at[0] + step[0], rows), within(at[1] + step[1], columns)] : [0, 0];
    go(row, column).scrollIntoView({ block: "nearest", inline: "nearest" });
  });
}

const total = (list) => list.reduce((sum, each) => sum + each, 0);

/** Decimals at which the largest has two digits. */
const digits = (most) => Math.max(0, Math.min(6, 1 - Math.floor(Math.log10(most))));
