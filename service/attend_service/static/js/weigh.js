// From logits to weights again, as the server does it: the same numbers, without asking.

/**
 * Weights at a temperature relative to the fitted one.
 *
 * `answer` is one of the API with `explain`; what is attended to and not among its hits has its
 * logits (documents, heads) in `others`. Returns the weight of each document, the hits first, that
 * of the null key, and the order of the documents, the heaviest first.
 */
export function weigh(answer, temperature) {
  const { weighing, hits, others = [] } = answer;
  const logits = [...hits.map((hit) => hit.explanation.logits), ...others];
  const weights = new Float64Array(logits.length);
  const ranks = new Float64Array(logits.length).fill(-Infinity);
  let nothing = 0;
  weighing.gates.forEach((gate, head) => {
    const t = weighing.temperature * temperature;
    const z = logits.map((each) => each[head] / t);
    const null_ = weighing.null ? weighing.null[head] / t : -Infinity;
    const total = logSumExp([...z, null_]);
    z.forEach((each, at) => {
      weights[at] += gate * Math.exp(each - total);
      ranks[at] = logAdd(ranks[at], Math.log(gate) + each - total);
    });
    nothing += gate * Math.exp(null_ - total);
  });
  // By logs: documents too far off to have a weight still have an order.
  const order = logits.map((_, at) => at).sort((a, b) => ranks[b] - ranks[a] || a - b);
  return { weights, nothing, order };
}

/** Below this confidence a query is foreign to its collection; a training has a threshold of its own. */
const FOREIGN = 0.05;

/** Whether the confidence is enough for an answer, as the server judges it. */
export function isAnswered(answer, nothing, temperature) {
  if (!answer.attended) return false;
  if (answer.calibrated === "collection") return answer.confidence >= FOREIGN;
  const { threshold, null: null_ } = answer.weighing;
  const calibrated = null_ !== null && temperature === 1;
  return !calibrated || threshold === null || 1 - nothing >= threshold;
}

/**
 * Where a query lies on one scale, 0 to 1, with the threshold at the half: what is unlike anything
 * here at the left, what is like what is answered at the right. Null where no confidence is fitted
 * for what is shown.
 */
export function likeness(answer, nothing, temperature) {
  if (answer.calibrated === "collection") return apart(answer.confidence, FOREIGN);
  const { threshold, null: null_ } = answer.weighing;
  if (!answer.calibrated || null_ === null || temperature !== 1) return null;
  return apart(1 - nothing, threshold ?? FOREIGN);
}

/** By log odds, so that confidences near certainty stay apart. */
function apart(confidence, threshold) {
  const odds = (share) => Math.log(share / (1 - share));
  const within = (share) => Math.min(1 - 1e-6, Math.max(1e-6, share));
  return 0.5 + 0.5 * Math.tanh((odds(within(confidence)) - odds(within(threshold))) / 3);
}

/** The ids of hits that feedback has put before others. */
export function risenBy({ hits }) {
  if (!hits.some((hit) => hit.explanation.memory)) return new Set();
  const without = (hit) => hit.score - hit.explanation.memory;
  const before = [...hits].sort((a, b) => without(b) - without(a));
  const rank = new Map(before.map((hit, at) => [hit.id, at]));
  return new Set(hits.filter((hit, at) => hit.explanation.memory > 0 && rank.get(hit.id) > at).map((hit) => hit.id));
}

function logSumExp(values) {
  const most = values.reduce((a, b) => Math.max(a, b), -Infinity);
  if (most === -Infinity) return -Infinity;
  return most + Math.log(values.reduce((sum, each) => sum + Math.exp(each - most), 0));
}

function logAdd(a, b) {
  const most = Math.max(a, b);
  return most === -Infinity ? most : most + Math.log(Math.exp(a - most) + Math.exp(b - most));
}
