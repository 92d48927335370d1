// The answer in large: a value with its share, or a number with its band; other fields are chips.

import { blend } from "./blend.js";
import { number, percent, short } from "./format.js";
import { html } from "./html.js";
import { isShown, plain, shown, sparkline } from "./values.js";

const CHIPS = 4;
const LONGEST = 160; // characters of a text in large
const VARIED = 0.5; // of values that differ, above which a field tells documents apart and answers for none
const TICKS = 4;
const UNITS = { eur: "€", usd: "$", gbp: "£", percent: "%", pct: "%", kg: "kg", km: "km", cm: "cm", mm: "mm", kwh: "kWh", kw: "kW", ms: "ms", minutes: "min", seconds: "s", hours: "h", celsius: "°C" };

/**
 * What a card shows of an answer: `large`, its `share`, words `beside` it, `chips`, and a `picture`.
 * `values` and `weights` are those of the hits, the heaviest anywhere; `share` is the weight of all
 * that answers; `field` names what the answer was made of, and `best` is the heaviest document.
 */
export function headline(answer, { values, weights, share, field = "", best, hard = false }) {
  const document = { large: short(best.title, LONGEST), kind: "text", share: best.weight, beside: "", chips: [] };
  if (answer.type === "object" && answer.fields) {
    const names = Object.keys(answer.fields);
    const inner = (name) => values.map((value) => value?.[name] ?? null);
    const chief = names.find((name) => answer.fields[name].distribution && isShared(inner(name))) ?? names.find((name) => isNumber(answer.fields[name]));
    const main = chief === undefined ? document : single(answer.fields[chief], { values: inner(chief), weights, share, field: chief });
    const others = names.filter((name) => name !== chief).map((name) => chip(name, answer.fields[name], inner(name), share, hard));
    return settled({ ...(main ?? document), chips: others.filter(Boolean).slice(0, CHIPS) }, hard);
  }
  return settled(single(answer, { values, weights, share, field: field.replace(/^@.*/, "") }) ?? document, hard);
}

/** Of one document alone shares and bands say nothing. */
const settled = (found, hard) => (hard ? { ...found, share: null, picture: null, beside: found.beside.split(", mostly")[0] } : found);

const isNumber = (answer) => answer.type === "number" && answer.mean !== null && answer.mean !== undefined;

/** Whether documents share the values of a field: otherwise the list shows them already. */
function isShared(values) {
  const present = values.filter((value) => value !== null).map((value) => JSON.stringify(value));
  return new Set(present).size <= Math.max(1, present.length * VARIED);
}

/** An answer of one kind; null where it says nothing. */
function single(answer, { values, weights, share, field }) {
  const part = share * (answer.coverage ?? 1);
  if (answer.type === "number") return isNumber(answer) ? mean(answer, values, weights, field) : null;
  if (answer.distribution) {
    const [first, ...rest] = (answer.ranked ?? Object.entries(answer.distribution)).map(([name, each]) => [name, each * part]);
    return { large: first[0], kind: first[0].length > 40 ? "text" : "", share: first[1], beside: answer.type === "boolean" ? field : "", chips: rest.slice(0, CHIPS).map(([name, each]) => `${short(name, 40)} ${percent(each)}`) };
  }
  if (answer.vector) return { large: sparkline(answer.vector), share: null, beside: `${answer.vector.length} numbers`, chips: [] };
  if (answer.values?.length) {
    const [first, ...rest] = answer.values;
    const large = isShown(first.value) ? shown(first.value) : short(typeof first.value === "string" ? first.value : plain(first.value), LONGEST);
    return { large, kind: "text", share: first.weight * part, beside: "", chips: rest.slice(0, CHIPS - 1).map((each) => `${short(plain(each.value), 40)} ${percent(each.weight * part)}`) };
  }
  return answer.value != null ? { large: short(plain(answer.value), LONGEST), kind: "text", share: null, beside: "", chips: [] } : null;
}

/** Another field in a few words; null where the list shows its values already. */
function chip(name, answer, values, share, hard) {
  if (isNumber(answer)) {
    const { low, high, text } = band(answer, values, name);
    return `${name}: ${text}${hard || low === high ? "" : ` (${low}–${high})`}`;
  }
  if (!answer.distribution || !isShared(values)) return null;
  const [label, part] = (answer.ranked ?? Object.entries(answer.distribution))[0];
  return `${name}: ${short(label, 40)}${hard ? "" : ` ${percent(part * share * (answer.coverage ?? 1))}`}`;
}

function mean(answer, values, weights, field) {
  const { low, high, text } = band(answer, values, field);
  const exact = answer.std ? `${number(answer.mean, 6)} ± ${number(answer.std, 3)}` : number(answer.mean, 6);
  const mostly = low === high ? "" : `mostly ${low}–${high}`;
  return { large: text, exact, share: null, beside: [words(field), mostly].filter(Boolean).join(", "), chips: [], picture: strip(answer, values, weights) };
}

/** A mean and where most of the weight lies, with the digits that the spread leaves. */
function band({ mean, std }, values, field) {
  const numbers = values.filter(Number.isFinite);
  const [least, most] = numbers.length ? [Math.min(...numbers), Math.max(...numbers)] : [-Infinity, Infinity];
  const within = (value) => Math.min(most, Math.max(least, value));
  const digits = std > 0 ? Math.max(0, Math.min(6, Math.ceil(Math.log10(2 / std)))) : 6;
  const said = (value) => (Math.abs(value) >= 1e6 ? number(value) : number(Number(value.toFixed(digits)), 7)).replace("-", "−");
  const unit = UNITS[field.toLowerCase().match(/[a-z]+$/)?.[0]] ?? "";
  return { low: said(within(mean - std)), high: said(within(mean + std)), text: said(mean) + (unit && ` ${unit}`) };
}

/** The name of a field without its unit, in words. */
function words(field) {
  const parts = field.split(/[_\s]+/);
  return (parts.length > 1 && UNITS[parts.at(-1).toLowerCase()] ? parts.slice(0, -1) : parts).join(" ");
}

/** The attended numbers on an axis: a dot for each, the heavier the larger, the band and the mean. */
function strip({ mean, std }, values, weights) {
  const kept = values.map((value, at) => [value, weights[at]]).filter(([value, weight]) => Number.isFinite(value) && weight >= 0.001);
  const [low, high] = [Math.min(mean, ...kept.map(([value]) => value)), Math.max(mean, ...kept.map(([value]) => value))];
  if (!(high > low)) return null;
  const most = Math.max(...kept.map(([, weight]) => weight));
  const place = (value) => `${Math.min(100, Math.max(0, (100 * (value - low)) / (high - low))).toFixed(2)}%`;
  const from = place(mean - std);
  const width = `calc(${place(mean + std)} - ${from})`;
  return html`<div class="strip" role="img" aria-label=${`The attended values lie between ${number(low)} and ${number(high)}`}>
    <span class="axis"></span><span class="band" style=${{ left: from, width }}></span>
    ${kept.map(([value, weight]) => html`<i style=${{ left: place(value), "--size": Math.sqrt(weight / most) }}></i>`)}
    <b style=${{ left: place(mean) }}></b>
    ${ticks(low, high).map((tick) => html`<span class="tick" style=${{ left: place(tick) }}>${number(tick).replace("-", "−")}</span>`)}
  </div>`;
}

/** Round numbers within a range. */
export function ticks(low, high) {
  const raw = (high - low) / TICKS;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((each) => each * power >= raw) * power;
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, at) => Number(((first + at) * step).toPrecision(12)));
}

/** The answer of the best document alone. */
export function hardAnswer(pattern, values, order, ids) {
  const weights = values.map((_, at) => (at === order[0] ? 1 : 0));
  return blend(pattern, values, weights, ids);
}
