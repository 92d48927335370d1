// Versions in words.

const KINDS = { identity: "as encoded", learned: "learned", given: "added" };

/** The name of a version: its number, what made it, and whether it is in use. */
export function versionName({ version, kind, active }) {
  return `Version ${version}, ${KINDS[kind] ?? kind}${active ? ", in use" : ""}`;
}
