/** A typed client of an Attend server; example.ts and docs/how-to/typescript.md show its use. */

import createClient, { type Client } from "openapi-fetch";

import type { components, paths } from "./schema.d.ts";

export type Schemas = components["schemas"];

/** A refused request: the message is the server's sentence, the problem what RFC 9457 says of it. */
export class AttendError extends Error {
  override readonly name = "AttendError";
  readonly status: number;
  readonly problem: Schemas["ProblemDetails"] | undefined;

  constructor(status: number, sentence: string, problem?: Schemas["ProblemDetails"]) {
    super(sentence);
    this.status = status;
    this.problem = problem;
  }
}

export interface Options {
  apiKey?: string;
  /** Milliseconds after which a request is given up; 60,000 if absent. */
  timeout?: number;
}

export class Attend {
  /** Every operation of the server by its path, with its types: `http.GET("/v1/collections")`. */
  readonly http: Client<paths>;

  constructor(url: string, { apiKey, timeout = 60_000 }: Options = {}) {
    this.http = createClient<paths>({
      baseUrl: url.replace(/\/+$/, ""),
      headers: apiKey === undefined ? {} : { Authorization: `Bearer ${apiKey}` },
      fetch: (request) => {
        const signal = AbortSignal.any([request.signal, AbortSignal.timeout(timeout)]);
        return fetch(request, { signal });
      },
      querySerializer: { array: { style: "form", explode: false } },
    });
    this.http.use({
      async onResponse({ response }) {
        if (response.ok) return;
        const { status, headers } = response;
        if (headers.get("Content-Type")?.startsWith("application/problem+json")) {
          const problem: Schemas["ProblemDetails"] = await response.json();
          throw new AttendError(status, problem.detail, problem);
        }
        const text = (await response.text()).slice(0, 200);
        throw new AttendError(status, `The server answered ${status}: ${text}`);
      },
    });
  }

  /** Answer a query with documents, and with the value that they give together. */
  async search(collection: string, body: Schemas["SearchRequest"]): Promise<Schemas["Answer"]> {
    const params = { path: { collection } };
    const { data } = await this.http.POST("/v1/collections/{collection}/search", { params, body });
    return data as Schemas["Answer"];
  }

  /** Insert or replace documents, all or none; the next search finds them. */
  async upsert(
    collection: string,
    documents: Schemas["DocumentRequest"][],
  ): Promise<Schemas["Written"]> {
    const params = { path: { collection } };
    const body = { documents };
    const { data } = await this.http.POST("/v1/collections/{collection}/documents", { params, body });
    return data!;
  }
}
