// The answer card above the list: the answer in large, who shares its weight, and how sure it is.

import { hardAnswer, headline } from "./answer.js";
import { blend } from "./blend.js";
import { count, percent, plural, short } from "./format.js";
import { Dom, html } from "./html.js";
import { addressOf, context } from "./state.js";
import { isAnswered, likeness, weigh } from "./weigh.js";

const SEGMENTS = 6;
const LEAST = 0.025; // of the weight, from which a document has a segment of its own
const NEXT = [["map", "Map", "The documents on a map"], ["compare", "Versions", "The same query under two versions"], ["teach", "Teach", "Judge these documents"]];

/**
 * The answer card. `result` is an answer of the API with `explain`, `weighed` its weights at a
 * temperature `heat`, and `served` what the server says at that one, if it was asked. `search` has
 * the collection, the query, the filter, the value and the version that one sees; `on` has what to
 * do: `jump` to a document by its id, `why`, `copy`, and `clear` the filters.
 */
export function Card({ result, weighed, heat = 1, hard = false, served = null, search, on = {} }) {
  const answered = isAnswered(result, weighed.nothing, heat);
  const main = answered ? large(result, weighed, heat, hard, served, search.value) : null;
  return html`<section class=${answered ? "answer" : "answer refused"} aria-label="Answer">
    ${answered ? html`<${Large} ...${main} hard=${hard} />` : html`<div class="head"><p class="big text">${refusal(result)}</p>${result.attended || !on.clear || !search.filter ? null : html`<button type="button" class="plain" onClick=${on.clear}>Clear them</button>`}</div>`}
    ${main?.picture}
    ${result.attended ? html`<${Segments} result=${result} weighed=${weighed} answered=${answered} jump=${on.jump} />` : null}
    ${result.attended ? html`<${Confidence} result=${result} weighed=${weighed} heat=${heat} search=${search} />` : null}
    <${Actions} result=${result} answered=${answered} search=${search} on=${on} />
  </section>`;
}

/** Whether what they say together takes the server: it was not asked at this temperature yet. */
export function takesServer(result, heat) {
  return heat !== 1 && !isOurs(result);
}

function refusal(result) {
  if (result.attended) return "Nothing here answers that.";
  return result.asked?.filter ? "No document passes these filters." : "This collection has no documents.";
}

/** What the card says in large, of the weights that are shown. */
function large(result, weighed, heat, hard, served, field) {
  const { weights, order, nothing } = weighed;
  const values = result.hits.map((hit) => hit.value);
  const ids = result.hits.map((hit) => hit.id);
  const list = [...weights.slice(0, values.length)];
  const first = order.find((at) => at < values.length);
  const best = { title: result.hits[first].title, weight: list[first] };
  const looks = { values, weights: list, share: 1 - nothing, field: field ?? "", best, hard };
  if (hard) return headline(hardAnswer(result.answer, values, order, ids), { ...looks, share: 1 });
  if (isOurs(result)) return headline(blend(result.answer, values, list, ids), looks);
  if (heat === 1) return headline(result.answer, looks);
  return served ? headline(served, looks) : { large: "…", beside: "The server blends this when the slider rests.", chips: [], share: null };
}

/** Whether the page blends as the server does: once per answer. */
function isOurs(result) {
  if (result.attended > result.hits.length) return false;
  if (result.ours === undefined) {
    const values = result.hits.map((hit) => hit.value);
    const ids = result.hits.map((hit) => hit.id);
    const own = blend(result.answer, values, [...weigh(result, 1).weights], ids);
    result.ours = isNear(own, result.answer);
  }
  return result.ours;
}

function isNear(own, theirs) {
  if (!theirs.vector || !own.vector) return true;
  return theirs.vector.every((each, at) => Math.abs(each - own.vector[at]) < 1e-6 * (1 + Math.abs(each)));
}

function Large({ large, exact, kind = "", share, beside, chips, hard }) {
  const text = large instanceof Node ? html`<${Dom} as="span" node=${large} />` : large;
  return html`<div class="head">
    <p class=${`big ${kind}`} title=${exact} dir="auto"><span class="said">${text}</span>${share === null || share === undefined ? null : html` <span class="share">${percent(share)}</span>`}</p>
    ${beside || hard ? html`<p class="beside-it">${[beside, hard ? "of the best document" : ""].filter(Boolean).join(", ")}</p>` : null}
    ${chips.length ? html`<ul class="chips others">${chips.map((text) => html`<li class="chip" dir="auto">${text}</li>`)}</ul>` : null}
  </div>`;
}

/** One bar of 100 %: the heaviest documents, the others, and no answer, hatched. */
function Segments({ result, weighed, answered, jump }) {
  const { weights, order, nothing } = weighed;
  const shown = order.filter((at) => at < result.hits.length && weights[at] >= LEAST).slice(0, SEGMENTS);
  const others = Math.max(0, 1 - nothing - shown.reduce((sum, at) => sum + weights[at], 0));
  const said = (name, weight) => (answered ? `${name}, ${percent(weight)}` : name);
  const rest = result.attended - shown.length;
  return html`<ul class="whole" aria-label="Who shares the weight">
    ${shown.map((at, rank) => {
      const { id, title } = result.hits[at];
      const name = short(title, 60);
      return html`<li key=${id} class=${rank ? "" : "first"} style=${{ flexGrow: weights[at] }}><button type="button" aria-label=${said(name, weights[at])} title=${said(name, weights[at])} onClick=${() => jump(id)}><span>${name}</span></button></li>`;
    })}
    ${rest > 0 && others > 0.0005 ? html`<li key=" others" class="rest" style=${{ flexGrow: others }} title=${said(plural(rest, "other"), others)}><span>${plural(rest, "other")}</span></li>` : null}
    ${nothing > 0.0005 ? html`<li key=" none" class="none" style=${{ flexGrow: nothing }} title=${said("No answer", nothing)}><span>${answered ? `no answer ${percent(nothing)}` : "no answer"}</span></li>` : null}
  </ul>`;
}

/** Where the query lies between what is foreign here and what is answered, beside the threshold. */
function Confidence({ result, weighed, heat, search }) {
  if (result.calibrated === null) {
    return html`<p class="quiet">Confidence not fitted yet. <a href=${addressOf("/teach", context(search))}>Teach it</a></p>`;
  }
  const place = likeness(result, weighed.nothing, heat);
  if (place === null) return html`<p class="quiet">The confidence is fitted for another focus; move it back to see it.</p>`;
  const words = place < 0.5 ? "below the threshold: unlike what is answered here" : "above the threshold: like what is answered here";
  return html`<div class="likeness" role="img" aria-label=${`Confidence ${words}`}>
    <span>unlike anything here</span>
    <span class="track"><i class="threshold"></i><i class="mark" style=${{ left: `${(100 * place).toFixed(1)}%` }}></i></span>
    <span>like what it answers</span>
  </div>`;
}

function Actions({ result, answered, search, on }) {
  const links = NEXT.map(([view, word, title]) => html`<li><a href=${addressOf(`/${view}`, context(search))} title=${title}>${word}</a></li>`);
  return html`<div class="row next"><ul class="chips" aria-label="Look further">
    ${answered && on.why ? html`<li><button type="button" onClick=${on.why}>Why</button></li>` : null}
    ${links}
    ${on.copy ? html`<li><button type="button" title="This search as code: curl, Python, TypeScript" onClick=${on.copy}>Copy</button></li>` : null}
  </ul><span class="quiet">${result.exact ? "" : "approximate · "}version ${result.projection}</span></div>`;
}

/** The weight of the no-answer score as a row of the list; null where none was fitted. */
export function NoAnswer({ result, weighed }) {
  if (!result.weighing.null) return null;
  return html`<ul class="hits"><li class="null">
    <div class="weight"><div class="share">${percent(weighed.nothing)}</div><span class="bar null" aria-hidden="true"><i style=${{ "--share": weighed.nothing }}></i></span></div>
    <div class="hit quiet">No answer</div>
  </li></ul>`;
}

/** Below the list: what `rest` of the attended share, and `more`, which shows some of them. */
export function Tail({ weights, rest, listable, more, answered }) {
  if (!rest.length) return null;
  const share = rest.reduce((sum, at) => sum + weights[at], 0);
  const text = answered ? `${count(rest.length)} more, ${percent(share)} together. ` : `${count(rest.length)} more. `;
  return html`<div class="tail">${text}${listable ? html`<button type="button" class="plain" onClick=${more}>${`Show ${Math.min(20, listable)} more`}</button>` : null}</div>`;
}
