// SPDX-License-Identifier: Apache-2.0
// Charts with a row per name: how high, which rows are joined, and how the names are cut.
"use strict";
const Rows = (() => {
  const TEXT = 15; // pixels that a name needs
  const LEAST = 2; // pixels of a row; of more rows than fit, neighbors are joined

  // Height of a chart with `frame` pixels around its rows, and how many neighbors make one row.
  function fit(count, frame) {
    const most = Report.onPaper() ? 620 : 1000;
    const height = Math.max(220, Math.min(most, frame + 18 * count));
    const join = Math.ceil(count / Math.floor((height - frame) / LEAST)) || 1;
    return { height, join, gap: count > 80 ? 0 : 1, most: Math.floor((height - frame) / TEXT) };
  }

  function joined(rows, join) {
    const groups = [];
    for (let i = 0; i < rows.length; i += join) groups.push(rows.slice(i, i + join));
    return groups;
  }

  // What the page says of joined rows.
  const note = (join, what) => (join === 1 ? ""
    : `Each row joins ${join} neighbors and shows the largest ${what} among them. `);

  // Ticks at `most` of the rows, evenly.
  function ticks(texts, most) {
    const stride = Math.max(1, Math.ceil(texts.length / most));
    const at = texts.map((_, i) => i).filter((i) => i % stride === 0);
    return { tickvals: at, ticktext: at.map((i) => Report.plain(texts[i])) };
  }

  // Cuts names to `length`. The parts that most of the names have go first; names that would look
  // alike are not cut.
  function labels(names, length) {
    const parts = names.map((name) => name.split(/(?<=[. _/])/));
    const uses = new Map();
    for (const part of parts.flatMap((of) => [...new Set(of)])) uses.set(part, (uses.get(part) || 0) + 1);
    const cut = parts.map((of) => shortened(of, uses, length));
    const alike = new Map();
    cut.forEach((label, i) => alike.set(label, (alike.get(label) || new Set()).add(names[i])));
    return cut.map((label, i) => (alike.get(label).size > 1 ? names[i] : label));
  }

  function shortened(parts, uses, length) {
    const kept = parts.map(() => true);
    const text = () => parts.map((part, i) => (kept[i] ? part : kept[i - 1] === false ? "" : "\u2026")).join("");
    const order = parts.map((_, i) => i).sort((a, b) =>
      uses.get(parts[b]) - uses.get(parts[a]) || parts[b].length - parts[a].length);
    for (const i of order) {
      if (text().length <= length) break;
      kept[i] = false;
    }
    return kept.includes(true) ? text() : ends(parts.join(""), length);
  }

  function ends(text, length) {
    const head = Math.ceil((length - 1) / 2);
    return `${text.slice(0, head)}\u2026${text.slice(text.length - (length - 1 - head))}`;
  }

  return { fit, joined, note, ticks, labels };
})();
