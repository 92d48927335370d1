// The strip below the header: what another process does to the data, until it is done.

import { get } from "./api.js";

const EVERY = 1000;
const SHOWN = 4000; // milliseconds that the last sentence stays
const DONE = "Everything is indexed and trained.";

const strip = document.getElementById("progress");
const message = document.getElementById("progress-message");
const bar = strip.querySelector("progress");

/** Show a state of the work; views that depend on it hear `attend-progress` at each change. */
function show(work) {
  const done = work.state === "idle";
  const text = done ? DONE : work.message;
  const changed = strip.dataset.state !== work.state || message.textContent !== text;
  strip.dataset.state = done ? "done" : work.state;
  if (message.textContent !== text) message.textContent = text;
  if (done) bar.value = 1;
  else if (Number.isFinite(work.fraction)) bar.value = work.fraction;
  else bar.removeAttribute("value");
  if (changed) dispatchEvent(new CustomEvent("attend-progress", { detail: work }));
}

async function follow() {
  let work = { state: strip.dataset.state };
  while (work.state === "running") {
    await new Promise((done) => setTimeout(done, EVERY));
    if (document.hidden) continue;
    try {
      work = await get("/v1/progress");
    } catch {
      continue; // the view itself says that the server is away
    }
    show(work);
  }
  if (work.state !== "idle") return; // an error stays
  await new Promise((done) => setTimeout(done, SHOWN));
  strip.dataset.state = "over";
}

follow();
