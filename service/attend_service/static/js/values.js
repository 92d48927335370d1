// A value as what it is: a number, a label, a sparkline, a picture, text, or folded JSON.

import { h, s } from "./dom.js";
import { number, short } from "./format.js";
import { isVector } from "./blend.js";

const IMAGE = /\.(png|jpe?g|gif|webp|svg|bmp|tiff?|avif|heic|ico)$/i;
const LONG = 400;

/** An element that shows any JSON value; a record leaves out what is `said` already. */
export function shown(value, said = null) {
  if (value === null || value === undefined) return h("i", { class: "quiet" }, "none");
  if (typeof value === "number") return h("span", { class: "number" }, number(value, 6));
  if (typeof value === "boolean") return h("span", {}, String(value));
  if (typeof value === "string") return isPicture(value) ? picture(value) : text(value);
  if (isVector(value)) return sparkline(value);
  if (isTexts(value)) {
    return h("ul", { class: "chips" }, value.slice(0, 20).map((v) => h("li", { class: "chip" }, v)));
  }
  return isRecord(value) ? record(value, said) : folded(value);
}

/** The same on one line, as text. */
export function plain(value) {
  if (typeof value === "string") return short(value, 80);
  if (isTexts(value)) return short(value.join(", "), 80);
  return typeof value === "number" ? number(value, 6) : short(JSON.stringify(value) ?? "", 80);
}

export function isPicture(text) {
  if (text.startsWith("data:image/")) return true;
  return !text.includes("\n") && IMAGE.test(text.split(/[?#]/)[0]);
}

/** An object of a few plain fields, which is told in a line. */
export function isRecord(value) {
  const parts = value === null || typeof value !== "object" || Array.isArray(value) ? [] : Object.values(value);
  return parts.length > 0 && parts.length <= 6 && parts.every(isPlain);
}

function isPlain(part) {
  if (typeof part === "string") return part.length <= 80 && !isPicture(part);
  return part === null || typeof part === "number" || typeof part === "boolean" || isTexts(part);
}

function record(value, said) {
  const told = Object.entries(value).filter(([, part]) => part !== null && part !== said);
  const rows = told.map(([name, part]) => h("div", {}, h("dt", {}, name), h("dd", {}, plain(part))));
  return h("dl", { class: "meta" }, rows);
}

/** Whether a value is a picture that may be fetched. */
export function isShown(value) {
  return typeof value === "string" && isPicture(value) && (value.startsWith("data:image/") || isTrusted(value));
}

function picture(reference) {
  if (isShown(reference)) {
    const place = h("img", { class: "thumb", alt: "", loading: "lazy", src: reference, referrerpolicy: "no-referrer" });
    place.addEventListener("error", () => place.replaceWith(text(short(reference, 120))));
    return place;
  }
  // A picture of another server would tell it who looks at what: a link leaves that to the reader.
  if (/^https?:\/\//i.test(reference)) {
    const rel = "noreferrer noopener";
    return h("a", { href: reference, rel, target: "_blank" }, `Picture: ${short(reference, 70)}`);
  }
  return text(reference);
}

function isTexts(value) {
  return Array.isArray(value) && value.length > 0 && value.every((v) => typeof v === "string");
}

/** Whether a picture lies here, or where whoever runs the server said that pictures may be. */
function isTrusted(reference) {
  if (reference.startsWith("/") && !reference.startsWith("//")) return true;
  const origins = (document.body.dataset.pictures ?? "").split(" ").filter(Boolean);
  return origins.some((origin) => reference.startsWith(`${origin}/`));
}

function text(value) {
  if (value.length <= LONG) return h("span", { class: "said" }, value);
  return h(
    "details",
    { class: "fold" },
    h("summary", {}, short(value, 160)),
    h("pre", { tabindex: "0" }, value.slice(0, 100_000)),
  );
}

function folded(value) {
  const said = JSON.stringify(value, null, 2);
  if (said.length < 60) return h("code", {}, JSON.stringify(value));
  return h(
    "details",
    { class: "fold" },
    h("summary", {}, short(JSON.stringify(value), 90)),
    h("pre", { tabindex: "0" }, said.slice(0, 100_000)),
  );
}

/** A vector's numbers as a line around zero. */
export function sparkline(vector) {
  const [width, height] = [Math.min(220, Math.max(60, vector.length * 3)), 32];
  const most = Math.max(...vector.map(Math.abs)) || 1;
  const points = vector.map((each, at) => {
    const x = (at / Math.max(1, vector.length - 1)) * (width - 2) + 1;
    return `${x.toFixed(1)},${(height / 2 - (each / most) * (height / 2 - 2)).toFixed(1)}`;
  });
  const label = `Vector of ${vector.length} numbers: ${vector.slice(0, 3).map((v) => number(v, 3)).join(", ")}, …`;
  return s(
    "svg",
    { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    s("line", { x1: 0, x2: width, y1: height / 2, y2: height / 2, stroke: "currentColor", opacity: 0.3 }),
    s("polyline", { points: points.join(" "), fill: "none", stroke: "currentColor", "stroke-width": 1.3 }),
  );
}
