// Points on a canvas, as many as a map has: zoom, pan, lasso, and which point is where.
//
// Points are written into the pixels of an image, since a hundred thousand shapes a frame are too
// many for a canvas, and WebGL without a graphics card is slower still. d3 has zoom and the
// nearest point.

import { quadtree, select, zoom, zoomIdentity } from "./d3.js";

const EDGE = 28;
const NEAR = 14; // pixels around a pointer in which a point is hit
const MOST_ZOOM = 200;
const CLOSER = 2.4; // the zoom from which smaller groups are named
const LINES = 14; // height of a label
const NAMED = 18; // attended documents that may have their names
const TURN = 700; // milliseconds of a movement
const [LINK_FULL, DOT_FULL] = [0.12, 0.05]; // shares of the attention that are drawn in full

export class Plot {
  /**
   * `on` has listeners: `point` with the position of the point under the pointer or -1, `pick`
   * with that of one that was clicked, `lasso` with the positions within.
   */
  constructor(place, on) {
    this.place = place;
    this.canvas = place.querySelector("canvas");
    // Pixels are written by the processor, and stay there.
    this.context = this.canvas.getContext("2d", { willReadFrequently: true });
    this.on = on;
    this.transform = zoomIdentity;
    this.data = null;
    this.looks = null;
    this.time = 1;
    this.lasso = null; // corners in pixels, while one is drawn or shown
    this.isLasso = false;
    this.marked = -1;
    this.frame = 0;
    this.zoom = zoom()
      .scaleExtent([0.5, MOST_ZOOM])
      .filter((event) => !this.isLasso && !event.button)
      .on("zoom", ({ transform }) => {
        this.transform = transform;
        this.redraw();
      });
    select(this.canvas).call(this.zoom).on("dblclick.zoom", null);
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    this.canvas.addEventListener("pointerleave", () => on.point(-1));
    this.canvas.addEventListener("pointerdown", (event) => this.press(event));
    this.canvas.addEventListener("pointerup", (event) => this.release(event));
    this.canvas.addEventListener("click", (event) => !this.isLasso && this.click(event));
  }

  /** Show points: `x`, `y`, and `wasX`, `wasY` where they moved. The view stays unless `fits`. */
  show(data, fits = true) {
    this.data = data;
    this.tree = null;
    if (fits || !this.box) this.box = extent(data);
    this.redraw();
  }

  /**
   * How points look: `colours` (a 32-bit colour for each), `radius`, the `attended` [{weight,
   * title, x, y, wasX, wasY, colour}], the heaviest first, the `query`, `labels`, and the `theme`.
   */
  look(looks) {
    this.looks = looks;
    this.redraw();
  }

  /** Mark a point, and bring it into view. */
  mark(index, brings = false) {
    this.marked = index;
    if (index >= 0 && brings) {
      const [x, y] = this.pixel(index);
      const [width, height] = [this.place.clientWidth, this.place.clientHeight];
      if (x < EDGE || y < EDGE || x > width - EDGE || y > height - EDGE) {
        const moved = this.transform.translate((width / 2 - x) / this.transform.k, (height / 2 - y) / this.transform.k);
        select(this.canvas).call(this.zoom.transform, moved);
      }
    }
    this.redraw();
  }

  by(factor) {
    select(this.canvas).call(this.zoom.scaleBy, factor);
  }

  whole() {
    select(this.canvas).call(this.zoom.transform, zoomIdentity);
  }

  setLasso(isOn) {
    this.isLasso = isOn;
    this.lasso = null;
    this.canvas.style.cursor = isOn ? "crosshair" : "";
    this.redraw();
  }

  /** Go to a moment between the version before (0) and the one shown (1). */
  setTime(time) {
    this.time = time;
    this.tree = null;
    this.redraw();
  }

  /** Move from one version to the other; `step` is called with each moment. */
  play(step) {
    cancelAnimationFrame(this.playing);
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return step(1);
    const from = performance.now() + 250; // the eye finds the start
    const tick = (now) => {
      const share = Math.min(1, Math.max(0, (now - from) / TURN));
      step(share < 0.5 ? 2 * share * share : 1 - 2 * (1 - share) ** 2);
      if (share < 1) this.playing = requestAnimationFrame(tick);
    };
    step(0);
    this.playing = requestAnimationFrame(tick);
  }

  redraw() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      if (this.data && this.looks) this.draw();
    });
  }

  /** From places to pixels of the page: a factor and two shifts, of one scale in both directions. */
  scale() {
    const [width, height] = [this.place.clientWidth, this.place.clientHeight];
    const { left, right, low, high } = this.box;
    const base = Math.min((width - 2 * EDGE) / (right - left || 1), (height - 2 * EDGE) / (high - low || 1));
    const { k, x, y } = this.transform;
    return { a: base * k, x: k * (width / 2 - (base * (left + right)) / 2) + x, y: k * (height / 2 + (base * (low + high)) / 2) + y };
  }

  between(now, was) {
    return was === undefined || was === null ? now : was + (now - was) * this.time;
  }

  pixelOf(x, y, wasX, wasY) {
    const { a, x: right, y: down } = this.scale();
    return [this.between(x, wasX) * a + right, down - this.between(y, wasY) * a];
  }

  pixel(index) {
    const { x, y, wasX, wasY } = this.data;
    return this.pixelOf(x[index], y[index], wasX?.[index], wasY?.[index]);
  }

  draw() {
    const ratio = Math.min(2, devicePixelRatio || 1);
    const [width, height] = [this.place.clientWidth, this.place.clientHeight];
    if (!width || !height) return;
    const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== wide || this.canvas.height !== high || !this.image) {
      [this.canvas.width, this.canvas.height] = [wide, high];
      this.image = this.context.createImageData(wide, high);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    this.points(ratio, wide, high);
    this.context.putImageData(this.image, 0, 0);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.over(width, height);
    this.context.setTransform(1, 0, 0, 1, 0, 0);
    this.canvas.dataset.drawn = String(this.data.x.length);
  }

  points(ratio, wide, high) {
    const { x, y, wasX, wasY } = this.data;
    const { colours, paper, radius } = this.looks;
    const { pixels, time } = this;
    pixels.fill(paper);
    const { a, x: right, y: down } = this.scale();
    const [factor, shiftX, shiftY] = [a * ratio, right * ratio, down * ratio];
    const reach = Math.max(1, radius * ratio * Math.min(2.2, this.transform.k ** 0.35));
    const [spans, edge] = disc(reach);
    const moves = wasX && time < 1;
    for (let index = 0; index < x.length; index++) {
      const colour = colours[index];
      if (!colour) continue;
      const px = Math.round((moves ? wasX[index] + (x[index] - wasX[index]) * time : x[index]) * factor + shiftX);
      const py = Math.round(shiftY - (moves ? wasY[index] + (y[index] - wasY[index]) * time : y[index]) * factor);
      if (px < edge || py < edge || px >= wide - edge || py >= high - edge) continue;
      for (let row = -edge, start = (py - edge) * wide + px; row <= edge; row++, start += wide) {
        const half = spans[row + edge];
        for (let pixel = start - half; pixel <= start + half; pixel++) pixels[pixel] = colour;
      }
    }
  }

  /** What lies over the points: the attended, the query, names, the lasso. */
  over(width, height) {
    const { context: c } = this;
    const { attended, query, labels, theme } = this.looks;
    const taken = [];
    const inside = ([x, y]) => x > -EDGE && y > -EDGE && x < width + EDGE && y < height + EDGE;
    const heaviest = attended[0]?.weight || 1;
    const places = attended.map((item) => this.pixelOf(item.x, item.y, item.wasX, item.wasY));
    const middle = query && this.pixelOf(query.x, query.y, query.wasX, query.wasY);
    for (let rank = attended.length - 1; middle && rank >= 0; rank--) {
      const share = strength(attended[rank].weight, heaviest, LINK_FULL);
      c.beginPath();
      c.moveTo(...middle);
      c.lineTo(...places[rank]);
      c.strokeStyle = theme.accent;
      c.globalAlpha = 0.06 + 0.6 * share;
      c.lineWidth = 0.6 + 2.4 * share;
      c.stroke();
    }
    c.globalAlpha = 1;
    for (let rank = attended.length - 1; rank >= 0; rank--) {
      const { weight, colour } = attended[rank];
      c.beginPath();
      c.arc(...places[rank], 3.5 + 7 * Math.sqrt(strength(weight, heaviest, DOT_FULL)), 0, 7);
      c.fillStyle = colour;
      c.fill();
      c.strokeStyle = theme.ink;
      c.lineWidth = 0.8;
      c.stroke();
    }
    if (middle && query.wasX !== undefined) this.trail(this.pixelOf(query.wasX, query.wasY), middle);
    if (middle) diamond(c, middle, theme);
    // The heaviest has its name whatever lies around it.
    attended.slice(0, NAMED).forEach(({ title }, rank) => inside(places[rank]) && this.beside(title, places[rank], taken, rank === 0));
    if (middle) this.beside("query", middle, taken, true, 600);
    const level = this.transform.k >= CLOSER && labels.some((item) => item.level === 1) ? 1 : 0;
    for (const { place, words, level: own } of labels) {
      const centre = this.pixelOf(...place);
      if (own === level && this.time === 1 && inside(centre)) this.text(words.join(" · "), centre, "center", 650, taken);
    }
    this.outline();
    this.ring();
  }

  /** A name on the first side of a point where it lies over no other; with `must` on some side. */
  beside(words, [x, y], taken, must, weight = 400) {
    const sides = [[x + 12, y + 4, "start"], [x - 12, y + 4, "end"], [x, y - 13, "center"], [x, y + 22, "center"]];
    const isDrawn = sides.some(([right, down, align]) => this.text(words, [right, down], align, weight, taken));
    if (!isDrawn && must) this.text(words, [x + 12, y + 4], "start", weight, taken, true);
  }

  /** A text with a halo, unless it would lie over another or be cut; returns whether it was drawn. */
  text(words, [x, y], align, weight, taken, must = false) {
    const { context: c } = this;
    const { theme } = this.looks;
    c.font = `${weight} 12px ${theme.font}`;
    c.textAlign = align;
    const long = c.measureText(words).width;
    const left = { start: x, center: x - long / 2, end: x - long }[align];
    const box = [left - 4, y - LINES, left + long + 4, y + 5];
    const isFree = box[0] >= 0 && box[2] <= this.place.clientWidth && !taken.some((other) => overlaps(box, other));
    if (!isFree && !must) return false;
    taken.push(box);
    c.lineJoin = "round";
    c.lineWidth = 4;
    c.strokeStyle = theme.panel;
    c.strokeText(words, x, y);
    c.fillStyle = theme.ink;
    c.fillText(words, x, y);
    return true;
  }

  /** Where the query came from. */
  trail(from, to) {
    const { context: c } = this;
    c.beginPath();
    c.moveTo(...from);
    c.lineTo(...to);
    c.strokeStyle = this.looks.theme.ink;
    c.lineWidth = 1.5;
    c.setLineDash([4, 3]);
    c.stroke();
    c.setLineDash([]);
  }

  outline() {
    if (!this.lasso?.length) return;
    const { context: c } = this;
    const { theme } = this.looks;
    c.beginPath();
    this.lasso.forEach((corner, index) => (index ? c.lineTo(...corner) : c.moveTo(...corner)));
    c.closePath();
    c.strokeStyle = theme.accent;
    c.lineWidth = 1.5;
    c.setLineDash([5, 4]);
    c.stroke();
    c.setLineDash([]);
    c.globalAlpha = 0.12;
    c.fillStyle = theme.accent;
    c.fill();
    c.globalAlpha = 1;
  }

  /** The mark is an element: it is seen in every theme, and where it stands can be asked. */
  ring() {
    const here = this.place.querySelector("#here");
    here.hidden = this.marked < 0 || this.marked >= this.data.x.length;
    if (here.hidden) return;
    const [x, y] = this.pixel(this.marked);
    here.style.transform = `translate(${x.toFixed(1)}px, ${y.toFixed(1)}px)`;
    here.hidden = x < 0 || y < 0 || x > this.place.clientWidth || y > this.place.clientHeight;
  }

  pointer(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  }

  /** The position of the point at a pixel; -1 for none. */
  hit([px, py]) {
    if (!this.data?.x.length || !this.box) return -1;
    const { x, y, wasX, wasY } = this.data;
    this.tree ??= quadtree()
      .x((index) => this.between(x[index], wasX?.[index]))
      .y((index) => this.between(y[index], wasY?.[index]))
      .addAll(x.keys());
    const { a, x: right, y: down } = this.scale();
    return this.tree.find((px - right) / a, (down - py) / a, NEAR / a) ?? -1;
  }

  move(event) {
    if (!this.isLasso) return event.buttons ? undefined : this.on.point(this.hit(this.pointer(event)));
    if (!event.buttons || !this.lasso) return undefined;
    this.lasso.push(this.pointer(event));
    return this.redraw();
  }

  press(event) {
    if (!this.isLasso) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.lasso = [this.pointer(event)];
  }

  release(event) {
    if (!this.isLasso || !this.lasso) return;
    const corners = [...this.lasso, this.pointer(event)];
    const [xs, ys] = [corners.map(([x]) => x), corners.map(([, y]) => y)];
    const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const within = [];
    for (let index = 0; index < this.data.x.length; index++) {
      const [x, y] = this.pixel(index);
      if (x >= left && x <= right && y >= top && y <= bottom && this.looks.colours[index] && isInside(corners, x, y)) within.push(index);
    }
    this.on.lasso(within);
  }

  click(event) {
    const index = this.hit(this.pointer(event));
    if (index >= 0) this.on.pick(index);
  }
}

/** The rows of a disc of pixels, each as half its length, and how many lie above the middle. */
function disc(radius) {
  const edge = Math.max(1, Math.round(radius));
  const spans = Array.from({ length: 2 * edge + 1 }, (_, row) => Math.round(Math.sqrt(Math.max(0, radius ** 2 + radius * 0.6 - (row - edge) ** 2))));
  return [spans, edge];
}

/** Where the points are, in both versions; one far away does not make the others small. */
function extent({ x, y, wasX, wasY }) {
  const range = (...columns) => {
    const numbers = Float64Array.from(columns.flatMap((column) => (column ? [...column] : []))).sort();
    if (!numbers.length) return [0, 1];
    const cut = numbers.length > 2000 ? Math.floor(numbers.length / 2000) : 0;
    return [numbers[cut], numbers[numbers.length - 1 - cut]];
  };
  const [[left, right], [low, high]] = [range(x, wasX), range(y, wasY)];
  return { left, right, low, high };
}

/** Whether a point lies within a polygon: a line from it crosses the outline an odd number of times. */
function isInside(corners, x, y) {
  let isOdd = false;
  corners.forEach(([right, down], index) => {
    const [left, up] = corners[(index || corners.length) - 1];
    if (down > y !== up > y && x < ((left - right) * (y - down)) / (up - down) + right) isOdd = !isOdd;
  });
  return isOdd;
}

function diamond(c, [x, y], theme) {
  c.beginPath();
  c.moveTo(x, y - 9);
  for (const [dx, dy] of [[9, 0], [0, 9], [-9, 0]]) c.lineTo(x + dx, y + dy);
  c.closePath();
  c.fillStyle = theme.ink;
  c.strokeStyle = theme.panel;
  c.lineWidth = 2;
  c.fill();
  c.stroke();
}

/** How strongly a weight is drawn: beside the heaviest, and where all are small, by itself. */
const strength = (weight, heaviest, full) => Math.min(weight / heaviest, weight / full);

const overlaps = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
