// The documents, each with its share of the attention as a bar.

import { h } from "./dom.js";
import { number, percent, short } from "./format.js";
import { Component, Dom, draw, html } from "./html.js";
import { addressOf } from "./state.js";
import { isRecord, isShown, plain, shown } from "./values.js";

const META = 6;
const STEPS = [0.02, 0.05, 0.1, 0.25, 0.5, 1];

/** What a full bar stands for: a round share at which the heaviest fits. */
export function fullBar(weights) {
  const most = Math.max(0, ...weights);
  return STEPS.find((each) => each >= most) ?? 1;
}

/**
 * One hit as a keyed item of a list. `full` is the share of a full bar; `extra`, a template or an
 * element, goes below the hit, `chip` is a remark beside its title, and `more` are attributes of the
 * item. A hit that does not answer is `far`: its weight stands in its bar alone.
 */
export function Hit({ collection, hit, weight, rank, full = 1, extra = null, chip = null, far = false, more = {} }) {
  const { title } = hit;
  return html`<li data-id=${hit.id} ...${more}>
    <div class="weight">
      <div class="share" title=${matched(hit)}><span>${far ? "" : percent(weight)}</span><span class="rank">${rank}</span></div>
      <span class="bar" aria-hidden="true"><i style=${{ "--share": Math.min(1, weight / full) }}></i></span>
    </div>
    <div class="hit">
      <h3 dir="auto"><a href=${addressOf("/document", { collection, id: hit.id })}>${short(title, 140)}</a>${chip ? html` <span class="chip moved">${chip}</span>` : null}</h3>
      ${passage(hit.highlight, title) ?? line(hit)}
      <${Facts} hit=${hit} />
      ${extra instanceof Node ? html`<${Dom} node=${extra} />` : extra}
    </div>
  </li>`;
}

/** The picture, the value and the fields of a hit. */
export const Facts = ({ hit }) => html`<${Once} of=${hit} parts=${() => [cover(hit), value(hit.value, hit.title), meta(hit, hit.title)]} />`;

/** Elements made once of a hit, and again only for another one. */
class Once extends Component {
  shouldComponentUpdate({ of }) {
    return of !== this.props.of;
  }

  render({ parts }) {
    return parts().filter(Boolean).map((node) => html`<${Dom} node=${node} />`);
  }
}

/** A list of hits as a template; `items` are the properties of each. */
export function Hits({ label, items, kind = "hits" }) {
  return html`<ol class=${kind} aria-label=${label}>${items.map((item) => html`<${Hit} key=${item.hit.id} ...${item} />`)}</ol>`;
}

/** A list of hits drawn into its place. */
export function drawHits(place, label, items, kind = "hits") {
  draw(place, html`<${Hits} label=${label} items=${items} kind=${kind} />`);
}

/** The value; the fields of a record have names of their own. */
function value(given, title) {
  if (given === null || given === title) return null;
  const name = isRecord(given) ? null : h("span", { class: "name" }, "value");
  return h("div", { class: "value" }, name, shown(given, title));
}

/** The score in words: with several heads it is the log of the weight. */
function matched(hit) {
  const heads = hit.explanation?.logits?.length ?? 1;
  return `${heads > 1 ? "log weight" : "match"} ${number(hit.score, 3)}`;
}

/** The passage that matched, without the title where it begins with that. */
function passage(highlight, title) {
  if (!highlight?.passage || highlight.passage.trim() === title) return null;
  const begun = title.replace(/…$/, "");
  const from = highlight.passage.startsWith(begun) ? [...begun].length : 0;
  return html`<p class="passage" dir="auto">${marked(highlight.passage, highlight.spans, from)}</p>`;
}

/** Whether a hit shows nothing of its texts but the title: `line` of it is to be fetched. */
export const isBare = (hit) => passage(hit.highlight, hit.title) === null;

/** The beginning of the texts, once fetched; its place is kept meanwhile. */
function line({ line: text }) {
  return text === undefined ? null : html`<p class="passage line" dir="auto">${text || "\u00a0"}</p>`;
}

/** A text with marks around spans; offsets count characters, as Python does, and not UTF-16. */
export function marked(text, spans, from = 0) {
  const characters = [...text];
  const cut = (start, stop) => characters.slice(start, stop).join("");
  const parts = [];
  let at = from;
  for (const [start, stop] of spans.filter(([start]) => start >= from)) {
    parts.push(cut(at, start), html`<mark>${cut(start, stop)}</mark>`);
    at = stop;
  }
  return [...parts, cut(at)];
}

/** The first picture of the payload that may be shown. */
function cover(hit) {
  const found = Object.values(hit.payload ?? {}).find(isShown);
  return found ? h("div", { class: "cover" }, shown(found)) : null;
}

function meta(hit, title) {
  const is = (name, value) => [null, title, hit.value, hit.value?.[name]].includes(value);
  const told = Object.entries(hit.payload ?? {}).filter(([name, value]) => !is(name, value));
  // A column of the source may be called as the id is.
  const named = (name) => (name === "id" ? "id (column)" : name);
  const rows = told.filter(([, value]) => !isShown(value)).slice(0, META).map(([name, value]) => h("div", {}, h("dt", {}, named(name)), h("dd", {}, web(value) ?? plain(value))));
  return rows.length ? h("dl", { class: "meta" }, rows) : null;
}

/** An address of the web as a link that says where it leads; null for anything else. */
function web(value) {
  if (typeof value !== "string" || !/^https?:\/\/\S+$/i.test(value) || !URL.canParse(value)) return null;
  return h("a", { href: value, rel: "noreferrer noopener", target: "_blank", title: value }, `${new URL(value).host} ↗`);
}
