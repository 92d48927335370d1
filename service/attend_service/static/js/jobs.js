// Jobs: how far they are, and what came of them.

import { del, get } from "./api.js";
import { bar, h } from "./dom.js";
import { percent } from "./format.js";

const EVERY = 700;
const STAGES = {
  reading: "Reading what was taught",
  trying: "Trying ways to answer",
  judging: "Testing what was tried",
  fitting: "Learning from everything",
  calibrating: "Fitting the confidence",
  storing: "Storing the version",
  activating: "Switching to the version",
};
const OVER = new Set(["done", "failed", "cancelled"]);

export const isOver = (job) => OVER.has(job.state);

/** Ask for a job until it is over; `onChange` is told each time. Returns its last state. */
export async function follow(id, onChange) {
  for (;;) {
    const job = await get(`/v1/jobs/${id}`);
    onChange(job);
    if (isOver(job)) return job;
    await new Promise((done) => setTimeout(done, EVERY));
  }
}

/** A job in a line or two, with its progress, and a way to stop it; `onError` is told null where that went well. */
export function drawJob(job, onError) {
  const { stage, fraction, message } = job.progress;
  const running = job.state === "running" && STAGES[stage] ? `${STAGES[stage]} · ${percent(fraction)}` : message;
  const cancel = () => del(`/v1/jobs/${job.id}`).then(() => onError(null), onError);
  return h(
    "div",
    { class: "job", "data-state": job.state },
    h("div", { class: "field" }, h("strong", {}, `Job ${job.id} on ${job.collection}`), h("span", { class: "chip" }, job.state)),
    isOver(job) ? null : h("div", { role: "progressbar", "aria-valuenow": Math.round(fraction * 100), "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": `Job ${job.id}` }, bar(fraction)),
    // A job with its result has a report below it, which says the same.
    job.result?.reason ? null : h("p", { class: "quiet" }, running),
    isOver(job) ? null : h("div", { class: "row" }, h("button", { type: "button", on: { click: cancel } }, "Cancel")),
  );
}
