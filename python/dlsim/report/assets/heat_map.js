// SPDX-License-Identifier: Apache-2.0
// Layers or tensors by steps: harm or the energy lost, the share that underflows, or overflows.
"use strict";
const HeatMap = (() => {
  const LOG10_2 = Math.log10(2);
  const harm = { name: "harm", floor: -6, of: "relative squared error" };
  const energy = { name: "energy lost", floor: -12, of: "of the sum of squares becomes zero" };
  const metricsOf = (map) => ({
    3: map.harm ? harm : energy,
    2: { name: "underflow", floor: -6, of: "of the nonzero gradients become zero" },
    4: { name: "overflow", floor: -6, of: "of the nonzero gradients overflow" },
  });
  let entry;
  let view = null; // what is drawn: map, groups of joined rows, metric

  const checked = (name) => document.querySelector(`input[name="${name}"]:checked`).value;

  // Shares come as 64ths of a binary logarithm; 1 is a share of zero, null is no share.
  const logShare = (code) => (code === null || code === 1 ? null : (code / 64) * LOG10_2);
  const rank = (code) => (code === null ? -2e9 : code === 1 ? -1e9 : code);
  const worst = (codes) => codes.reduce((a, c) => Math.max(a, rank(c)), -1e9);

  function rowsOf(map, metric) {
    const role = document.getElementById("heat-role").value;
    const rows = (map[checked("heat-rows")] || map.tensors).filter((row) => row[1] === role);
    if (document.getElementById("heat-order").value === "worst") {
      return [...rows].sort((a, b) => worst(b[metric]) - worst(a[metric]));
    }
    return rows;
  }

  function scaleOf(floor) {
    const parts = [0, 1, 2, 3, 4].map((i) => Report.color(`heat-${i}`));
    const ticks = [];
    for (let power = floor; power <= 0; power += floor < -8 ? 3 : 2) ticks.push(power);
    return {
      colorscale: [[0, parts[0]], [0.35, parts[1]], [0.6, parts[2]], [0.82, parts[3]], [1, parts[4]]],
      zmin: floor, zmax: 0, colorbar: {
        thickness: 12, len: 0.9, outlinewidth: 0, tickvals: ticks,
        ticktext: ticks.map((t) => (t === 0 ? "100 %" : t === -2 ? "1 %" : `10${Report.raised(t)}`)),
        tickfont: { size: 11 },
      },
    };
  }

  // Of rows that are joined the one with the largest share in a bin.
  const worstOf = (group, metric, bin) =>
    group.reduce((a, b) => (rank(b[metric][bin]) > rank(a[metric][bin]) ? b : a));

  function summarize(run, rows, metric, { name }, join) {
    const losing = rows.filter((row) => worst(row[metric]) > -1e9);
    const top = losing.reduce((a, b) => (worst(b[metric]) > worst(a[metric]) ? b : a), losing[0]);
    const text = losing.length === 0
      ? `${run.label}: nothing lost in ${rows.length} rows: ${name} is 0 everywhere.`
      : `${run.label}: ${losing.length} of ${rows.length} rows have some ${name}; most in `
        + `${Report.data.names[top[0]]}, ${Report.share(2 ** (worst(top[metric]) / 64))}.`;
    document.getElementById("heat-summary").textContent = `${text} ${Rows.note(join, name)}`;
  }

  async function figure() {
    const run = Report.current();
    if (!run.heat_map) {
      view = null;
      document.getElementById("heat-summary").textContent = `${run.label} has no heat map.`;
      return { data: [], layout: { height: 120, xaxis: { visible: false }, yaxis: { visible: false } }, label: "empty" };
    }
    const map = await Report.unpack(run.heat_map);
    const metric = Number(checked("heat-metric"));
    const rows = rowsOf(map, metric);
    const { height, join, gap, most } = Rows.fit(rows.length, 130);
    const groups = Rows.joined(rows, join);
    view = { map, groups, metric };
    const chosen = metricsOf(map)[metric];
    const { floor } = chosen;
    document.getElementById("heat-lost").textContent = metricsOf(map)[3].name;
    summarize(run, rows, metric, chosen, join);
    const color = scaleOf(floor);
    const columns = map.first.map((_, i) => i);
    const codes = groups.map((group) => columns.map((bin) => worstOf(group, metric, bin)[metric][bin]));
    const none = Report.color("heat-none");
    const hidden = { hoverinfo: "none", showscale: false, xgap: 0, ygap: gap };
    const strip = map.skipped.map((n, i) => n / map.steps[i]);
    const data = [
      {
        ...hidden, type: "heatmap", x: columns, z: codes.map((row) => row.map((c) => (c === null ? null : 0))),
        colorscale: [[0, none], [1, none]],
      },
      {
        ...hidden, type: "heatmap", x: columns, showscale: true, ...color,
        z: codes.map((row) => row.map((c) => {
          const share = logShare(c);
          return share === null ? null : Math.max(share, floor);
        })),
      },
      {
        ...hidden, type: "heatmap", x: columns, z: [strip], yaxis: "y2", zmin: 0, zmax: 1,
        colorscale: [[0, none], [1, Report.color("c-red")]],
      },
    ];
    const names = Rows.labels(rows.map((row) => Report.data.names[row[0]]), Report.narrow() ? 16 : 36);
    const foot = 1 - 30 / (height - 80);
    return {
      data,
      layout: {
        height, margin: { l: 8, r: 8, t: 28, b: 44 },
        xaxis: {
          title: { text: "step" }, showgrid: false, zeroline: false,
          ...Rows.ticks(map.first, Report.narrow() ? 5 : 12),
        },
        yaxis: {
          autorange: "reversed", showgrid: false, zeroline: false, domain: [0, foot],
          ...Rows.ticks(groups.map((_, i) => names[i * join]), most),
        },
        yaxis2: { domain: [foot + 0.3 * (1 - foot), 1], tickvals: [0], ticktext: ["skipped"], showgrid: false, zeroline: false },
      },
      label: `${chosen.name} of ${rows.length} rows over ${columns.length} bins of steps of ${run.label}`,
      ready: listen,
    };
  }

  function describe(point) {
    const { map, groups, metric } = view;
    const bin = point.x;
    const steps = map.first[bin] === map.last[bin]
      ? `step ${map.first[bin]}` : `steps ${map.first[bin]} to ${map.last[bin]}`;
    const skipped = `${map.skipped[bin]} of ${map.steps[bin]} recorded steps skipped`;
    if (point.curveNumber === 2) return `${steps}\n${skipped}`;
    const group = groups[point.y];
    const row = worstOf(group, metric, bin);
    const lines = [Report.data.names[row[0]], steps];
    if (group.length > 1) lines.push(`the worst of ${group.length} neighboring rows here`);
    for (const [key, { of }] of Object.entries(metricsOf(map))) {
      const code = row[key][bin];
      const text = code === null ? "nothing to lose" : `${Report.share(code === 1 ? 0 : 2 ** (code / 64))} ${of}`;
      if (Number(key) === metric || code !== 1) lines.push(text);
    }
    return [...lines, skipped].join("\n");
  }

  function listen(element) {
    element.on("plotly_hover", (event) => {
      if (view) Report.showTip(describe(event.points.at(-1)), event.event);
    });
    element.on("plotly_unhover", () => Report.showTip(null));
    element.on("plotly_click", (event) => {
      const point = event.points.find((p) => p.curveNumber < 2);
      if (!view || !point) return;
      const name = Report.data.names[worstOf(view.groups[point.y], view.metric, point.x)[0]];
      Exponents.show(name);
      TensorTable.filter(name);
    });
  }

  // Begins with harm where it is known, else with the first share that the run has any of.
  async function chooseMetric() {
    const packed = Report.current().heat_map;
    if (!packed) return;
    const { tensors, harm: known } = await Report.unpack(packed);
    const order = known ? ["3", "2", "4"] : ["2", "3", "4"];
    const metric = order.find((m) => tensors.some((row) => worst(row[m]) > -1e9)) || order[0];
    document.querySelector(`input[name="heat-metric"][value="${metric}"]`).checked = true;
  }

  async function start() {
    await chooseMetric();
    entry = Report.chart(Report.element("heat-map"), figure);
    for (const input of document.querySelectorAll("#losses input, #losses select")) {
      input.addEventListener("change", () => entry.draw());
    }
    Report.onRun(() => entry.draw());
  }
  return { start };
})();
