// The blend of values under new weights: what `index.values` does, for the page's sliders.
//
// The server's own answer is the pattern: it says of what type each part is.

const LISTED = 10;

/** The answer to `values` under `weights`, of the types that `pattern` has. */
export function blend(pattern, values, weights, ids) {
  const kind = pattern.type;
  if (kind === "object") return objects(pattern, values, weights, ids);
  const found = (BLENDS[kind] ?? retrieved)(values, weights, ids);
  const total = sum(weights);
  return { type: kind, ...found, coverage: total ? (found.covered ?? 0) / total : 0 };
}

const BLENDS = {
  number: numbers,
  vector: vectors,
  category: (values, weights) => shares(values.map((v) => (isText(v) ? [v] : [])), weights),
  labels: (values, weights) => shares(values.map(labels), weights),
  boolean: booleans,
};

function numbers(values, weights) {
  const kept = values.map((v) => typeof v === "number" && Number.isFinite(v));
  const w = weights.map((each, at) => (kept[at] ? each : 0));
  const covered = sum(w);
  if (!covered) return { mean: null, std: null, effective_sample_size: null };
  // From the heaviest value, so that large numbers lose no digits.
  const anchor = values[w.indexOf(Math.max(...w))];
  const offsets = values.map((v, at) => (w[at] ? v - anchor : 0));
  const shift = dot(w, offsets) / covered;
  const variance = dot(w, offsets.map((each) => (each - shift) ** 2)) / covered;
  const concentration = sum(w.map((each) => (each / covered) ** 2));
  return {
    mean: anchor + shift,
    std: Math.sqrt(variance),
    effective_sample_size: 1 / concentration,
    covered,
  };
}

function vectors(values, weights) {
  const byWidth = new Map();
  values.forEach((vector, at) => {
    if (!isVector(vector) || !weights[at]) return;
    const sofar = byWidth.get(vector.length) ?? { weight: 0, total: new Array(vector.length).fill(0) };
    sofar.weight += weights[at];
    vector.forEach((each, place) => (sofar.total[place] += weights[at] * each));
    byWidth.set(vector.length, sofar);
  });
  const best = [...byWidth].sort((a, b) => b[1].weight - a[1].weight || a[0] - b[0])[0]?.[1];
  if (!best) return { vector: null };
  return { vector: best.total.map((each) => each / best.weight), covered: best.weight };
}

function shares(labelled, weights) {
  const found = new Map();
  let covered = 0;
  labelled.forEach((names, at) => {
    if (!names.length || !weights[at]) return;
    covered += weights[at];
    for (const name of names) found.set(name, (found.get(name) ?? 0) + weights[at] / names.length);
  });
  if (!covered) return { value: null, distribution: null };
  const ranked = [...found]
    .map(([name, share]) => [name, share / covered])
    .sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  return { value: ranked[0][0], distribution: Object.fromEntries(ranked), ranked, covered };
}

function booleans(values, weights) {
  const known = values.map((v) => (typeof v === "boolean" ? [String(v)] : []));
  const found = shares(known, weights);
  if (!found.distribution) return { ...found, probability: null };
  const probability = found.distribution.true ?? 0;
  const ranked = [["false", 1 - probability], ["true", probability]].sort((a, b) => b[1] - a[1]);
  const distribution = Object.fromEntries(ranked);
  return { ...found, value: ranked[0][0] === "true", probability, distribution, ranked };
}

function retrieved(values, weights, ids) {
  const present = values.map((v, at) => at).filter((at) => values[at] != null && weights[at]);
  const covered = sum(present.map((at) => weights[at]));
  if (!covered) return { value: null, values: null };
  const entries = new Map();
  // The heaviest first: equal values are one entry, under the id of the heaviest document.
  for (const at of present.sort((a, b) => weights[b] - weights[a] || (ids[a] < ids[b] ? -1 : 1))) {
    const key = JSON.stringify(values[at]);
    const entry = entries.get(key) ?? { id: ids[at], value: values[at], weight: 0 };
    entry.weight += weights[at] / covered;
    entries.set(key, entry);
  }
  const best = [...entries.values()]
    .sort((a, b) => b.weight - a.weight || (a.id < b.id ? -1 : 1))
    .slice(0, LISTED);
  return { value: best[0].value, values: best, covered };
}

function objects(pattern, values, weights, ids) {
  const isObject = (v) => v !== null && typeof v === "object" && !Array.isArray(v);
  const total = sum(weights);
  const covered = sum(weights.map((each, at) => (isObject(values[at]) ? each : 0)));
  const fields = Object.entries(pattern.fields ?? {}).map(([name, part]) => {
    const inner = values.map((v) => (isObject(v) && Object.hasOwn(v, name) ? v[name] : null));
    return [name, blend(part, inner, weights, ids)];
  });
  return { type: "object", fields: Object.fromEntries(fields), coverage: total ? covered / total : 0 };
}

export const isVector = (v) => Array.isArray(v) && v.length > 0 && v.every(Number.isFinite);
const isText = (v) => typeof v === "string";
const labels = (v) => (Array.isArray(v) && v.every(isText) ? [...new Set(v)] : []);
const sum = (list) => list.reduce((total, each) => total + each, 0);
const dot = (a, b) => a.reduce((total, each, at) => total + each * b[at], 0);
