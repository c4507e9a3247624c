// SPDX-License-Identifier: Apache-2.0
// Two runs compared: the largest difference of a tensor over the steps, and the threshold.
"use strict";
const Differences = (() => {
  const isLarge = (value) => value === "inf" || value === "nan";

  // The axis of decades, with what is infinite on its ceiling.
  function axisOf(points, threshold) {
    const values = [...points.map((p) => p[1]), threshold];
    const positive = values.filter((v) => typeof v === "number" && v > 0);
    const last = positive.length ? Math.ceil(Math.log10(Math.max(...positive))) : -1;
    const axis = Report.decades(values, last);
    if (points.some((p) => isLarge(p[1]))) {
      axis.tickvals.push(last + 1);
      axis.ticktext.push("\u221e");
    }
    return { ...axis, at: (v) => (isLarge(v) ? last + 1 : axis.at(v)) };
  }

  function describe([step, difference, tensor, beyond], measure) {
    const size = typeof difference === "number" ? difference.toPrecision(3) : difference;
    return [
      `<b>step ${step}</b>`, `${measure} ${size}`, Report.plain(tensor.replace(/.{60}/g, "$&\n")).replace(/\n/g, "<br>"),
      beyond ? `${Report.count(beyond)} ${beyond === 1 ? "tensor" : "tensors"} above the threshold` : "",
    ].filter((text) => text !== "").join("<br>");
  }

  function figure({ measure, threshold, points }) {
    const { at, tickvals, ticktext } = axisOf(points, threshold);
    const steps = points.map((p) => p[0]);
    const isBeyond = (p) => p[3] > 0;
    const data = [{
      type: "scatter", mode: "lines+markers", name: measure, x: steps, y: points.map((p) => at(p[1])),
      text: points.map((p) => describe(p, measure)), hovertemplate: "%{text}<extra></extra>",
      line: { width: 1.2, color: Report.color("soft") },
      marker: { size: 6, color: points.map((p) => Report.color(isBeyond(p) ? "c-red" : "c-green")) },
    }];
    if (threshold !== null) {
      data.push({
        type: "scatter", mode: "lines", name: `threshold ${threshold}`, hoverinfo: "skip",
        x: [steps[0], steps[steps.length - 1]], y: [at(threshold), at(threshold)],
        line: { dash: "dash", width: 1.5, color: Report.color("ink") },
      });
    }
    return {
      data,
      layout: {
        height: 320, xaxis: { title: { text: "step" } },
        yaxis: { title: { text: measure }, zeroline: false, tickvals, ticktext },
      },
      label: `${measure} over ${points.length} steps; ${points.filter(isBeyond).length} above the threshold`,
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
