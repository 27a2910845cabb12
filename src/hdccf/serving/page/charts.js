// Lines as SVG, in the colours of the style sheet, with a legend and a table's worth of words for those who hear it.

import { figure, h } from "./dom.js";

const WIDTH = 520;
const HEIGHT = 190;
const LEFT = 46;
const BOTTOM = 22;
const COLOURS = 6;

function s(tag, properties = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// `lines` is [{name, x: […], y: […]}]; a value that is missing leaves a gap.
export function chart(title, lines, { xLabel = "", area = false, marks = [], fromZero = false } = {}) {
  const kept = lines.map((line) => ({ ...line, points: line.x.map((x, k) => [x, line.y[k]]).filter(([, y]) => Number.isFinite(y)) }));
  const points = kept.flatMap((line) => line.points);
  if (!points.length) return h("figure", {}, h("figcaption", {}, title), h("p", { class: "soft" }, "Nothing was recorded."));
  const xs = points.map(([x]) => x);
  const ys = points.map(([, y]) => y);
  const whole = xs.every(Number.isInteger);
  const [x0, x1] = wide(Math.min(...xs), Math.max(...xs), 0.5);
  const [y0, y1] = wide(fromZero ? Math.min(0, ...ys) : Math.min(...ys), Math.max(...ys), fromZero ? 0 : 0.5);
  const px = (x) => LEFT + ((x - x0) / (x1 - x0)) * (WIDTH - LEFT - 8);
  const py = (y) => HEIGHT - BOTTOM - ((y - y0) / (y1 - y0)) * (HEIGHT - BOTTOM - 8);
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": told(title, kept) });
  for (const tick of [0, 0.5, 1]) {
    const y = y0 + tick * (y1 - y0);
    const x = whole ? Math.round(x0 + tick * (x1 - x0)) : x0 + tick * (x1 - x0);
    svg.append(s("line", { class: "axis", x1: LEFT, x2: WIDTH - 8, y1: py(y), y2: py(y) }));
    svg.append(s("text", { x: LEFT - 6, y: py(y) + 4, "text-anchor": "end" }, short(y)));
    svg.append(s("text", { x: px(x), y: HEIGHT - 6, "text-anchor": ["start", "middle", "end"][2 * tick] }, short(x) + (tick === 1 && xLabel ? ` ${xLabel}` : "")));
  }
  kept.forEach((line, number) => {
    const colour = `var(--line-${number % COLOURS})`;
    const path = line.points.map(([x, y], k) => `${k ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("");
    if (area) svg.append(s("path", { d: `${path}L${px(line.points.at(-1)[0])} ${py(y0)}L${px(line.points[0][0])} ${py(y0)}Z`, fill: colour, opacity: 0.12 }));
    svg.append(s("path", { class: "curve", d: path, stroke: colour, ...(number >= COLOURS && { "stroke-dasharray": "5 3" }) }));
    if (line.points.length === 1) svg.append(s("circle", { cx: px(line.points[0][0]), cy: py(line.points[0][1]), r: 3, fill: colour }));
  });
  for (const mark of marks) {
    svg.append(s("line", { class: "mark", x1: px(mark.x), x2: px(mark.x), y1: 8, y2: HEIGHT - BOTTOM }, s("title", {}, mark.title)));
  }
  const legend = h("ul", { class: "legend" }, kept.map((line, number) => h("li", {}, h("i", { style: `background:var(--line-${number % COLOURS})` }), line.name)));
  return h("figure", {}, h("figcaption", {}, title), svg, legend);
}

// A line that does not move has no range of its own.
const wide = (low, high, below) => (high > low ? [low, high] : [low - below, high + 1 - below]);
const short = (value) => (Math.abs(value) >= 1000 ? figure(value) : Number(value.toPrecision(3)).toString());

function told(title, lines) {
  const each = lines.filter((line) => line.points.length).map((line) => {
    const [first, last] = [line.points[0], line.points.at(-1)];
    return `${line.name} from ${short(first[1])} to ${short(last[1])}`;
  });
  return `${title}: ${each.join("; ")}`;
}
