// Pictures: their colours, and how they are taken away as files.

const FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', sans-serif";
const NAMES = ["ink", "soft", "line", "edge", "paper", "panel", "sunk", "accent", "tint", "warm", "on-accent"];

/** The colours of the theme as they are now, by name: a file has no style sheet to look them up. */
export function colours() {
  const probe = document.createElement("i");
  document.body.append(probe);
  const found = Object.fromEntries(
    NAMES.map((name) => {
      probe.style.color = `var(--${name})`;
      return [name, getComputedStyle(probe).color];
    }),
  );
  probe.remove();
  return found;
}

/** Attributes of every picture: its size, in the type of the page. */
export function frame(width, height, label) {
  return {
    xmlns: "http://www.w3.org/2000/svg",
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": label,
    "font-family": FONT,
    "font-size": 13,
  };
}

/** Colours of a few things told apart, which colour-blind readers can too (Okabe and Ito 2008). */
export const KINDS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"];

export function saveSvg(svg, name) {
  save(new Blob([source(svg)], { type: "image/svg+xml" }), `${name}.svg`);
}

/** At twice the size, so that it stays sharp. */
export async function savePng(svg, name, factor = 2) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(source(svg))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = svg.width.baseVal.value * factor;
  canvas.height = svg.height.baseVal.value * factor;
  const context = canvas.getContext("2d");
  context.fillStyle = colours().paper;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  save(await new Promise((done) => canvas.toBlob(done, "image/png")), `${name}.png`);
}

/** The picture that a canvas shows, as it is. */
export async function savePicture(canvas, name) {
  save(await new Promise((done) => canvas.toBlob(done, "image/png")), `${name}.png`);
}

/** Draw again whenever the theme changes. */
export function onTheme(draw) {
  addEventListener("attend-theme", draw);
}

function source(svg) {
  return new XMLSerializer().serializeToString(svg);
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
