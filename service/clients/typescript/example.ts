/** The client at work: `node build/example.js http://127.0.0.1:8000` after `npx tsc`. */

import { Attend, AttendError, type Schemas } from "./attend.ts";

/** Say in words what an answer is; each type has its own fields, which the compiler knows. */
export function inWords({ answer }: Schemas["Answer"]): string {
  switch (answer.type) {
    case "number": {
      if (answer.mean === null) return "no number"; // no document has one
      const spread = answer.std === null ? "" : ` ± ${answer.std.toFixed(2)}`;
      return answer.mean.toFixed(2) + spread;
    }
    case "boolean":
      return answer.value === null ? "neither yes nor no" : answer.value ? "yes" : "no";
    case "category":
    case "labels":
    case "text":
    case "image":
      return answer.value?.trim() ?? "no value";
    case "vector":
      return `${answer.vector?.length ?? 0} numbers`;
    case "object":
      return `an object of ${Object.keys(answer.fields).join(", ")}`;
    case "mixed":
      return `${answer.values?.length ?? 0} values`;
    case "nothing":
      return answer.reason;
  }
}

export async function example(url: string, apiKey?: string): Promise<string[]> {
  const attend = new Attend(url, apiKey === undefined ? {} : { apiKey });
  const params = { path: { collection: "novels" } };
  await attend.http.PUT("/v1/collections/{collection}", { params, body: { dimension: 2 } });
  await attend.upsert("novels", [
    { id: "moby-dick", vector: [1, 0], value: { stars: 4 }, payload: { year: 1851 } },
    { id: "emma", vector: [0, 1], value: { stars: 3 }, payload: { year: 1815 } },
  ]);
  const answer = await attend.search("novels", {
    query: { vector: [1, 0.2] }, // or a text, an id, a blend: one of them
    mode: "soft",
    value: "stars",
    filter: { year: { gte: 1800 } },
  });
  const lines = [`${inWords(answer)}; the best: ${answer.hits[0]?.id}`];
  const page = await attend.http.GET("/v1/collections/{collection}/documents", {
    params: { ...params, query: { filter: JSON.stringify({ year: { lt: 1850 } }), limit: 10 } },
  });
  lines.push(`${page.data?.total} of before 1850: ${page.data?.documents[0]?.id}`);
  try {
    await attend.search("novels", { query: "whales" });
  } catch (error) {
    if (!(error instanceof AttendError)) throw error;
    lines.push(`${error.status}: ${error.message}`);
  }
  return lines;
}

if (process.argv[1]?.endsWith("example.js")) {
  const lines = await example(process.argv[2] ?? "http://127.0.0.1:8000");
  console.log(lines.join("\n"));
}
