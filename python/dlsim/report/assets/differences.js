// SPDX-License-Identifier: Apache-2.0
// Two runs compared: the largest difference of a tensor over the steps, and the threshold.
"use strict";
const Differences = (() => {
  const isLarge = (value) => value === "inf" || value === "nan";

  // Where a difference stands on the axis: 0 on its floor, what is infinite on its ceiling.
  function heights(points, threshold) {
    const values = [...points.map((p) => p[1]), threshold].filter((v) => typeof v === "number" && v > 0);
    const floor = values.length ? Math.floor(Math.log10(Math.min(...values))) - 1 : -1;
    const ceiling = values.length ? Math.ceil(Math.log10(Math.max(...values))) + 1 : 0;
    const at = (value) => (isLarge(value) ? ceiling : value > 0 ? Math.log10(value) : floor);
    return { floor, ceiling, at };
  }

  function describe([step, difference, tensor, beyond], measure) {
    const size = typeof difference === "number" ? difference.toPrecision(3) : difference;
    return [
      `<b>step ${step}</b>`, `${measure} ${size}`, Report.plain(Report.shortened(tensor, 60)),
      beyond ? `${Report.count(beyond)} ${beyond === 1 ? "tensor" : "tensors"} beyond the threshold` : "",
    ].filter((text) => text !== "").join("<br>");
  }

  function ticksOf({ floor, ceiling }, points) {
    const values = [floor], texts = ["0"];
    for (let t = floor + 1; t < ceiling; t += Math.max(1, Math.ceil((ceiling - floor) / 7))) {
      values.push(t);
      texts.push(t === 0 ? "1" : `10${Report.raised(t)}`);
    }
    if (points.some((p) => isLarge(p[1]))) {
      values.push(ceiling);
      texts.push("\u221e");
    }
    return { tickvals: values, ticktext: texts };
  }

  function figure({ measure, threshold, points }) {
    const scale = heights(points, threshold);
    const steps = points.map((p) => p[0]);
    const isBeyond = (p) => p[3] > 0;
    const data = [{
      type: "scatter", mode: "lines+markers", name: measure, x: steps, y: points.map((p) => scale.at(p[1])),
      text: points.map((p) => describe(p, measure)), hovertemplate: "%{text}<extra></extra>",
      line: { width: 1.2, color: Report.color("soft") },
      marker: { size: 6, color: points.map((p) => Report.color(isBeyond(p) ? "c-red" : "c-green")) },
    }];
    if (threshold !== null) {
      data.push({
        type: "scatter", mode: "lines", name: `threshold ${threshold}`, hoverinfo: "skip",
        x: [steps[0], steps[steps.length - 1]], y: [scale.at(threshold), scale.at(threshold)],
        line: { dash: "dash", width: 1.5, color: Report.color("ink") },
      });
    }
    return {
      data,
      layout: {
        height: 320, xaxis: { title: { text: "step" } },
        yaxis: { title: { text: measure }, zeroline: false, ...ticksOf(scale, points) },
      },
      label: `${measure} over ${points.length} steps; ${points.filter(isBeyond).length} beyond the threshold`,
    };
  }

  function start() {
    Report.data.differences.forEach((packed, i) => {
      const element = document.querySelector(`[data-chart="differences"][data-key="${i}"]`);
      Report.chart(element, async () => figure(await Report.unpack(packed)));
    });
  }
  return { start };
})();
