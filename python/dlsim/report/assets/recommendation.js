// SPDX-License-Identifier: Apache-2.0
// The evidence of a recommendation: what is lost side by side, and the head-room of each step.
"use strict";
const Recommendation = (() => {
  function losses({ bars }) {
    const labels = Rows.labels(bars.label, Report.narrow() ? 20 : 40);
    const chosen = (label) => label.startsWith("recommended");
    const data = [{
      type: "bar", orientation: "h", x: bars.loss.map((loss) => 100 * loss), y: bars.label.map((_, i) => i), showlegend: false,
      marker: { color: bars.label.map((label) => Report.color(chosen(label) ? "accent" : "quiet")) },
      text: bars.loss.map(Report.share), textposition: "outside", cliponaxis: false,
      customdata: bars.label.map((label, i) => [
        Report.plain(label), Report.share(bars.loss[i]), bars.skipped[i] ?? "",
      ]),
      hovertemplate: "%{customdata[0]}<br>gradient lost %{customdata[1]}<br>steps skipped: %{customdata[2]}<extra></extra>",
    }];
    const bound = typeof bars.bound === "number" ? [{
      type: "line", xref: "x", yref: "paper", x0: 100 * bars.bound, x1: 100 * bars.bound, y0: 0, y1: 1,
      line: { color: Report.color("ink"), dash: "dash", width: 1.5 },
    }] : [];
    return {
      data,
      layout: {
        height: 100 + 24 * bars.label.length, bargap: 0.3, shapes: bound,
        margin: { l: 8, r: 40, t: 28, b: 40 },
        xaxis: { title: { text: "gradient lost, on average" }, rangemode: "tozero", ticksuffix: " %" },
        yaxis: {
          autorange: "reversed", showgrid: false, zeroline: false, ...Rows.ticks(labels, labels.length),
        },
      },
      label: "Gradient lost under the recommendation and under the policies compared with it",
    };
  }

  function band(range, color, opacity) {
    if (!range || range.includes(null)) return [];
    return [{
      type: "rect", xref: "paper", x0: 0, x1: 1, y0: range[0], y1: range[1], layer: "below",
      line: { width: range[0] === range[1] ? 2 : 0, color: Report.color(color) },
      fillcolor: Report.color(color), opacity,
    }];
  }

  function headroom({ steps, recommended, window: suits }) {
    const finite = steps.filter(([, scale]) => scale !== null);
    const never = steps.filter(([, scale]) => scale === null);
    const foot = Math.min(0, ...finite.map(([, scale]) => scale), ...(recommended[0] === null ? [] : recommended));
    const data = [{
      type: "scatter", mode: "lines+markers", x: finite.map(([step]) => step), y: finite.map(([, scale]) => scale),
      name: "largest scale", line: { width: 1, color: Report.color("accent") },
      marker: { size: finite.length > 300 ? 3 : 6, color: Report.color("accent") },
      hovertemplate: "step %{x}<br>finite up to 2<sup>%{y}</sup><extra></extra>",
    }];
    if (never.length > 0) {
      data.push({
        type: "scatter", mode: "markers", x: never.map(([step]) => step), y: never.map(() => foot),
        name: "not finite at any scale", marker: { symbol: "x", size: 9, color: Report.color("c-purple") },
        hovertemplate: "step %{x}<br>not finite at any scale<extra></extra>",
      });
    }
    return {
      data,
      layout: {
        height: 320, shapes: [...band(suits, "good-soft", 0.6), ...band(recommended, "c-orange", 0.35)],
        xaxis: { title: { text: "step" } },
        yaxis: {
          title: { text: "largest loss scale" }, tickprefix: "2^",
          range: Report.binades([...finite.map(([, scale]) => scale), ...recommended, foot]),
        },
        legend: { orientation: "h", y: 1.01, yanchor: "bottom", x: 0 },
      },
      label: "Largest loss scale at which each step is finite",
    };
  }

  async function copy(button) {
    const text = document.getElementById(button.dataset.copy).textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Pages opened from a disk may have no clipboard: the old way.
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }

  function start() {
    for (const element of document.querySelectorAll('[data-chart="loss"], [data-chart="headroom"]')) {
      const [result, format] = element.dataset.key.split("-").map(Number);
      const found = Report.data.tunes[result][format];
      Report.chart(element, () => (element.dataset.chart === "loss" ? losses : headroom)(found));
    }
    for (const button of document.querySelectorAll(".copy")) {
      button.addEventListener("click", () => copy(button));
    }
  }
  return { start };
})();
