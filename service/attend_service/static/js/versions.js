// Versions in words.

const KINDS = { identity: "as encoded", learned: "learned", given: "added" };
const STATES = { proved: "learned (proved)", fitted: "learned (not proved)", unproved: "learned (not proved)" };

/** The name of a version: its number, what made it, whether use has sent it back, and whether it is in use. */
export function versionName({ version, kind, active, evidence }) {
  const fitted = kind === "identity" && evidence?.state !== "encoded" && evidence !== undefined && evidence !== null;
  const words = fitted ? "confidence fitted" : (STATES[evidence?.state] ?? KINDS[kind] ?? kind);
  return `Version ${version}, ${words}${evidence?.rolled_back ? ", sent back by use" : ""}${active ? ", in use" : ""}`;
}

/** What trainings by use have changed, as a sentence; empty where they have changed nothing. */
export function learnedFromUse({ promotions, rollbacks, sentence }) {
  return promotions || rollbacks ? `${sentence}.` : "";
}
