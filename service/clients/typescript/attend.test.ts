/** Run against a server: ATTEND_URL has its address, ATTEND_KEY an API key that may do all. */

import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { before, test } from "node:test";

import { Attend, AttendError } from "./attend.ts";
import { example, inWords } from "./example.ts";

const url = process.env["ATTEND_URL"]!;
const apiKey = process.env["ATTEND_KEY"]!;
const attend = new Attend(`${url}/`, { apiKey });
const books = { path: { collection: "books" } };

before(async () => {
  await attend.http.PUT("/v1/collections/{collection}", { params: books, body: { dimension: 2 } });
  const written = await attend.upsert("books", [
    { id: "whale", vector: [1, 0], value: { stars: 4, at: "sea" }, text: "A white whale." },
    { id: "https://x.example//emma", vector: [0, 1], value: { stars: 2, at: "village" } },
  ]);
  assert.equal(written.added, 2);
});

test("the type of an answer says which of its fields are there", async () => {
  const { answer, hits } = await attend.search("books", { query: [1, 1], mode: "soft" });
  assert.deepEqual(hits.map((hit) => hit.id).sort(), ["https://x.example//emma", "whale"]);
  assert(answer.type === "object");
  const stars = answer.fields["stars"];
  assert(stars?.type === "number" && stars.mean !== null);
  assert(Math.abs(stars.mean - 3) < 1e-9);
  const place = await attend.search("books", { query: { id: "whale" }, value: "at" });
  assert.equal(inWords(place), "village");
});

test("an error has the sentence and the problem of the server", async () => {
  const refused = attend.search("films", { query: [1, 0] });
  await assert.rejects(refused, (error) => {
    assert(error instanceof AttendError);
    assert.equal(error.status, 404);
    assert.match(error.message, /films/);
    assert.equal(error.problem?.type, "/docs#not-found");
    return true;
  });
  const nobody = new Attend(url).search("books", { query: [1, 0] });
  await assert.rejects(nobody, { name: "AttendError", status: 401 });
});

test("an id in the path may be an address", async () => {
  const params = { path: { ...books.path, id: "https://x.example//emma" } };
  const one = "/v1/collections/{collection}/documents/{id}";
  const shown = await attend.http.GET(one, { params });
  assert.equal(shown.data?.id, params.path.id);
  const revised = await attend.http.PATCH(one, { params, body: { payload: { lent: true } } });
  assert.deepEqual(revised.data?.payload, { lent: true });
});

test("names in an address go as one list", async () => {
  const refused = attend.http.GET("/search", {
    params: { query: { q: "whale", collection: "books", include: ["text", "passage"] } },
  });
  // The collection takes vectors alone; of `include` there is nothing to say.
  await assert.rejects(refused, { status: 422, message: /send such a vector/ });
});

test("what a proxy answers is told with its status", async () => {
  const proxy = createServer((_, response) => response.writeHead(502).end("<p>Bad gateway"));
  await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  const { port } = proxy.address() as AddressInfo;
  const lost = new Attend(`http://127.0.0.1:${port}`).search("books", { query: [1, 0] });
  await assert.rejects(lost, { status: 502, message: "The server answered 502: <p>Bad gateway" });
  proxy.close();
});

test("a server that does not answer is given up", async () => {
  const mute = createServer(() => undefined);
  await new Promise<void>((resolve) => mute.listen(0, "127.0.0.1", resolve));
  const { port } = mute.address() as AddressInfo;
  const waiting = new Attend(`http://127.0.0.1:${port}`, { timeout: 50 });
  await assert.rejects(waiting.search("books", { query: [1, 0] }), { name: "TimeoutError" });
  const signal = AbortSignal.abort(new Error("left the page"));
  const left = waiting.http.GET("/v1/collections", { signal });
  await assert.rejects(left, { message: "left the page" });
  mute.closeAllConnections();
  mute.close();
});

test("the example does what it says", async () => {
  const [answer, page, error, ...rest] = await example(url, apiKey);
  // Logits 1/√2 and 0.2/√2: weights 0.638 and 0.362 of 4 and 3 stars.
  assert.equal(answer, "3.64 ± 0.48; the best: moby-dick");
  assert.equal(page, "1 of before 1850: emma");
  assert.match(error!, /^422: .*vector/);
  assert.deepEqual(rest, []);
});
