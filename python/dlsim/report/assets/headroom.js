// SPDX-License-Identifier: Apache-2.0
// The head-room of each layer, forward and backward side by side, in the format of the chosen run.
"use strict";
const Headroom = (() => {
  const RISK = 1; // binades below which the next batch may overflow

  function bars(layers, key, name, hue) {
    return {
      type: "bar", orientation: "h", name, y: layers.name.map((_, i) => i), x: layers[key],
      marker: { color: layers[key].map((room) => Report.color(room !== null && room < 0 ? "c-red" : hue)) },
      text: layers.name.map(Report.plain), textposition: "none",
      hovertemplate: `%{text}<br>${name}: %{x} binades<extra></extra>`,
    };
  }

  const edge = (x, dash) => ({
    type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1,
    line: { width: 1.4, dash, color: Report.color("c-red") },
  });

  async function figure() {
    const all = await Report.unpack(Report.data.headroom);
    const layers = all[Report.run()];
    const inner = Math.max(60, Math.min(1000, 34 * layers.name.length));
    const labels = Rows.labels(layers.name, Report.narrow() ? 18 : 40);
    const run = Report.data.runs[Report.run()];
    const more = layers.left_out ? `; ${layers.left_out} more layers have more` : "";
    return {
      data: [
        bars(layers, "forward", "forward pass", "c-blue"),
        bars(layers, "backward", "gradients at scale 1", "c-orange"),
      ],
      layout: {
        barmode: "group", height: 110 + inner, bargap: 0.25, margin: { l: 56, r: 16, t: 40, b: 44 },
        xaxis: { title: { text: `head-room in ${Report.plain(run.format)}, binades${more}` } },
        yaxis: {
          autorange: "reversed", ...Rows.ticks(labels, inner / 14), showgrid: false, zeroline: false,
        },
        shapes: [edge(0, "solid"), edge(RISK, "dot")],
      },
      label: `Head-room of each layer in ${run.format}: of the forward pass and of the gradients`,
    };
  }

  function start() {
    if (!Report.data.headroom) return;
    const chart = Report.chart(Report.element("layer-headroom"), figure);
    Report.onRun(() => chart.draw());
  }
  return { start };
})();
