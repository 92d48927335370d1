// Numbers for people.

export const percent = (share) => {
  if (share === 0) return "0 %";
  if (share < 0.001) return "< 0.1 %";
  return `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;
};

/** A number with about four digits that mean something; a minus is a minus, and no hyphen. */
export function number(value, digits = 4) {
  if (value < 0) return `−${number(-value, digits)}`;
  if (!Number.isFinite(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return grouped(value);
  const size = Math.abs(value);
  if (size >= 1e9 || size < 1e-4) return value.toExponential(digits - 1);
  const text = value.toPrecision(digits);
  return text.includes("e") ? grouped(Math.round(value)) : grouped(Number(text));
}

export function bytes(size) {
  const steps = ["B", "kB", "MB", "GB", "TB"];
  const at = Math.min(steps.length - 1, Math.floor(Math.log10(Math.max(1, size)) / 3));
  return `${number(size / 1000 ** at, 3)} ${steps[at]}`;
}

export function seconds(value) {
  if (value < 1e-3) return `${number(value * 1e6, 3)} µs`;
  if (value < 1) return `${number(value * 1e3, 3)} ms`;
  return `${number(value, 3)} s`;
}

/** A text's beginning, on one line. */
export function short(text, length = 60) {
  const plain = String(text).replace(/\s+/g, " ").trim();
  const characters = [...plain.slice(0, length * 2 + 2)];
  return characters.length > length ? `${characters.slice(0, length - 1).join("")}…` : plain;
}

/** Both ends of a text, on one line: names that begin alike stay apart. */
export function ends(text, length = 60) {
  const characters = [...short(text, 1000)];
  if (characters.length <= length) return characters.join("");
  const tail = Math.floor((length - 1) / 2);
  return `${characters.slice(0, length - 1 - tail).join("")}…${characters.slice(-tail).join("")}`;
}

/** How many, with its thousands apart; `number` leaves four digits together, as of a year. */
export const count = (many) => many.toLocaleString("en");

export const plural = (many, word, words = `${word}s`) => `${count(many)} ${many === 1 ? word : words}`;

function grouped(value) {
  // Four digits are left together: most of them are years.
  const useGrouping = Math.abs(value) >= 1e4;
  return value.toLocaleString("en", { maximumFractionDigits: 20, useGrouping });
}

/** A moment in seconds since 1970, to the minute or, at midnight, to the day; UTC. */
export function moment(time) {
  const date = new Date(time * 1000);
  if (Number.isNaN(date.getTime())) return String(time);
  const [day, clock] = date.toISOString().split("T");
  return time % 86_400 === 0 ? day : `${day} ${clock.slice(0, 5)}`;
}
