// The API of this server, which programs use too.

/** What went wrong, as a sentence for people; `status` is 0 where the server was not reached. */
export class Problem extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export const get = (path) => call("GET", path);
export const post = (path, body) => call("POST", path, body);
export const put = (path, body) => call("PUT", path, body);
export const del = (path, body) => call("DELETE", path, body);

/** The address of a collection, or of something of it. */
export function of(collection, ...parts) {
  return ["/v1/collections", ...[collection, ...parts].map(encodeURIComponent)].join("/");
}

/**
 * Searches together; `lines` are what was typed for each. Of one that cannot be answered the
 * sentence says which it was.
 */
export async function batch(collection, searches, lines, more = {}) {
  const found = await post(`${of(collection, "search")}/batch`, { searches, ...more });
  found.answers.forEach(({ error }, at) => {
    if (error) throw new Problem(refused(error, lines[at]), error.status);
  });
  return found;
}

function refused({ status, detail }, line) {
  const said = `“${line.length > 60 ? `${line.slice(0, 59)}…` : line}”`;
  return status === 404 ? `No document here has the id ${said}.` : `${said}: ${detail}`;
}

/** Plain text, such as the server's figures. */
export async function text(path) {
  return (await sent(path, {})).text();
}

async function call(method, path, body) {
  const options = { method, headers: { Accept: "application/json" } };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const response = await sent(path, options);
  return response.status === 204 ? null : response.json();
}

async function sent(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Problem("The server cannot be reached. Is it still running?");
  }
  if (!response.ok) throw new Problem(await sentence(response), response.status);
  return response;
}

async function sentence(response) {
  try {
    return (await response.json()).detail;
  } catch {
    return `The server answered with ${response.status}.`;
  }
}

/**
 * Calls of which only the last counts: one runs at a time, and of those that come meanwhile the
 * latest goes next. What typing asks for is thereby never older than what is shown, and a slow
 * server is not flooded.
 */
export function latest(work) {
  let running = false;
  let next = null;
  return async function ask(...given) {
    next = given;
    if (running) return;
    running = true;
    while (next) {
      const now = next;
      next = null;
      await work(...now);
    }
    running = false;
  };
}
