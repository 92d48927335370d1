// The colours of a map: numbers on a scale, names by what the query attends to, the rest by hash.

import { hsl, interpolateRgbBasis, rgb } from "./d3.js";
import { h } from "./dom.js";
import { count, number } from "./format.js";
import { KINDS } from "./pictures.js";
import { plain } from "./values.js";

const NAMED = KINDS.length - 1; // the last one is grey
const STEPS = 64; // of a scale
// Seen alike by colour-blind readers (Nuñez, Anderton and Renslow 2018).
const cividis = interpolateRgbBasis(["#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"]);
const ENDS = 0.02; // the share of numbers beyond either end of the scale

const slots = new Map(); // name → place among the named colours: a name keeps its colour

/** A colour for any name, always the same. */
function hashed(name) {
  let code = 2166136261;
  for (let index = 0; index < name.length; index++) code = Math.imul(code ^ name.charCodeAt(index), 16777619) >>> 0;
  return hsl(code % 360, 0.32 + ((code >>> 9) % 20) / 100, 0.52 + ((code >>> 15) % 18) / 100).formatHex();
}

/**
 * How the documents of a map are coloured by its `names` and `codes`, its `numbers`, or not at all.
 * `weights` maps positions to shares of the attention. Returns `colour(at)`, `word(at)`, and the
 * `legend` as elements.
 */
export function shades(map, weights, theme) {
  if (map.numbers) return scaled(map, theme);
  if (map.codes) return named(map, weights, theme);
  return { colour: () => theme.accent, word: () => "", legend: [] };
}

/** Forget which names have which colours: another field, or collection, has others. */
export const forget = () => slots.clear();

function named({ names, codes }, weights, theme) {
  const totals = new Float64Array(names.length);
  const counts = new Uint32Array(names.length);
  let without = 0;
  codes.forEach((code, index) => {
    if (code < 0) return (without += 1);
    counts[code] += 1;
    return (totals[code] += weights.get(index) ?? 0);
  });
  const order = names.map((_, code) => code).sort((a, b) => totals[b] - totals[a] || a - b);
  const listed = order.slice(0, NAMED).filter((code) => counts[code]);
  assign(listed.map((code) => names[code]));
  const colours = names.map((name) => (slots.has(name) ? KINDS[slots.get(name)] : hashed(name)));
  const entry = (colour, ...words) => {
    const mark = h("i");
    mark.style.background = colour;
    return h("li", {}, mark, ...words);
  };
  const sorted = [...listed].sort((a, b) => slots.get(names[a]) - slots.get(names[b]));
  const others = names.filter((name, code) => counts[code] && !slots.has(name)).length;
  const legend = sorted.map((code) => entry(colours[code], h("span", { dir: "auto" }, plain(names[code])), h("span", { class: "count" }, ` ${count(counts[code])}`)));
  if (others) legend.push(h("li", { class: "quiet" }, `${count(others)} more, each with a colour of its own`));
  if (without) legend.push(entry(theme.edge, `none ${count(without)}`));
  return {
    colour: (index) => (codes[index] < 0 ? theme.edge : colours[codes[index]]),
    word: (index) => (codes[index] < 0 ? "" : plain(names[codes[index]])),
    legend: [h("ul", { class: "key" }, legend)],
  };
}

/** Give each of some names a colour that none of the others has; who has one keeps it. */
function assign(names) {
  for (const name of slots.keys()) if (!names.includes(name)) slots.delete(name);
  const free = KINDS.slice(0, NAMED).map((_, place) => place).filter((place) => ![...slots.values()].includes(place));
  for (const name of names) if (!slots.has(name)) slots.set(name, free.shift());
}

function scaled({ numbers, colour: name }, theme) {
  const sorted = Float64Array.from(numbers.filter((item) => item !== null)).sort();
  const [low, high] = [sorted[Math.floor(ENDS * (sorted.length - 1))], sorted[Math.ceil((1 - ENDS) * (sorted.length - 1))]];
  // The end of the scale that is near the ground would not be seen.
  const [from, to] = hsl(theme.panel).l < 0.5 ? [0.3, 1] : [0, 0.9];
  const steps = Array.from({ length: STEPS }, (_, step) => rgb(cividis(from + ((to - from) * step) / (STEPS - 1))).formatHex());
  const share = (value) => Math.min(1, Math.max(0, (value - low) / (high - low || 1)));
  const strip = h("i", { class: "strip" });
  strip.style.background = `linear-gradient(to right, ${steps.join(",")})`;
  const without = numbers.length - sorted.length;
  const ticks = [low, (low + high) / 2, high].map((value) => h("span", {}, number(value, 3)));
  const label = name === "@value" ? "value" : name;
  return {
    colour: (index) => (numbers[index] === null ? theme.edge : steps[Math.round(share(numbers[index]) * (STEPS - 1))]),
    word: (index) => (numbers[index] === null ? "" : number(numbers[index])),
    legend: [h("div", { class: "map-scale" }, h("span", { class: "label" }, label), strip, h("div", { class: "ticks" }, ticks), without ? h("span", { class: "quiet" }, `${count(without)} have none`) : "")],
  };
}

/** A colour as the pixels of an image have it, mixed with another; `share` 1 is the colour alone. */
export function pixel(colour, ground = null, share = 1) {
  const { r, g, b } = rgb(colour);
  const below = ground === null ? { r, g, b } : rgb(ground);
  const mix = (a, z) => Math.round(a * share + z * (1 - share));
  return ((255 << 24) | (mix(b, below.b) << 16) | (mix(g, below.g) << 8) | mix(r, below.r)) >>> 0;
}
