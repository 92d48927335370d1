// The address holds what is shown, so that it can be kept, sent and gone back to.
//
// A choice, or a query that was finished, is an entry of the browser's history. Typing and sliding
// make one entry together, which a reader goes back to as it was left.

const TYPED = "input:not([type=radio], [type=checkbox], [type=file]), textarea";

const LONGEST = 16_000; // characters; with more the server refuses the address

const TAKES_QUERY = new Set(["/search", "/attention", "/compare", "/teach", "/map"]);

let touched = false; // what a view writes before that is the address it was opened with, made plain
let typing = false;
let draft = false; // whether typing made the entry that is shown, and still goes on

addEventListener("input", (event) => {
  touched = true;
  typing = event.target.matches(TYPED);
}, true);
for (const type of ["change", "submit", "click"]) addEventListener(type, finish, true);

function finish(event) {
  touched = true;
  // Each arrow key changes a slider; the slide goes on.
  if (event.type === "change" && event.target.type === "range") return;
  typing = draft = false;
}

/** The parameters of the address, as an object of texts. */
export function read() {
  return Object.fromEntries(new URLSearchParams(location.search));
}

/**
 * Put parameters into the address; what is empty is left out. It is to be called as the reader
 * does something, and not when an answer comes: by then something else may be typed.
 */
export function write(parameters, path = location.pathname) {
  const kept = Object.entries(parameters).filter(([, value]) => value !== "" && value != null);
  const query = new URLSearchParams(kept).toString();
  const address = query ? `${path}?${query}` : path;
  if (query.length <= LONGEST && address !== location.pathname + location.search) {
    history[touched && !draft ? "pushState" : "replaceState"](null, "", address);
    draft = typing;
  }
  keepContext(parameters);
}

/** What goes on from view to view: the search that one sees. */
const CONTEXT = ["collection", "q", "filter", "value", "projection"];

/** What of a context a link takes along. */
export const context = (given) => Object.fromEntries(CONTEXT.map((name) => [name, given[name]]));

/** The address of a view; of a query its first line, and what is empty is left out. */
export function addressOf(path, { collection, q = "", ...more }) {
  const parameters = { collection, q: (q ?? "").split("\n")[0], ...more };
  const present = Object.entries(parameters).filter(([, value]) => value !== "" && value != null);
  const query = new URLSearchParams(present).toString();
  return query && query.length <= LONGEST ? `${path}?${query}` : path;
}

/** The menu goes on with the collection that is looked at, and with the search that one sees. */
function keepContext(parameters) {
  const { collection } = parameters;
  if (!collection) return;
  for (const link of document.querySelectorAll(".top nav a:not([href^='/docs'])")) {
    const path = link.getAttribute("href").split("?")[0];
    link.setAttribute("href", addressOf(path, TAKES_QUERY.has(path) ? context(parameters) : { collection }));
  }
}

/** Going back or forward shows what the address says, as opening it does. */
export function reopenOnReturn() {
  addEventListener("popstate", () => location.reload());
}
