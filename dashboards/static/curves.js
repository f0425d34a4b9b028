// Four curves over time, with a mark where another version began to serve.

import { NONE, clock, element, number, percent, setText, signed, version } from "./words.js";

const CURVES = [
  ["acceptance", "Acceptance of shown suggestions", percent],
  ["shown_rate", "Suggestions shown per decision", percent],
  ["reward_per_decision", "Reward per decision", (x) => signed(x)],
  ["accepted_bytes_per_decision", "Accepted bytes per decision", (x) => number(x, 2)],
];
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let marks = [];

function drawMarks(plot) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.font = `${10 * ratio}px system-ui, sans-serif`;
  ctx.textBaseline = "top";
  ctx.textAlign = "left";
  const labelledTo = { promoted: -Infinity, rolled_back: -Infinity };
  for (const mark of marks) {
    const x = Math.round(plot.valToPos(mark.at, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    const back = mark.kind === "rolled_back";
    ctx.strokeStyle = colour(back ? "--bad" : "--mark");
    ctx.fillStyle = colour(back ? "--bad" : "--dim");
    ctx.lineWidth = ratio;
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const text = (back ? "↩ " : "") + version(mark.policy_version);
    const width = ctx.measureText(text).width + 4 * ratio;
    const fits = x + width < bbox.left + bbox.width;
    const start = fits ? x + 3 * ratio : x - width + ratio;
    if (start < labelledTo[mark.kind]) continue;
    labelledTo[mark.kind] = start + width;
    ctx.fillText(text, start, bbox.top + (back ? 12 * ratio : 0));
  }
  ctx.restore();
}

function makeChart([key, label, format]) {
  const value = element("span", "", NONE);
  const note = element("span", "note", "");
  const readout = element("div", "note", "");
  const place = element("div", "plot", element("div", "blank", "no decision yet"));
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", `${label}, over time`);
  document.getElementById("charts").append(element("div", "chart",
    element("div", "head", element("div", "label", label), element("div", "value", value, note), readout), place));
  const chart = { key, format, value, note, readout, place, plot: null };
  new ResizeObserver(() => chart.plot?.setSize({ width: place.clientWidth, height: 156 })).observe(place);
  return chart;
}

function makePlot(chart) {
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, gap: 4, font: "11px system-ui, sans-serif" };
  const showAt = (plot) => {
    const i = plot.cursor.idx;
    const at = i == null ? null : plot.data[0][i];
    chart.hover = at == null ? null : `${clock(at)}: ${chart.format(plot.data[1][i])}`;
    setText(chart.readout, chart.hover ?? chart.words ?? "");
  };
  const options = {
    width: chart.place.clientWidth, height: 156, legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
    scales: { y: { range: (_, low, high) => padded(low, high) } },
    axes: [
      { ...axis, size: 24, space: 70, values: (_, splits, __, ___, step) => splits.map((at) => clock(at).slice(0, step < 60 ? 8 : 5)) },
      { ...axis, size: 46, space: 26, values: (_, splits) => splits.map((y) => axisWords(chart.key, y)) },
    ],
    series: [{}, { stroke: colour("--accent"), width: 2, fill: `${colour("--accent")}1f`, points: { size: 4 } }],
    hooks: { draw: [drawMarks], setCursor: [showAt] },
  };
  chart.place.replaceChildren();
  chart.plot = new uPlot(options, [[], []], chart.place);
}

const axisWords = (key, y) =>
  key === "acceptance" || key === "shown_rate" ? `${Math.round(100 * y)} %` : `${+y.toFixed(3)}`;

function padded(low, high) {
  if (low == null) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * 0.15;
  return [low >= 0 ? Math.max(0, low - room) : low - room, high + 2.2 * room];
}

// A bin without a decision breaks the line.
function withGaps(at, values, step) {
  const x = [], y = [];
  at.forEach((time, i) => {
    if (i && time - at[i - 1] > 1.5 * step) { x.push(at[i - 1] + step); y.push(null); }
    x.push(time);
    y.push(values[i]);
  });
  return [x, y];
}

const charts = CURVES.map(makeChart);

export function showCharts(loop) {
  marks = loop.marks;
  const { curves, live, base } = loop;
  for (const chart of charts) {
    const { key, format } = chart;
    setText(chart.value, format((live ?? loop.total)[key]));
    setText(chart.note, loop.live_version == null ? "over all" : `on live ${version(loop.live_version)}, n ${number((live ?? loop.total).num_decisions)}`);
    chart.words = base == null || loop.base_version === loop.live_version
      ? "" : `${format(base[key])} on ${version(loop.base_version)}`;
    setText(chart.readout, chart.hover ?? chart.words);
    if (curves.at.length === 0) continue;
    if (!chart.plot) makePlot(chart);
    chart.plot.setData(withGaps(curves.at, curves[key], curves.bin_s));
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of charts) { chart.plot?.destroy(); chart.plot = null; }
});
