// SPDX-License-Identifier: Apache-2.0
// The runs side by side: what became of their steps.
"use strict";
const Policies = (() => {
  const kinds = [
    ["applied", "c-green"], ["skipped, a lower scale helps", "c-orange"],
    ["skipped, no scale helps", "c-purple"], ["applied though not finite", "c-red"],
  ];

  function figure() {
    const { runs } = Report.data;
    const labels = Rows.labels(runs.map((run) => run.label), Report.narrow() ? 18 : 40);
    const top = Report.narrow() ? 90 : 30; // the legend's lines are one below the other there
    const inner = Math.max(3 * runs.length, Math.min(800, 22 * runs.length));
    const data = kinds.map(([name, hue], kind) => ({
      type: "bar", orientation: "h", name, y: runs.map((_, i) => i),
      x: runs.map((run) => run.fates[kind]), marker: { color: Report.color(hue) },
      text: runs.map((run) => Report.plain(run.label)), textposition: "none",
      hovertemplate: `%{text}<br>steps ${name}: %{x}<extra></extra>`,
    })).filter((trace) => trace.x.some((n) => n > 0));
    return {
      data,
      layout: {
        barmode: "stack", height: 70 + top + inner, bargap: 0.35, margin: { l: 56, r: 16, t: top, b: 44 },
        xaxis: { title: { text: "steps" }, rangemode: "tozero" },
        yaxis: {
          autorange: "reversed", ...Rows.ticks(labels, inner / 14), showgrid: false, zeroline: false,
        },
        legend: { orientation: "h", y: 1.01, yanchor: "bottom", x: 0, traceorder: "normal" },
      },
      label: "Steps of each run that were applied or skipped; the table above has the numbers",
    };
  }

  function start() {
    const table = document.getElementById("policies-table");
    const mark = () => {
      for (const row of table.tBodies[0].rows) {
        const chosen = Number(row.querySelector(".pick").dataset.run) === Report.run();
        row.classList.toggle("chosen", chosen);
      }
    };
    table.addEventListener("click", (event) => {
      const pick = event.target.closest(".pick");
      if (pick) Report.choose(Number(pick.dataset.run));
    });
    Report.onRun(mark);
    mark();
    Report.chart(Report.element("fates"), figure);
  }
  return { start };
})();
