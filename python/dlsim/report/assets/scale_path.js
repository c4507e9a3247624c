// SPDX-License-Identifier: Apache-2.0
// The loss scale over the steps, with marks by cause.
"use strict";
const ScalePath = (() => {
  const causes = {
    overflow: ["c-red", "x"], input: ["c-purple", "diamond"], norm: ["c-blue", "square"],
    sum: ["c-sky", "triangle-up"], accumulation: ["c-orange", "triangle-down"],
    unscaling: ["c-green", "star"], policy: ["soft", "circle"],
  };
  let entry;

  const others = () => document.getElementById("path-others").checked;

  function line(run, path, chosen) {
    return {
      type: "scatter", mode: "lines", x: path.step, y: path.log2, showlegend: false,
      line: {
        shape: "hv", width: chosen ? 2.2 : 1, color: Report.color(chosen ? "accent" : "quiet"),
      },
      name: Report.plain(run.label), hoverlabel: { namelength: -1 },
      hovertemplate: `step %{x}<br>scale 2<sup>%{y}</sup><extra>${Report.plain(run.label)}</extra>`,
    };
  }

  function describe([first, last, steps, , scale, cause, tensor, skipped, helps]) {
    const when = steps === 1 ? `step ${first}` : `${Report.count(steps)} steps, ${first} to ${last}`;
    const lines = [
      `<b>${when}: ${skipped ? "skipped" : "applied, not finite"}</b>`,
      `cause: ${Report.plain(cause)}`, `scale ${scale}`,
    ];
    if (tensor >= 0) lines.push(`tensor: ${Report.plain(Report.data.names[tensor])}`);
    lines.push(helps ? "a lower scale would help" : "no lower scale helps");
    return lines.join("<br>");
  }

  function marks(path) {
    // Where there is no logarithm of the scale, marks are drawn at the foot of the line.
    const foot = Math.min(0, ...path.log2.filter((y) => y !== null));
    return Object.entries(causes).flatMap(([cause, [hue, symbol]]) => [1, 0].map((skipped) => {
      const rows = path.marks.filter((m) => m[5] === cause && m[7] === skipped);
      const color = Report.color(hue);
      const steps = rows.reduce((sum, m) => sum + m[2], 0);
      return {
        type: "scatter", mode: "markers", x: rows.map((m) => m[0]),
        y: rows.map((m) => (m[3] === null ? foot : m[3])), text: rows.map(describe),
        name: `${cause}${skipped ? "" : ", applied"} (${Report.count(steps)})`,
        hovertemplate: "%{text}<extra></extra>",
        marker: {
          color, symbol: skipped ? symbol : `${symbol}-open`,
          size: rows.map((m) => Math.min(16, 8 + 2 * Math.log2(m[2]))), opacity: 0.9,
          line: { color: skipped ? Report.color("card") : color, width: skipped ? 0.7 : 1.5 },
        },
      };
    })).filter((trace) => trace.x.length > 0);
  }

  async function figure() {
    const { runs } = Report.data;
    const shown = runs.map((run, i) => (i === Report.run() || others() ? run : null));
    const paths = await Promise.all(shown.map((run) => run && Report.unpack(run.path)));
    const path = paths[Report.run()];
    const run = Report.current();
    const data = runs.flatMap((r, i) => (paths[i] && i !== Report.run() ? [line(r, paths[i], false)] : []));
    data.push(line(run, path, true), ...marks(path));
    const odd = path.marks.filter((m) => m[7]).reduce((sum, m) => sum + m[2], 0);
    document.getElementById("path-summary").textContent =
      `${run.label}: steps skipped: ${Report.count(odd)}, final scale ${Report.power(run.scales.final)}`;
    return {
      data,
      layout: {
        height: 360, xaxis: { title: { text: "step" } },
        yaxis: {
          title: { text: "loss scale" }, tickprefix: "2^", range: Report.binades(data.flatMap((trace) => trace.y)),
        },
        legend: { orientation: "h", y: 1.01, yanchor: "bottom", x: 0 },
      },
      label: `Loss scale over the steps of ${run.label}; ${odd} steps were skipped`,
    };
  }

  function start() {
    entry = Report.chart(Report.element("scale-path"), figure);
    document.getElementById("path-others").addEventListener("change", () => entry.draw());
    Report.onRun(() => entry.draw());
  }
  return { start };
})();
