// SPDX-License-Identifier: Apache-2.0
// Draws the figures as they come into view, sorts and filters tables, shows one run at a time.
"use strict";
const charts = [...document.querySelectorAll("[data-figure]")];
const drawn = new Map(); // of each chart the promise of its drawing
const onEach = (css, event, act) => document.querySelectorAll(css).forEach((each) => each.addEventListener(event, () => act(each)));

function fail(error) {
  const place = document.getElementById("problem");
  place.hidden = false;
  place.textContent = `This browser cannot show all of the page: ${error}`;
}

// The colors of the page for what a figure does not color itself.
function template() {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  const axis = { gridcolor: color("line"), zerolinecolor: color("line"), linecolor: color("line") };
  const hoverlabel = { bgcolor: color("card"), bordercolor: color("line"), font: { color: color("ink") } };
  const font = { family: getComputedStyle(document.body).fontFamily, size: 12, color: color("ink") };
  const modebar = { bgcolor: "rgba(0,0,0,0)", color: color("soft"), activecolor: color("accent") };
  return { layout: { font, hoverlabel, modebar, xaxis: axis, yaxis: axis } };
}

// Figures are base64 of zlib of JSON.
async function draw(element) {
  const bytes = Uint8Array.from(atob(element.dataset.figure), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const figure = JSON.parse(await new Response(stream).text());
  figure.layout.template = template();
  // Plotly's own list has a button that uploads the chart.
  const modeBarButtons = [["toImage", "zoom2d", "pan2d", "resetScale2d"]];
  await Plotly.newPlot(element, figure.data, figure.layout, { responsive: true, displaylogo: false, modeBarButtons });
}

function reveal(element) {
  if (!drawn.has(element)) drawn.set(element, draw(element).catch(fail));
  return drawn.get(element);
}

// Draws the charts that have a place, also out of view; those in folded parts wait.
const drawAll = () => Promise.all(charts.filter((chart) => chart.clientWidth > 0).map(reveal));
const observer = new IntersectionObserver((seen) => {
  for (const entry of seen) if (entry.isIntersecting) reveal(entry.target);
}, { rootMargin: "400px" });
charts.forEach((chart) => observer.observe(chart));
setTimeout(drawAll, 1500); // for a printer

const recolor = () => drawn.forEach((_, chart) => Plotly.relayout(chart, { template: template() }));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolor);
for (const event of ["beforeprint", "afterprint"]) window.addEventListener(event, recolor);

// Numbers start with the largest, texts with the first.
onEach("thead button", "click", (button) => {
  const head = button.parentNode;
  const [body] = head.closest("table").tBodies;
  const keyed = [...body.rows].map((row) => {
    const cell = row.cells[head.cellIndex];
    const { value } = cell.dataset;
    return [value === undefined ? cell.textContent : value === "" ? -Infinity : Number(value), row];
  });
  const falling = head.ariaSort ? head.ariaSort === "ascending" : typeof keyed[0]?.[0] === "number";
  keyed.sort(([a], [b]) => ((a > b) - (a < b)) * (falling ? -1 : 1));
  for (const other of head.parentNode.cells) other.ariaSort = null;
  head.ariaSort = falling ? "descending" : "ascending";
  body.append(...keyed.map(([, row]) => row));
});

onEach("input[type=search]", "input", (box) => {
  const part = box.value.trim().toLowerCase();
  for (const row of box.parentNode.nextElementSibling.querySelector("tbody").rows) {
    row.hidden = !row.cells[0].textContent.toLowerCase().includes(part);
  }
});

function choose(select) {
  for (const panel of select.closest("section").querySelectorAll("[data-run]")) {
    panel.hidden = panel.dataset.run !== select.value;
  }
}
document.querySelectorAll("select").forEach(choose);
onEach("select", "change", choose);

onEach(".copy", "click", async (button) => {
  await navigator.clipboard.writeText(button.nextElementSibling.textContent);
  button.textContent = "Copied";
});
document.body.dataset.ready = "true";
