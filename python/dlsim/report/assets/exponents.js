// SPDX-License-Identifier: Apache-2.0
// Counts per binade, and what each format holds of them at a loss scale.
"use strict";
const Exponents = (() => {
  const byId = (id) => document.getElementById(id);
  let counts = null;
  let histogram, layers;

  const scale = () => Number(byId("exponent-scale").value);
  const role = () => byId("exponent-role").value;

  // Adds rows into one array of counts from the lowest to the highest binade.
  function total(rows) {
    const used = rows.filter((row) => row[4].length > 0);
    if (used.length === 0) return { low: 0, counts: [] };
    const low = used.reduce((least, row) => Math.min(least, row[3]), Infinity);
    const high = used.reduce((most, row) => Math.max(most, row[3] + row[4].length), -Infinity);
    const sum = new Array(high - low).fill(0);
    for (const row of used) row[4].forEach((n, i) => { sum[row[3] - low + i] += n; });
    return { low, counts: sum };
  }

  function chosenRows() {
    const layer = byId("exponent-layer").value;
    return counts.rows.filter((row) => row[1] === role() && (layer === "" || row[2] === Number(layer)));
  }

  const elements = (row) => row[4].reduce((a, b) => a + b, 0) + row[5] + row[6];

  // Values of a row below 2^limit, with those at it if `closed`: the fewest and the most that there
  // can be, and the likeliest number: within a binade, which ends at the largest magnitude if that is
  // known, values are taken as even over their logarithm.
  function below(row, limit, closed) {
    const [, , , first, values, , , top] = row;
    const found = { least: 0, likely: 0, most: 0 };
    values.forEach((n, i) => {
      const low = first + i;
      const known = i === values.length - 1 && top !== null;
      const high = known ? top : low + 1;
      const all = limit > high || (limit === high && (closed || !known));
      const none = limit < low || (limit === low && !closed);
      found.least += all ? n : 0;
      found.most += all ? n : none ? 0 : n - (known ? 1 : 0);
      found.likely += all ? n : none ? 0 : Math.min(n - (known ? 1 : 0), n * (limit - low) / Math.max(high - low, 1e-9));
    });
    return found;
  }

  function sumBelow(rows, limit, closed) {
    const parts = rows.map((row) => below(row, limit, closed));
    const sum = (key) => parts.reduce((total, part) => total + part[key], 0);
    return { least: sum("least"), likely: sum("likely"), most: sum("most") };
  }

  const minus = (a, b) => ({
    least: Math.max(0, a.least - b.most), likely: Math.max(0, a.likely - b.likely), most: Math.max(0, a.most - b.least),
  });

  // What becomes zero, subnormal, infinite: estimated from the counts per binade, if it can be.
  function estimated(format, rows, all) {
    if (!format.known) return [null, null, null];
    const zero = sumBelow(rows, format.zero - scale(), true);
    const low = sumBelow(rows, format.subnormal - scale(), false);
    const over = minus({ least: all, likely: all, most: all }, sumBelow(rows, format.infinite - scale(), false));
    return [zero, minus(low, zero), over].map(({ least, likely, most }) => ({
      count: Math.min(most, Math.max(least, Math.round(likely))),
      exact: least === most && counts.exact,
    }));
  }

  // The same from the counters of a run in this format whose scale was this one at all steps; null
  // without one, or if its tensors hold other values.
  function counted(format, rows, tables) {
    const { runs } = Report.data;
    const isOf = (run) => run.format === format.name && run.scales.min === scale() && run.scales.max === scale();
    const run = [Report.run(), ...runs.keys()].find((i) => runs[i] && isOf(runs[i]));
    if (run === undefined) return null;
    const table = tables[run];
    const place = new Map(table.name.map((name, i) => [name, i]));
    const at = rows.map((row) => place.get(row[0]));
    if (at.some((i, k) => i === undefined || table.elements[i] !== elements(rows[k]))) return null;
    return ["underflow", "subnormal", "overflow"].map((key) => ({
      count: at.reduce((sum, i) => sum + table[key][i], 0),
      exact: !at.some((i) => table.open.includes(i)),
    }));
  }

  async function listShares(rows) {
    const tables = Report.data.tensors ? await Report.unpack(Report.data.tensors) : [];
    const all = rows.reduce((sum, row) => sum + row[4].reduce((a, b) => a + b, 0), 0);
    const body = byId("exponent-lost").tBodies[0];
    body.replaceChildren(...Report.data.formats.map((format, i) => {
      const row = document.createElement("tr");
      const head = document.createElement("th");
      head.scope = "row";
      head.textContent = format.name;
      head.style.color = Report.hue(i);
      row.append(head);
      for (const found of counted(format, rows, tables) || estimated(format, rows, all)) {
        const cell = row.insertCell();
        cell.className = "number";
        const share = found && Report.share(all === 0 ? 0 : found.count / all);
        cell.textContent = found ? `${found.exact ? "" : "~"}${share}` : "\u2013";
      }
      return row;
    }));
  }

  // A pair of lines per format above the histogram, shifted by the loss scale.
  function ranges(yaxis) {
    return Report.data.formats.flatMap((format, i) => {
      const color = Report.hue(i);
      const y = Report.data.formats.length - i;
      const part = (from, to, width, text) => ({
        type: "scatter", mode: "lines", x: [from - scale(), to - scale()], y: [y, y], yaxis,
        line: { color, width }, showlegend: false,
        hovertemplate: `${Report.plain(format.name)}: ${text}<br>2<sup>%{x}</sup> unscaled<extra></extra>`,
      });
      return [
        part(format.zero, format.normal, 3, "subnormal, fewer bits"),
        part(format.normal, format.over, 9, "all bits kept"),
      ];
    });
  }

  function span(hist) {
    const { formats } = Report.data;
    const low = Math.max(-150, Math.min(hist.low, -20));
    const high = Math.min(128, Math.max(hist.low + hist.counts.length, 2));
    return [Math.min(low, ...formats.map((f) => Math.max(f.zero - scale(), low - 12))) - 2, high + 6];
  }

  function shades(run) {
    const format = Report.data.formats.find((f) => run && f.name === run.format);
    if (!format) return [];
    const shade = (x0, x1) => ({
      type: "rect", xref: "x", yref: "paper", x0, x1, y0: 0, y1: 1, line: { width: 0 }, layer: "below",
      fillcolor: Report.color("bad-soft"), opacity: 0.6,
    });
    return [shade(-400, format.zero - scale()), shade(format.over - scale(), 400)];
  }

  // Few values fall off the ends: only a logarithmic axis shows them next to the others.
  function countAxis(hist) {
    if (!byId("exponent-log").checked) return { rangemode: "tozero" };
    const most = Math.log10(Math.max(1, ...hist.counts));
    return { type: "log", range: [Math.log10(0.5), most * 1.05 + 0.1], dtick: 1, exponentformat: "power" };
  }

  async function drawHistogram() {
    const rows = chosenRows();
    const hist = total(rows);
    const run = Report.current();
    const { formats } = Report.data;
    await listShares(rows);
    byId("exponent-scale-text").textContent = Report.power(scale());
    const top = 1 - Math.min(0.4, 0.07 + 0.045 * formats.length);
    const xs = hist.counts.map((_, i) => hist.low + i + 0.5);
    return {
      data: [{
        type: "bar", x: xs, y: hist.counts, width: 0.92, marker: { color: Report.color("accent") },
        customdata: hist.counts.map((_, i) => [hist.low + i, hist.low + i + 1]), showlegend: false,
        hovertemplate: "2<sup>%{customdata[0]}</sup> to 2<sup>%{customdata[1]}</sup><br>%{y:,} gradients<extra></extra>",
      }, ...ranges("y2")],
      layout: {
        height: 400, bargap: 0, shapes: shades(run),
        xaxis: { title: { text: "magnitude of the unscaled gradient" }, tickprefix: "2^", range: span(hist), zeroline: false },
        yaxis: { domain: [0, top], title: { text: "gradients" }, ...countAxis(hist) },
        yaxis2: {
          domain: [top + 0.04, 1], range: [0.4, formats.length + 0.6], showgrid: false, zeroline: false,
          tickvals: formats.map((_, i) => formats.length - i), ticktext: formats.map((f) => Report.plain(f.name)),
        },
      },
      label: `Gradients per binade, and the ranges of the formats at a loss scale of 2^${scale()}`,
    };
  }

  function drawLayers() {
    const ofLayer = counts.layers.map(() => []);
    for (const row of counts.rows) if (row[1] === role()) ofLayer[row[2]].push(row);
    const rows = ofLayer.map((of, i) => [counts.layers[i], total(of)]).filter(([, hist]) => hist.counts.length > 0);
    const low = rows.reduce((least, [, hist]) => Math.min(least, hist.low), 0);
    const high = rows.reduce((most, [, hist]) => Math.max(most, hist.low + hist.counts.length), 1);
    const z = rows.map(([, hist]) => {
      const all = hist.counts.reduce((a, b) => a + b, 0);
      const line = new Array(high - low).fill(null);
      hist.counts.forEach((n, i) => { line[hist.low - low + i] = n > 0 ? Math.log10(n / all) : null; });
      return line;
    });
    const { height, join, gap, most } = Rows.fit(rows.length, 80);
    byId("exponent-rows").textContent = Rows.note(join, "share");
    const names = Rows.labels(rows.map(([name]) => Report.data.names[name]), Report.narrow() ? 14 : 36);
    const groups = Rows.joined(rows.map((_, i) => i), join);
    // Of each group the row with the largest share of each binade.
    const best = groups.map((group) => Array.from({ length: high - low }, (_, bin) =>
      group.reduce((a, b) => (z[b][bin] ?? -99) > (z[a][bin] ?? -99) ? b : a)));
    const shares = best.map((line) => line.map((row, bin) => z[row][bin]));
    const edges = Report.data.formats.flatMap((format, i) => ["zero", "over"].map((edge) => ({
      type: "line", xref: "x", yref: "paper", y0: 0, y1: 1, x0: format[edge] - scale(), x1: format[edge] - scale(),
      line: { color: Report.hue(i), width: 1.5, dash: edge === "zero" ? "solid" : "dot" },
    })));
    const shade = [["heat-0", 0], ["heat-1", 0.45], ["heat-2", 0.75], ["heat-3", 1]];
    return {
      data: [{
        type: "heatmap", z: shares, x: z.length ? z[0].map((_, i) => low + i + 0.5) : [], xgap: 1, ygap: gap, hoverongaps: false,
        zmin: -6, zmax: 0, colorscale: shade.map(([name, at2]) => [at2, Report.color(name)]),
        text: best.map((line) => line.map((row) => Report.plain(Report.data.names[rows[row][0]]))),
        customdata: shares.map((line) => line.map((v, i) => [low + i, v === null ? "" : Report.share(10 ** v)])),
        hovertemplate: "%{text}<br>2<sup>%{customdata[0]}</sup>: %{customdata[1]}<extra></extra>",
        colorbar: {
          thickness: 12, outlinewidth: 0, tickvals: [-6, -4, -2, 0], ticktext: [`10${Report.raised(-6)}`, `10${Report.raised(-4)}`, "1 %", "100 %"],
        },
      }],
      layout: {
        height, margin: { l: 8, r: 8, t: 28, b: 44 }, shapes: edges,
        xaxis: { title: { text: "magnitude of the unscaled gradient" }, tickprefix: "2^", showgrid: false, zeroline: false, range: [low - 1, high + 1] },
        yaxis: {
          autorange: "reversed", showgrid: false, zeroline: false,
          ...Rows.ticks(groups.map(([first]) => names[first]), most),
        },
      },
      label: `Share of each of ${rows.length} layers' gradients per binade`,
    };
  }

  function toScaleOfRun(end) {
    const run = Report.current();
    const value = end === "one" ? 0 : run && run.scales[end];
    if (value === null || value === undefined) return;
    byId("exponent-scale").value = Math.round(value);
  }

  function redraw() {
    histogram.draw();
    layers.draw();
  }

  // Chooses the layer with this name, or that of this tensor.
  function show(name) {
    if (!counts) return;
    const row = counts.rows.find((r) => Report.data.names[r[0]] === name);
    const layer = row ? row[2] : counts.layers.findIndex((n) => Report.data.names[n] === name);
    if (layer < 0) return;
    byId("exponent-layer").value = String(layer);
    redraw();
  }

  async function start() {
    counts = await Report.unpack(Report.data.exponents);
    const choose = byId("exponent-layer");
    choose.append(new Option("all", ""));
    counts.layers.forEach((name, i) => choose.append(new Option(Report.data.names[name], i)));
    toScaleOfRun("final");
    histogram = Report.chart(Report.element("exponents"), drawHistogram);
    layers = Report.chart(Report.element("exponent-layers"), drawLayers);
    choose.addEventListener("change", () => histogram.draw());
    byId("exponent-role").addEventListener("change", redraw);
    byId("exponent-scale").addEventListener("input", redraw);
    byId("exponent-log").addEventListener("change", () => histogram.draw());
    for (const button of document.querySelectorAll("[data-scale]")) {
      button.disabled = button.dataset.scale !== "one" && !Report.current();
      button.addEventListener("click", () => { toScaleOfRun(button.dataset.scale); redraw(); });
    }
    Report.onRun(() => { toScaleOfRun("final"); redraw(); });
  }
  return { start, show };
})();
