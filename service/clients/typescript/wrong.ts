/** What the compiler must refuse: each line that follows a comment with the number of an error. */

import { Attend, type Schemas } from "./attend.ts";

export async function wrong(attend: Attend, answer: Schemas["ValueAnswer"]): Promise<void> {
  // @ts-expect-error TS2322: k is a number
  await attend.search("books", { query: "a ship", k: "ten" });
  // @ts-expect-error TS2353: no such option
  await attend.search("books", { query: "a ship", top_k: 10 });
  // @ts-expect-error TS2345: a search has a query
  await attend.search("books", { k: 10 });
  // @ts-expect-error TS2322: a query has a text or an id
  await attend.search("books", { query: { text: "a ship", id: "emma" } });
  // @ts-expect-error TS2322: a query is one of its forms
  await attend.search("books", { query: {} });
  // @ts-expect-error TS2322: absent, not null
  await attend.search("books", { query: "a ship", filter: null });
  // @ts-expect-error TS2741: a document has an id
  await attend.upsert("books", [{ text: "Call me Ishmael." }]);
  // @ts-expect-error TS2345: no such path
  await attend.http.GET("/v1/collection", {});
  // @ts-expect-error TS18047: not every answer has a mean
  answer.mean.toFixed(2);
  if (answer.type === "number" && answer.mean !== null) {
    answer.mean.toFixed(2);
    // @ts-expect-error TS18047: a number has no label
    answer.value.trim();
  }
  if (answer.type === "text" && answer.value !== null) {
    answer.value.trim();
    // @ts-expect-error TS18047: a text has no mean
    answer.mean.toFixed(2);
  }
}
