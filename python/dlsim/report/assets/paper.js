// SPDX-License-Identifier: Apache-2.0
// The page on paper: charts and tables fit its width, and nothing is folded.
"use strict";
const Paper = (() => {
  const WIDTH = 690; // of the text, as in paper.css
  let folded = [];

  // Done before the browser lays out the paper, so that charts are drawn for its width.
  function begin() {
    if (Report.onPaper()) return;
    document.documentElement.classList.add("paper");
    document.getElementById("paper-style").media = "all";
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const details of folded) details.open = true;
    for (const table of document.querySelectorAll("table")) {
      if (table.scrollWidth > WIDTH) table.style.zoom = WIDTH / table.scrollWidth;
    }
    Report.revealAll();
    Report.redrawAll();
  }

  function end() {
    document.documentElement.classList.remove("paper");
    document.getElementById("paper-style").media = "print";
    for (const details of folded) details.open = false;
    for (const table of document.querySelectorAll("table")) table.style.zoom = "";
    Report.redrawAll();
  }

  function start() {
    window.addEventListener("beforeprint", begin);
    window.addEventListener("afterprint", end);
  }
  return { start };
})();
