// The parts of d3 that the map uses. Each adds itself to one global object, after those it needs.

import "../vendor/d3-color.js";
import "../vendor/d3-dispatch.js";
import "../vendor/d3-ease.js";
import "../vendor/d3-quadtree.js";
import "../vendor/d3-selection.js";
import "../vendor/d3-timer.js";
import "../vendor/d3-interpolate.js";
import "../vendor/d3-drag.js";
import "../vendor/d3-transition.js";
import "../vendor/d3-zoom.js";

export const { hsl, interpolateRgbBasis, quadtree, rgb, select, zoom, zoomIdentity } = globalThis.d3;
