// The start page: stories that play in place. The first plays by itself.

import { get, of, post } from "./api.js";
import { copySearch } from "./copy.js";
import { byId } from "./dom.js";
import { percent, short } from "./format.js";
import { Hits } from "./hits.js";
import { Dom, draw, html } from "./html.js";
import { effectChip, judgeButtons, Judgements } from "./judge.js";
import { Card } from "./panel.js";
import { queryOf } from "./queries.js";
import { addressOf } from "./state.js";
import { titlesOf } from "./titles.js";
import { isAnswered, weigh } from "./weigh.js";
import { whyButton } from "./why.js";

const SHOWN = 3; // hits below an answer
const COMPARED = 5; // of the best under each version
const RECOMMENDED = 4;
const BECAUSE = 3;
const PAUSE = 1200; // milliseconds that the version before is shown

let turn = 0; // of the story that plays; what an earlier one waits for is dropped

/** Play stories where they are clicked, in `#stage`. */
export function playStories(start) {
  const links = [...start.querySelectorAll("a[data-story]")];
  for (const link of links) {
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return; // opens a tab
      event.preventDefault();
      play(link, links);
    });
  }
  if (links.length) play(links[0], links);
}

const STORIES = { ask: playAnswer, unanswered: playAnswer, learned: playLearned, recommend: playRecommended };

async function play(link, links) {
  const mine = ++turn;
  const stage = byId("stage");
  for (const each of links) {
    if (each === link) each.setAttribute("aria-current", "true");
    else each.removeAttribute("aria-current");
  }
  const given = Object.fromEntries(new URL(link.href).searchParams);
  const show = (template) => {
    if (mine !== turn || !stage.isConnected) return false;
    draw(stage, html`<div key=${link.dataset.story}>${template}</div>`);
    return true;
  };
  try {
    await STORIES[link.dataset.story](given, show, link, () => play(link, links));
  } catch (error) {
    show(html`<p class="problem">${error.message}</p>`);
  }
}

async function searched(collection, q, more = {}) {
  const query = await queryOf(collection, q);
  const body = { query, title: true, k: 100, mode: "soft", min_confidence: 0, explain: true, highlight: true, ...more };
  const answer = await post(of(collection, "search"), body);
  answer.asked = body;
  return answer;
}

/** An answer with its heaviest documents; where nothing should answer, the first question of which that holds. */
async function playAnswer({ collection, q, value }, show, link) {
  const others = JSON.parse(link.dataset.others ?? "[]");
  let answer = await searched(collection, q, { value });
  let weighed = weigh(answer, 1);
  for (const other of others) {
    if (!isAnswered(answer, weighed.nothing, 1)) break;
    answer = await searched(collection, other, { value });
    weighed = weigh(answer, 1);
  }
  const asked = String(answer.asked.query.id ?? answer.asked.query);
  const teaches = byId("start").dataset.teaches !== undefined && typeof answer.asked.query === "string";
  const judgements = teaches ? new Judgements(collection, answer.asked.query) : null;
  const search = { collection, q: asked, value };
  const on = {
    jump: (id) => location.assign(addressOf("/document", { collection, id })),
    copy: () => copySearch(collection, { query: answer.asked.query, k: 10, mode: "soft", ...(value ? { value } : {}) }),
  };
  let effects = new Map();
  let problem = null;
  const again = async (error) => {
    problem = error;
    if (!error) {
      const { query, ...options } = answer.asked;
      ({ answer, effects } = await judgements.ask(options));
      answer.asked = { query, ...options };
      weighed = weigh(answer, 1);
    }
    paint();
  };
  const paint = () => {
    const items = isAnswered(answer, weighed.nothing, 1) ? weighed.order.filter((at) => at < answer.hits.length).slice(0, SHOWN).map((at, rank) => itemOf(answer.hits[at], weighed.weights[at], rank + 1)) : [];
    return show(html`<h2 key="title">${collection}: <a href=${addressOf("/search", search)}>${asked}</a></h2>
      <${Card} key="card" result=${answer} weighed=${weighed} search=${search} on=${on} />
      ${problem ? html`<p key="problem" class="problem">${problem.message}</p>` : null}
      ${items.length ? html`<${Hits} key="hits" label="Documents" items=${items} />` : null}`);
  };
  const itemOf = (hit, weight, rank) => {
    const judge = judgements ? html`${judgeButtons(hit, judgements, rank, again)}${effectChip(effects.get(hit.id), weight)}` : null;
    return { collection, hit, weight, rank, extra: html`<${Dom} node=${whyButton(hit, answer, collection)} />${judge}` };
  };
  paint();
  await judgements?.read().catch(() => {}); // labels of before are a help, no part of the story
  if (judgements?.labels.size) paint();
}

/** The same query under two versions, as one list that re-orders. */
async function playLearned({ collection, q, value, before, after }, show) {
  const versions = [Number(before), Number(after)];
  const [answers, { evidence }] = await Promise.all([
    Promise.all(versions.map((projection) => searched(collection, q, { projection, value }))),
    get(of(collection, "projections", String(after))),
  ]);
  const sides = answers.map(ranked);
  const ids = [...new Set(sides.flatMap((side) => side.slice(0, COMPARED).map(({ id }) => id)))];
  const titles = new Map(answers.flatMap(({ hits }) => hits.map((hit) => [hit.id, hit.title])));
  const weights = sides.map((side) => new Map(side.map(({ id, weight }) => [id, weight])));
  const link = addressOf("/compare", { collection, q, before, after });
  let isAfter = false;
  const paint = () => {
    const at = Number(isAfter);
    const place = (id) => weights[at].get(id) ?? 0;
    const order = [...ids].sort((a, b) => place(b) - place(a));
    const choose = (side) => () => {
      isAfter = side;
      paint();
    };
    const toggle = [[false, "Before"], [true, "After"]].map(([side, word]) => html`<button type="button" aria-pressed=${String(side === isAfter)} onClick=${choose(side)}>${word}</button>`);
    return show(html`<h2 key="title">${collection}: ${q}</h2>
      <div key="sides" class="row sides" role="group" aria-label="Version">${toggle}<span class="quiet">${`version ${versions[at]}`}</span></div>
      <ol key="list" class="changes" aria-label="Documents before and after">${order.map((id) => change(id, { collection, title: titles.get(id), was: weights[0].get(id), is: weights[1].get(id), share: place(id) }))}</ol>
      <p key="proof" class="proof">${evidence.verdict} <a href=${link}>Compare the versions</a></p>`);
  };
  if (!paint()) return;
  await new Promise((resume) => setTimeout(resume, PAUSE));
  if (isAfter) return;
  isAfter = true;
  paint();
}

/** The hits of an answer with their weights, the heaviest first. */
function ranked(answer) {
  const { weights, order } = weigh(answer, 1);
  return order.filter((at) => at < answer.hits.length).map((at) => ({ id: answer.hits[at].id, weight: weights[at] }));
}

function change(id, { collection, title, was, is, share }) {
  const said = (weight) => (weight === undefined ? "–" : percent(weight));
  const kind = (is ?? 0) > (was ?? 0) ? "rose" : "fell";
  return html`<li key=${id} data-id=${id} class=${kind}>
    <a dir="auto" href=${addressOf("/document", { collection, id })}>${short(title, 90)}</a>
    <span class="bar" aria-hidden="true"><i style=${{ "--share": share }}></i></span>
    <span class="number">${said(was)} → ${said(is)}</span>
  </li>`;
}

/** What a user may like next, each with the documents that it is because of. */
async function playRecommended({ collection, user }, show, link, again) {
  const body = { user, k: RECOMMENDED, title: true, explain: true, on_missing: "skip" };
  const { hits } = await post(of(collection, "recommend"), body);
  const reasons = hits.map((hit) => (hit.because ?? []).filter(({ id }) => id !== undefined).slice(0, BECAUSE));
  const names = await titlesOf(collection, reasons.flat().map(({ id }) => id));
  const because = (list) => list.map(({ id, weight }) => `${short(names.get(id) ?? id, 40)} (${percent(weight)})`).join(", ");
  const items = hits.map((hit, at) => html`<li key=${hit.id} data-id=${hit.id}>
    <a dir="auto" href=${addressOf("/document", { collection, id: hit.id })}>${short(hit.title, 90)}</a>
    ${reasons[at].length ? html`<span class="quiet" dir="auto">because of ${because(reasons[at])}</span>` : null}
  </li>`);
  const users = JSON.parse(link.dataset.users ?? "[]");
  const choose = ({ target }) => {
    link.setAttribute("href", addressOf("/recommend", { collection, user: target.value }));
    again();
  };
  const options = users.map((each) => html`<option key=${each} value=${each} selected=${each === user}>${short(each, 60)}</option>`);
  const select = users.length > 1 ? html`<label class="field pick">Recommend for <select onChange=${choose}>${options}</select></label>` : null;
  show(html`<h2 key="title">${collection}: <a href=${addressOf("/recommend", { collection, user })}>for ${user}</a></h2>${select}
    ${items.length ? html`<ol key="list" class="recommended" aria-label="Recommended">${items}</ol>` : html`<p key="none">Nothing to recommend yet.</p>`}`);
}
