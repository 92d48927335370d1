// The address holds what is shown, so that it can be kept, sent and gone back to.

/** The parameters of the address, as an object of texts. */
export function read() {
  return Object.fromEntries(new URLSearchParams(location.search));
}

/** Put parameters into the address; what is empty is left out. */
export function write(parameters, path = location.pathname) {
  const kept = Object.entries(parameters).filter(([, value]) => value !== "" && value != null);
  const query = new URLSearchParams(kept).toString();
  history.replaceState(null, "", query ? `${path}?${query}` : path);
  keepCollection(parameters.collection);
}

/** The menu goes on with the collection that is looked at. */
function keepCollection(name) {
  if (!name) return;
  for (const link of document.querySelectorAll(".top nav a:not([href^='/docs'])")) {
    const path = link.getAttribute("href").split("?")[0];
    link.setAttribute("href", `${path}?collection=${encodeURIComponent(name)}`);
  }
}

/** Call with the parameters whenever the reader goes back or forward. */
export function onReturn(listener) {
  addEventListener("popstate", () => listener(read()));
}
