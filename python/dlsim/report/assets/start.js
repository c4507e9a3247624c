// SPDX-License-Identifier: Apache-2.0
// Starts what the page has; `document.body.dataset.ready` tells that all of it is drawn.
"use strict";
(async () => {
  const { data } = Report;
  for (const table of document.querySelectorAll("table.sortable:not(#tensor-table)")) {
    if (table.tHead) Tables.makeSortable(table);
  }
  ScaleWindows.start();
  Headroom.start();
  const choice = document.getElementById("run");
  if (choice) {
    choice.addEventListener("change", () => Report.choose(Number(choice.value)));
    Report.onRun(() => { choice.value = String(Report.run()); });
    Policies.start();
    ScalePath.start();
    if (Report.element("heat-map")) await HeatMap.start();
    await TensorTable.start();
  }
  if (data.exponents) await Exponents.start();
  Pareto.start();
  Differences.start();
  Updates.start();
  Recommendation.start();
  Paper.start();
  document.body.dataset.ready = "true";
  Report.drawRest();
})().catch(Report.fail);
