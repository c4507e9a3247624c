// SPDX-License-Identifier: Apache-2.0
// A replayed probe: how far each tensor drifts from float32, in every run.
"use strict";
const Updates = (() => {
  const isLarge = ([drift, , , , nonfinite]) => nonfinite > 0 || drift === "inf" || drift === "nan";
  const isKnown = (point) => point[0] !== null || isLarge(point);

  // The axis of decades, with what is not finite on its right end.
  function axisOf(points, limit) {
    const values = [...points.map((p) => p[0]), limit];
    const positive = values.filter((v) => typeof v === "number" && v > 0);
    const last = Math.ceil(Math.log10(Math.max(...positive)));
    const axis = Report.decades(values, last);
    if (points.some(isLarge)) {
      axis.tickvals.push(last + 1);
      axis.ticktext.push("not finite");
    }
    return { ...axis, place: (p) => (isLarge(p) ? last + 1 : axis.at(p[0])) };
  }

  function describe(tensor, run, [drift, lost, altered, moment, nonfinite, harmed]) {
    return [
      `<b>${Report.plain(tensor.replace(/.{60}/g, "$&\n")).replace(/\n/g, "<br>")}</b>`, Report.plain(run),
      drift === null ? "" : `drift ${drift}`, lost === null ? "" : `${Report.share(lost)} of the updates lost`,
      altered === null ? "" : `${Report.share(altered)} altered`, moment === null ? "" : `2nd moment ${moment}`,
      nonfinite > 0 ? `${Report.count(nonfinite)} not finite` : "",
      harmed === null ? "" : `harmed from step ${harmed} on`,
    ].filter((text) => text !== "").join("<br>");
  }

  function figure({ limit, runs, tensors, left, points }) {
    const { at, place, tickvals, ticktext } = axisOf(points.flat(), limit);
    const rows = tensors.map((_, i) => i);
    const data = runs.map((run, r) => {
      const shown = rows.filter((i) => isKnown(points[r][i]));
      return {
        type: "scatter", mode: "markers", name: Report.plain(run), y: shown, x: shown.map((i) => place(points[r][i])),
        text: shown.map((i) => describe(tensors[i], run, points[r][i])), hovertemplate: "%{text}<extra></extra>",
        marker: {
          size: 9, symbol: Report.symbol(r), color: Report.hue(r), opacity: 0.85,
        },
      };
    });
    data.push({
      type: "scatter", mode: "lines", name: `warning beyond ${limit}`, hoverinfo: "skip", x: [at(limit), at(limit)],
      y: [-0.5, tensors.length - 0.5], line: { dash: "dash", width: 1.5, color: Report.color("ink") },
    });
    const narrow = Report.narrow();
    const legend = 22 * Math.ceil(data.length / (narrow ? 2 : 5));
    const height = 90 + legend + Math.max(90, 16 * tensors.length);
    const ticks = Rows.ticks(Rows.labels(tensors, narrow ? 18 : 40), (height - legend) / 15);
    return {
      data,
      layout: {
        height, margin: { l: 56, r: 24, t: 10 + legend, b: 44 },
        xaxis: { title: { text: "drift" }, tickvals, ticktext, zeroline: false },
        yaxis: { ...ticks, range: [tensors.length - 0.5, -0.5], zeroline: false },
      },
      label: `drift of ${tensors.length} tensors in ${runs.length} settings`
        + (left > 0 ? `; ${left} tensors that drift less are left out` : ""),
    };
  }

  function start() {
    Report.data.updates.forEach((packed, i) => {
      const element = document.querySelector(`[data-chart="updates"][data-key="${i}"]`);
      Report.chart(element, async () => figure(await Report.unpack(packed)));
    });
  }
  return { start };
})();
