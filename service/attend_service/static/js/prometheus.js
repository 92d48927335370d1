// The server's figures, as Prometheus writes them: what a page needs of them.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;

/** Samples by name: [{labels, value}]. */
export function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const parts = LINE.exec(line);
    if (!parts) continue;
    const [, name, labels = "", value] = parts;
    const sample = { labels: labelsOf(labels), value: Number(value) };
    found.set(name, [...(found.get(name) ?? []), sample]);
  }
  return found;
}

/** One figure without labels, or of one label's value. */
export function figure(samples, name, labels = {}) {
  const matches = (sample) => Object.entries(labels).every(([key, value]) => sample.labels[key] === value);
  return (samples.get(name) ?? []).find(matches)?.value;
}

/**
 * Quantiles of a histogram by a label, less an earlier reading if there is one: within a bucket by
 * its share, as Prometheus' histogram_quantile has it.
 */
export function quantiles(samples, name, label, shares, earlier = null) {
  const counts = buckets(samples, name, label);
  const before = earlier ? buckets(earlier, name, label) : new Map();
  return [...counts].map(([value, now]) => {
    const was = before.get(value);
    const steps = now.map(({ bound, count }, at) => ({ bound, count: count - (was?.[at]?.count ?? 0) }));
    const total = steps.at(-1)?.count ?? 0;
    return { value, total, quantiles: shares.map((share) => (total ? quantile(steps, share * total) : null)) };
  });
}

function buckets(samples, name, label) {
  const found = new Map();
  for (const { labels, value } of samples.get(`${name}_bucket`) ?? []) {
    const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
    found.set(labels[label], [...(found.get(labels[label]) ?? []), { bound, count: value }]);
  }
  return found;
}

function quantile(steps, rank) {
  let [low, below] = [0, 0];
  for (const { bound, count } of steps) {
    if (count >= rank) {
      if (bound === Infinity) return low;
      return low + ((bound - low) * (rank - below)) / (count - below || 1);
    }
    [low, below] = [bound, count];
  }
  return low;
}

function labelsOf(text) {
  const found = {};
  for (const [, name, value] of text.matchAll(/(\w+)="((?:\\.|[^"\\])*)"/g)) {
    found[name] = value.replace(/\\(.)/g, (_, sign) => (sign === "n" ? "\n" : sign));
  }
  return found;
}
