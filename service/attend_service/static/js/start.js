// The start page: its first question, answered.

import { of, post } from "./api.js";
import { h } from "./dom.js";
import { drawHits } from "./hits.js";
import { panel } from "./panel.js";
import { weigh } from "./weigh.js";

const SHOWN = 3;

/** Draw the answer of the first question of the page; where that fails the page stays as it is. */
export async function example(place) {
  const link = document.querySelector("#questions a");
  if (!place || !link) return;
  const parameters = new URL(link.href).searchParams;
  const [collection, q] = [parameters.get("collection"), parameters.get("q")];
  const body = { query: q, title: true, k: 100, mode: "soft", min_confidence: 0, explain: true, highlight: true, value: parameters.get("value") ?? undefined };
  try {
    const answer = await post(of(collection, "search"), body);
    if (!place.isConnected || !answer.attended) return;
    answer.asked = body;
    const weighed = weigh(answer, 1);
    const hits = weighed.order.slice(0, SHOWN).map((at, rank) => ({ collection, hit: answer.hits[at], weight: weighed.weights[at], rank: rank + 1 }));
    const list = h("div");
    drawHits(list, "Documents", hits);
    place.replaceChildren(
      h("h2", {}, "For example: ", h("a", { href: link.href }, q)),
      panel(answer, weighed, 1, false, null, { collection, q }),
      list,
    );
  } catch {
    // An example only: a search of the reader's own says what is wrong.
  }
}
