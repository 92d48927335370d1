// The search that one sees, as code: for a terminal, for Python, for TypeScript.

import { h } from "./dom.js";

const LANGUAGES = [["curl", curl], ["Python", python], ["TypeScript", typescript]];

/** Show a search of a collection as code. `body` is a request of the API. */
export function copySearch(collection, body) {
  const code = h("code", {});
  const said = h("span", { class: "quiet", role: "status" });
  const pre = h("pre", { tabindex: "0", "aria-label": "Code" }, code);
  const tabs = LANGUAGES.map(([name, write], at) => {
    const show = () => {
      code.textContent = write(location.origin, collection, body);
      said.textContent = "";
      for (const tab of tabs) tab.setAttribute("aria-pressed", String(tab === tabs[at]));
    };
    return h("button", { type: "button", "aria-pressed": "false", on: { click: show } }, name);
  });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      said.textContent = "Copied.";
    } catch {
      getSelection().selectAllChildren(code);
      said.textContent = "Selected: copy it with Ctrl+C.";
    }
  };
  const dialog = h(
    "dialog",
    { class: "copy", "aria-label": "This search as code", on: { close: () => dialog.remove() } },
    h("div", { class: "row" }, h("div", { class: "row tabs", role: "group", "aria-label": "Language" }, tabs), h("form", { method: "dialog" }, h("button", { class: "plain" }, "Close"))),
    pre,
    h("div", { class: "row" }, h("button", { type: "button", class: "main", on: { click: copy } }, "Copy"), said),
    h("p", { class: "quiet" }, "A server that asks for keys takes one in the header “Authorization: Bearer KEY”, in Python as attend.open(…, api_key=KEY), in TypeScript as new Attend(…, { apiKey: KEY })."),
  );
  document.body.append(dialog);
  tabs[0].click();
  dialog.showModal();
  return dialog;
}

const address = (base, collection) => `${base}/v1/collections/${encodeURIComponent(collection)}/search`;

function curl(base, collection, body) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  return `curl ${quoted(address(base, collection))} \\\n  -H 'Content-Type: application/json' \\\n  -d ${quoted(JSON.stringify(body))}\n`;
}

function python(base, collection, { query, ...options }) {
  const given = Object.entries(options).map(([name, value]) => `    ${name}=${literal(value)},\n`);
  return `import attend

library = attend.open(${literal(base)})
collection = library.collection(${literal(collection)})
answer = collection.search(
    ${literal(query)},
${given.join("")})
print(answer.answer)
for hit in answer.hits:
    print(f"{hit.weight:.3f}", hit.id)
`;
}

function typescript(base, collection, body) {
  const inner = JSON.stringify(body, null, 2);
  return `import { Attend } from "./attend.ts";

const attend = new Attend(${JSON.stringify(base)});
const answer = await attend.search(${JSON.stringify(collection)}, ${inner});
console.log(answer.answer);
for (const hit of answer.hits) {
  console.log(hit.weight.toFixed(3), hit.id);
}
`;
}

/** A value of JSON as Python writes it. */
function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, part]) => `${literal(name)}: ${literal(part)}`).join(", ")}}`;
  // A text of JSON is one of Python too: both have the same escapes for what is not printable.
  return JSON.stringify(value);
}
