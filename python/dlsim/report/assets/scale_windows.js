// SPDX-License-Identifier: Apache-2.0
// The safe loss scales of each step as a band, with the scales of the runs in it; below the loss
// and the gradient's norm of the training.
"use strict";
const ScaleWindows = (() => {
  const colors = ["c-blue", "c-red", "c-purple", "c-orange", "c-sky", "c-yellow"];
  const OPEN = 126; // a window that ends there has no end

  // Pieces of the band without a gap, as [from, to, low, high] in order.
  function pieces(bands) {
    const found = [];
    let piece = null;
    bands.step.forEach((step, i) => {
      const low = bands.low[i];
      if (low === null) {
        piece = null;
        return;
      }
      if (!piece) found.push(piece = []);
      piece.push([step, bands.step[i + 1] ?? bands.end, low, bands.high[i]]);
    });
    return found;
  }

  function band(parts) {
    const x = [], y = [];
    for (const part of parts) {
      for (const [from, to, , high] of part) { x.push(from, to); y.push(high, high); }
      for (const [from, to, low] of [...part].reverse()) { x.push(to, from); y.push(low, low); }
      x.push(null);
      y.push(null);
    }
    return {
      type: "scatter", mode: "lines", x, y, fill: "toself", hoverinfo: "skip", name: "safe loss scales",
      fillcolor: Report.color("good-soft"), line: { width: 1, color: Report.color("good") },
    };
  }

  // What the pointer finds: both ends of the window at each of its changes.
  function ends(parts) {
    const rows = parts.flat();
    const text = rows.map(([from, to, low, high]) =>
      `${to - from > 1 ? `from step ${from}` : `step ${from}`}<br>safe: ${mark(low)} to ${mark(high)}`);
    return {
      type: "scatter", mode: "markers", x: [...rows, ...rows].map(([from]) => from), showlegend: false,
      y: [...rows.map((row) => row[2]), ...rows.map((row) => row[3])], text: [...text, ...text],
      hovertemplate: "%{text}<extra></extra>", marker: { size: 5, color: Report.color("good") },
    };
  }

  const mark = (exponent) => `2<sup>${Math.round(exponent * 100) / 100}</sup>`;

  function gaps(bands, foot) {
    const at = bands.step.map((_, i) => i).filter((i) => bands.low[i] === null);
    return {
      type: "scatter", mode: "markers", x: at.map((i) => bands.step[i]), y: at.map(() => foot),
      name: "no scale is safe", hovertemplate: "%{text}<extra></extra>",
      text: at.map((i) => {
        const last = (bands.step[i + 1] ?? bands.end) - 1;
        const from = bands.step[i];
        return `${last > from ? `steps ${from} to ${last}` : `step ${from}`}: no scale is safe`;
      }),
      marker: { symbol: "x", size: 8, color: Report.color("c-purple") },
    };
  }

  function line(index, path, place, end) {
    const run = Report.data.runs[index];
    const chosen = index === Report.run();
    const named = place < colors.length;
    return {
      type: "scatter", mode: "lines", x: [...path.step, end], y: [...path.log2, path.log2.at(-1)],
      name: Report.plain(run.label), showlegend: named || chosen,
      line: {
        shape: "hv", width: chosen ? 2.6 : 1.4, color: Report.color(named ? colors[place] : chosen ? "accent" : "quiet"),
      },
      hovertemplate: `step %{x}<br>scale 2<sup>%{y}</sup><extra>${Report.plain(run.label)}</extra>`,
      hoverlabel: { namelength: -1 },
    };
  }

  // What the training itself had: its scale among those of the runs, and below its loss and the
  // norm of its gradient.
  function ofTraining(training) {
    const data = [];
    if (training?.scale.length) {
      data.push({
        type: "scatter", mode: "lines", x: training.step, y: training.scale, name: "recorded",
        line: { shape: "hv", dash: "dot", width: 1.6, color: Report.color("ink") },
        hovertemplate: "step %{x}<br>scale 2<sup>%{y}</sup><extra>recorded</extra>",
      });
    }
    if (training?.loss.some((value) => value !== null)) {
      data.push({
        type: "scatter", mode: "lines", x: training.step, y: training.loss, yaxis: "y2", showlegend: false,
        line: { width: 1.4, color: Report.color("c-blue") },
        hovertemplate: "step %{x}<br>loss %{y}<extra></extra>",
      });
    }
    if (training?.norm.some((value) => value !== null)) {
      data.push({
        type: "scatter", mode: "lines", x: training.step, y: training.norm, showlegend: false,
        yaxis: data.some((trace) => trace.yaxis === "y2") ? "y3" : "y2",
        line: { width: 1.4, color: Report.color("c-orange") },
        hovertemplate: "step %{x}<br>gradient norm %{y}<extra></extra>",
      });
    }
    return data;
  }

  // The axes below the windows, as far as something is drawn there; of both the norm's is on the right.
  function axesOf(data) {
    const axes = [...new Set(data.map((trace) => trace.yaxis).filter(Boolean))];
    if (axes.length === 0) return {};
    const titled = (text, name) => ({ title: { text, font: { color: Report.color(name) } }, automargin: true });
    const valuesOf = (axis) => data.find((trace) => trace.yaxis === axis).y.filter((value) => value !== null);
    const losses = valuesOf("y2");
    const isWide = Math.min(...losses) > 0 && Math.max(...losses) > 1e3 * Math.min(...losses);
    const loss = { ...titled("loss", "c-blue"), ...isWide ? Report.logAxis(losses) : {} };
    const hasNorm = data.some((trace) => trace.yaxis && trace.line.color === Report.color("c-orange"));
    const norm = {
      ...titled("gradient norm", "c-orange"), ...Report.logAxis(valuesOf(axes.at(-1))), showgrid: false,
    };
    const low = { domain: [0, 0.26] };
    if (axes.length === 2) {
      return {
        height: 500, yaxis2: { ...loss, ...low },
        yaxis3: { ...norm, ...low, anchor: "x", overlaying: "y2", side: "right" },
      };
    }
    return { height: 500, yaxis2: { ...hasNorm ? norm : loss, ...low } };
  }

  async function figure({ format, scale, bands: packedBands, runs }) {
    const bands = await Report.unpack(packedBands);
    const training = Report.data.training && await Report.unpack(Report.data.training);
    const paths = await Promise.all(runs.map((index) => Report.unpack(Report.data.runs[index].path)));
    const parts = pieces(bands);
    const below = ofTraining(training);
    const axes = axesOf(below);
    // The paths, and windows where they end.
    const range = Report.binades([
      ...bands.low, ...bands.high, ...paths.flatMap((path) => path.log2), ...training?.scale ?? [], scale,
    ].filter((value) => value === null || Math.abs(value) < OPEN));
    const data = [band(parts), ends(parts), ...runs.map((index, i) => line(index, paths[i], i, bands.end))];
    if (scale !== null) {
      data.push({
        type: "scatter", mode: "lines", x: [bands.step[0], bands.end], y: [scale, scale], hoverinfo: "skip",
        name: `use ${mark(scale)}`, line: { dash: "dash", width: 1.5, color: Report.color("ink") },
      });
    }
    data.push(...below);
    if (bands.low.includes(null)) data.push(gaps(bands, range[0] + 1));
    return {
      data,
      layout: {
        height: 360, ...axes, xaxis: { title: { text: "step" }, anchor: axes.yaxis2 ? "y2" : "y" },
        yaxis: { title: { text: "loss scale" }, tickprefix: "2^", range, domain: [axes.yaxis2 ? 0.34 : 0, 1] },
        legend: { orientation: "h", y: 1.01, yanchor: "bottom", x: 0 },
      },
      label: `Safe loss scales of the steps in ${format}, and the scales of ${runs.length} runs`,
    };
  }

  function start() {
    for (const element of document.querySelectorAll('[data-chart="windows"]')) {
      const [verdict, format] = element.dataset.key.split("-");
      const entry = Report.chart(element, () => figure(Report.data.windows[verdict][format]));
      Report.onRun(() => entry.draw());
    }
  }
  return { start };
})();
