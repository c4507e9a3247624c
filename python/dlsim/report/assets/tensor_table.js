// SPDX-License-Identifier: Apache-2.0
// The tensors of the chosen run: sorts and filters thousands of rows, shows some hundred.
"use strict";
const TensorTable = (() => {
  const FEW = 200;
  const magnitude = (v) => (v === null ? "" : typeof v === "string" ? v : v.toPrecision(3));
  const columns = [
    ["tensor", "name", (v) => v, "name as recorded"],
    ["role", "role", (v) => ["grad", "act_grad", "act", "value"][v],
      "grad: of a parameter; act_grad: of an activation; act and value: the activation and the parameter"],
    ["elements", "elements", Report.count, "all values over all steps"],
    ["underflow", "underflow_fraction", Report.share, "share of the finite nonzero values that become zero"],
    ["underflow", "underflow", Report.count, "values that become zero"],
    ["energy lost", "energy_lost", Report.share, "share of the sum of squares that becomes zero, over all steps"],
    ["worst step", "worst_step_energy_lost", Report.share, "largest energy lost in one applied step"],
    ["subnormal", "subnormal", Report.count, "values that keep only some of their bits"],
    ["overflow", "overflow", Report.count, "finite values that become infinite"],
    ["not finite", "nonfinite", Report.count, "recorded values that are infinite or NaN"],
    ["absmax", "absmax", magnitude, "largest finite recorded magnitude"],
    ["first overflow", "first_overflow_step", (v) => (v === null ? "" : String(v)), "step of the first overflow"],
  ];
  const byId = (id) => document.getElementById(id);
  let tables = [];
  let order = { column: 3, descending: true };
  let all = false;

  // A row's value of a column, as it is compared.
  function value(table, row, column) {
    const key = columns[column][1];
    const found = table[key][row];
    return key === "name" ? Report.data.names[found] : typeof found === "string" ? Number(found.replace("inf", "Infinity")) : found;
  }

  // A part of a name, or a pattern with * and ?; upper and lower case are alike.
  function matcher(text) {
    const wanted = text.trim().toLowerCase();
    if (!/[*?]/.test(wanted)) return (name) => name.toLowerCase().includes(wanted);
    const pattern = wanted.replace(/[.+^${}()|[\]\\]/g, "\\$&").replace(/\*/g, ".*").replace(/\?/g, ".");
    const regexp = new RegExp(`^${pattern}$`);
    return (name) => regexp.test(name.toLowerCase());
  }

  function rowsOf(table) {
    const matches = matcher(byId("tensor-filter").value);
    const role = byId("tensor-role").value;
    const rows = table.name.map((_, i) => i).filter((i) =>
      matches(Report.data.names[table.name[i]]) && (role === "" || table.role[i] === Number(role)));
    const { column, descending } = order;
    return rows.map((i) => [value(table, i, column), i])
      .sort((a, b) => Tables.compare(a[0], b[0], descending)).map(([, i]) => i);
  }

  // What a profile leaves open is the likeliest number, with a tilde.
  const estimated = ["underflow_fraction", "underflow", "energy_lost", "subnormal", "overflow"];

  function rowElement(table, i) {
    const row = document.createElement("tr");
    const open = table.open.includes(i);
    columns.forEach(([, key, format], c) => {
      const cell = document.createElement(c === 0 ? "th" : "td");
      if (c === 0) cell.scope = "row";
      if (c > 1) cell.className = "number";
      const text = c === 0 ? Report.data.names[table.name[i]] : format(table[key][i]);
      const shown = open && estimated.includes(key) ? `~${text}` : text;
      if (c === 0 && Report.data.exponents) {
        const pick = document.createElement("button");
        pick.type = "button";
        pick.className = "pick";
        pick.textContent = shown;
        pick.title = "show the exponents of its layer";
        cell.append(pick);
      } else {
        cell.textContent = shown;
      }
      row.append(cell);
    });
    return row;
  }

  function draw() {
    const table = tables[Report.run()];
    if (!table) return;
    const rows = rowsOf(table);
    const shown = all ? rows : rows.slice(0, FEW);
    byId("tensor-table").tBodies[0].replaceChildren(...shown.map((i) => rowElement(table, i)));
    byId("tensor-count").textContent = `${Report.current().label}: ${Report.count(rows.length)} of ${Report.count(table.name.length)} tensors`
      + (shown.length < rows.length ? `, the first ${FEW} shown` : "");
    byId("tensor-more").hidden = shown.length === rows.length;
  }

  function makeHead(table) {
    const row = table.createTHead().insertRow();
    columns.forEach(([name, key, , title], c) => {
      const head = document.createElement("th");
      head.scope = "col";
      head.textContent = key === "underflow" ? "underflow count" : name;
      head.title = title;
      if (c > 1) head.dataset.type = "number";
      row.append(head);
    });
    table.createTBody();
  }

  // Shows the tensors whose names start with this one's layer.
  function filter(name) {
    const box = byId("tensor-filter");
    if (!box) return;
    box.value = /[*?]/.test(name) ? "" : name;
    draw();
  }

  async function start() {
    tables = await Report.unpack(Report.data.tensors);
    const table = byId("tensor-table");
    makeHead(table);
    Tables.addHeads(table, (column, descending) => {
      order = { column, descending };
      draw();
    });
    table.tHead.rows[0].cells[order.column].setAttribute("aria-sort", "descending");
    table.addEventListener("click", (event) => {
      const pick = event.target.closest(".pick");
      if (pick) Exponents.show(pick.textContent);
    });
    byId("tensor-filter").addEventListener("input", draw);
    byId("tensor-role").addEventListener("change", draw);
    byId("tensor-more").addEventListener("click", () => { all = true; draw(); });
    Report.onRun(draw);
    draw();
  }
  return { start, filter };
})();
