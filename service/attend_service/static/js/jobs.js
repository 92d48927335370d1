// Jobs: how far they are, and what came of them.

import { del, get } from "./api.js";
import { bar, h } from "./dom.js";
import { percent } from "./format.js";

const EVERY = 700;
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

/** A job in a line or two, with its progress, and a way to stop it. */
export function drawJob(job, onError) {
  const { fraction, message } = job.progress;
  const cancel = () => del(`/v1/jobs/${job.id}`).catch(onError);
  return h(
    "div",
    { class: "job", "data-state": job.state },
    h("div", { class: "field" }, h("strong", {}, `Job ${job.id} on ${job.collection}`), h("span", { class: "chip" }, job.state)),
    isOver(job) ? null : h("div", { role: "progressbar", "aria-valuenow": Math.round(fraction * 100), "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": `Job ${job.id}` }, bar(fraction)),
    h("p", { class: "quiet" }, isOver(job) ? message : `${percent(fraction)}. ${message}`),
    isOver(job) ? null : h("button", { type: "button", on: { click: cancel } }, "Cancel"),
  );
}
