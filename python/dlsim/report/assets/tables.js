// SPDX-License-Identifier: Apache-2.0
// Tables that sort by a click, or Enter, on a column.
"use strict";
const Tables = (() => {
  // Makes a button of each head of a column; `sort(column, descending)` orders the rows.
  function addHeads(table, sort) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const first = head.dataset.type === "number" ? "descending" : "ascending";
        const other = first === "ascending" ? "descending" : "ascending";
        const order = head.getAttribute("aria-sort") === first ? other : first;
        heads.forEach((h) => h.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", order);
        sort(column, order === "descending");
      });
    });
  }

  // Compares two values; what is missing comes last in either order.
  function compare(a, b, descending) {
    const missing = (v) => v === null || v === undefined || v === "" || Number.isNaN(v);
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    const order = typeof a === "string"
      ? a.localeCompare(b, "en", { numeric: true }) : (a > b) - (a < b);
    return descending ? -order : order;
  }

  // Sorts the rows that a table already has, by data-value or text.
  function makeSortable(table) {
    addHeads(table, (column, descending) => {
      const numeric = table.tHead.rows[0].cells[column].dataset.type === "number";
      const value = (row) => {
        const cell = row.cells[column];
        const text = cell.dataset.value ?? cell.textContent;
        return numeric ? (text === "" ? null : Number(text)) : text;
      };
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => compare(value(a), value(b), descending));
      table.tBodies[0].append(...rows);
    });
  }

  return { addHeads, compare, makeSortable };
})();
