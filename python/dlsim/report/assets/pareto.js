// SPDX-License-Identifier: Apache-2.0
// The runs of a sweep: skipped steps against what is lost.
"use strict";
const Pareto = (() => {

  function describe(point, front, what) {
    const [index, skipped, lost, below, scale, format, policy, parameters] = point;
    return [
      `<b>#${index}: ${Report.plain(format)} \u00b7 ${Report.plain(policy)}</b>${front ? " (on the front)" : ""}`,
      Report.plain(parameters).replace(/, /g, "<br>"),
      `${Report.count(skipped)} steps skipped`, `${what}: ${Report.share(lost)}`,
      typeof below === "number" ? `${Report.count(below)} applied with too low a scale` : "", `final scale: ${scale}`,
    ].filter((text) => text !== "").join("<br>");
  }

  function draw(sweep) {
    const { points } = sweep;
    const { at, tickvals, ticktext } = Report.decades(points.map((p) => p[2]), 0);
    const y = (point) => at(point[2]);
    const formats = [...new Set(points.map((p) => p[5]))];
    const policies = [...new Set(points.map((p) => p[6]))];
    const groups = formats.flatMap((format) => policies.map((policy) => [format, policy]));
    const data = groups.flatMap(([format, policy]) => {
      const rows = points.filter((p) => p[5] === format && p[6] === policy);
      const color = Report.hue(formats.indexOf(format));
      return rows.length === 0 ? [] : [{
        type: "scatter", mode: "markers", name: Report.plain(`${format} \u00b7 ${policy}`),
        x: rows.map((p) => p[1]), y: rows.map(y), text: rows.map((p) => describe(p, p[8], sweep.what)),
        hovertemplate: "%{text}<extra></extra>",
        marker: {
          symbol: Report.symbol(policies.indexOf(policy)), color,
          size: rows.map((p) => (p[8] ? 13 : 7)), opacity: rows.map((p) => (p[8] ? 1 : 0.5)),
          line: { color: Report.color("ink"), width: rows.map((p) => (p[8] ? 1.5 : 0)) },
        },
      }];
    });
    const front = points.filter((p) => p[8]).sort((a, b) => a[1] - b[1]);
    data.unshift({
      type: "scatter", mode: "lines", x: front.map((p) => p[1]), y: front.map(y), name: "front",
      line: { shape: "hv", color: Report.color("soft"), width: 1.2, dash: "dot" }, hoverinfo: "skip",
    });
    const most = Math.max(1, ...points.map((p) => p[1]));
    return {
      data,
      layout: {
        height: 420, xaxis: { title: { text: "skipped steps" }, range: [-0.04 * most, 1.06 * most], zeroline: false },
        yaxis: { title: { text: sweep.what }, tickvals, ticktext },
      },
      label: `${sweep.runs} runs of a sweep: skipped steps against ${sweep.what}; ${front.length} on the front`,
    };
  }

  function start() {
    Report.data.sweeps.forEach((packed, i) => {
      const element = document.querySelector(`[data-chart="pareto"][data-key="${i}"]`);
      Report.chart(element, async () => draw(await Report.unpack(packed)));
    });
  }
  return { start };
})();
