// Jobs: their progress in words, a way to stop them, and what came of them.

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
const WORDS = { queued: "waiting", running: "running", done: "done", failed: "failed", cancelled: "stopped" };
const LEAST_WATCHED = 3000; // milliseconds before a time is estimated
const LEAST_DONE = 0.02; // of the whole, meanwhile

const stopping = new Set(); // ids of jobs that were stopped on this page
const seen = new Map(); // id → the first progress that was seen, and when

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
  const { fraction } = job.progress;
  const line = h("p", { class: "quiet" }, sentence(job));
  const cancel = h("button", { type: "button", disabled: stopping.has(job.id), on: { click: stop } }, stopping.has(job.id) ? "Stopping…" : "Cancel");
  function stop() {
    stopping.add(job.id);
    line.textContent = sentence(job);
    cancel.textContent = "Stopping…";
    cancel.disabled = true;
    del(`/v1/jobs/${job.id}`).then(
      () => onError(null),
      (error) => {
        stopping.delete(job.id);
        onError(error);
      },
    );
  }
  return h(
    "div",
    { class: "job", "data-state": job.state },
    h("div", { class: "field" }, h("strong", {}, `Training ${job.id} of ${job.collection}`), h("span", { class: "chip" }, isOver(job) || !stopping.has(job.id) ? WORDS[job.state] : "stopping")),
    isOver(job) ? null : h("div", { role: "progressbar", "aria-valuenow": Math.round(fraction * 100), "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": `Training ${job.id}` }, bar(fraction)),
    // A job with its result has a report below it, which says the same.
    job.result?.reason ? null : line,
    isOver(job) ? null : h("div", { class: "row" }, cancel),
  );
}

/** What a job does now, how far it is, and how long it still takes. */
function sentence(job) {
  const { stage, fraction, message } = job.progress;
  if (job.state === "cancelled") return "Stopped. Nothing was changed.";
  if (isOver(job)) return message;
  if (stopping.has(job.id)) return "Stopping… It stops at its next step, and nothing is changed.";
  if (job.state !== "running" || !STAGES[stage]) return job.state === "running" ? "Starting" : message;
  return [STAGES[stage], `${percent(fraction)} done`, timeLeft(job.id, fraction)].filter(Boolean).join(" · ");
}

/** How long a job still takes if it goes on as since this page saw it first; null at the beginning. */
function timeLeft(id, fraction) {
  const now = performance.now();
  if (!seen.has(id)) seen.set(id, { fraction, time: now });
  const first = seen.get(id);
  const [watched, progress] = [now - first.time, fraction - first.fraction];
  if (watched < LEAST_WATCHED || progress < LEAST_DONE) return null;
  const seconds = (watched / progress) * (1 - fraction) / 1000;
  return seconds < 90 ? `about ${Math.max(5, Math.round(seconds / 5) * 5)} s left` : `about ${Math.round(seconds / 60)} min left`;
}
