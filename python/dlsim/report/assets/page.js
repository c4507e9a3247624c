// SPDX-License-Identifier: Apache-2.0
// What all sections share: the data, the chosen run, colors, charts that follow the theme.
"use strict";
const Report = (() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const charts = [];
  const listeners = [];
  const unpacked = new Map();
  const hues = ["red", "green", "blue", "purple", "orange", "sky", "yellow"];
  const symbols = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "star", "hexagon"];
  let run = 0;

  // Parts of many numbers are base64 of zlib of JSON.
  async function unpack(text) {
    if (!unpacked.has(text)) unpacked.set(text, inflate(text));
    return unpacked.get(text);
  }

  async function inflate(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  }

  // What tells series apart: a color and a symbol for each number.
  function hue(i) {
    return color(`c-${hues[i % hues.length]}`);
  }

  function symbol(i) {
    return symbols[i % symbols.length];
  }

  // Plotly reads tags and entities in every text.
  function plain(text) {
    return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }

  function raised(number) {
    const digits = { "-": "\u207b", ".": "\u00b7", 2: "\u00b2", 3: "\u00b3", 1: "\u00b9" };
    return String(number).replace(/[-.0-9]/g, (c) =>
      digits[c] || String.fromCharCode(0x2070 + Number(c)));
  }

  function power(exponent) {
    return exponent === null ? "\u2013" : `2${raised(Math.round(exponent * 100) / 100)}`;
  }

  function count(value) {
    return value === null ? "" : Number(value).toLocaleString("en").replace(/,/g, "\u202f");
  }

  function share(value) {
    if (value === null || value === undefined) return "";
    if (typeof value === "string") return value;
    if (value === 0) return "0";
    const percent = 100 * value;
    if (percent >= 0.001) return `${Number(percent.toPrecision(3))}\u202f%`;
    const [digits, exponent] = percent.toExponential(1).split("e");
    return `${digits}\u00b710${raised(Number(exponent))}\u202f%`;
  }

  // An axis of decades up to 10^last, with zeros on its floor: the position of a value, and its ticks.
  function decades(values, last) {
    const positive = values.filter((v) => typeof v === "number" && v > 0);
    const floor = positive.length ? Math.floor(Math.log10(Math.min(...positive))) - 1 : -1;
    const tickvals = [floor], ticktext = ["0"];
    for (let t = floor + 1; t <= last; t += Math.max(1, Math.ceil((last - floor) / 7))) {
      tickvals.push(t);
      ticktext.push(t === 0 ? "1" : `10${raised(t)}`);
    }
    return { at: (v) => (typeof v === "number" && v > 0 ? Math.log10(v) : floor), tickvals, ticktext };
  }

  // A logarithmic axis over positive values: its range, and ticks at powers of ten, or of two if
  // these would be few.
  function logAxis(values) {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const base = high > 100 * low ? 10 : 2;
    const unit = Math.log10(base);
    const first = Math.floor(Math.log10(low) / unit);
    const last = Math.max(first + 1, Math.ceil(Math.log10(high) / unit));
    const stride = Math.ceil((last - first) / 4);
    const powers = [];
    for (let p = first; p < last + stride; p += stride) powers.push(p);
    const short = (p) => (base === 10 ? p >= -2 && p <= 3 : p >= -3 && p <= 10);
    return {
      type: "log", range: [first * unit, powers.at(-1) * unit], tickvals: powers.map((p) => base ** p),
      ticktext: powers.map((p) => (short(p) ? String(Number((base ** p).toPrecision(4))) : `${base}${raised(p)}`)),
    };
  }

  // The range of an axis of binary logarithms: some more than the values have, so that its ticks are
  // whole powers.
  function binades(values) {
    const known = values.filter((value) => value !== null);
    const end = (more) => known.reduce((a, b) => more(a, b));
    return known.length === 0 ? [-20, 40] : [end((a, b) => Math.min(a, b)) - 4, end((a, b) => Math.max(a, b)) + 4];
  }

  function layout(more) {
    const axis = {
      gridcolor: color("grid"), zerolinecolor: color("line"), linecolor: color("line"),
      tickcolor: color("line"), automargin: true,
    };
    const base = {
      autosize: true, // else a chart drawn again keeps the width that it had
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: color("ink") },
      margin: { l: 56, r: 16, t: 30, b: 44 }, hovermode: "closest",
      hoverlabel: {
        bgcolor: color("card"), bordercolor: color("line"), align: "left",
        font: { color: color("ink"), size: 12 },
      },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { color: color("ink") } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: color("soft"), activecolor: color("accent") },
    };
    const merged = { ...base, ...more };
    for (const key of Object.keys(merged)) {
      if (/^[xy]axis/.test(key)) merged[key] = powers({ ...axis, ...merged[key] });
    }
    for (const key of ["xaxis", "yaxis"]) merged[key] = merged[key] || axis;
    return merged;
  }

  // An axis of binary logarithms shows powers of two.
  function powers(axis) {
    return axis.tickprefix === "2^" ? { ...axis, tickprefix: "2<sup>", ticksuffix: "</sup>" } : axis;
  }

  // Draws into `element` what `build()` returns, {data, layout, label}, once it comes into view and
  // whenever `draw` is called or the colors change.
  function chart(element, build) {
    const entry = { element, build, seen: false, drawn: Promise.resolve() };
    entry.draw = () => {
      if (!entry.seen) return entry.drawn;
      entry.drawn = entry.drawn.then(() => drawNow(entry)).catch(fail);
      return entry.drawn;
    };
    charts.push(entry);
    observer.observe(element);
    return entry;
  }

  async function drawNow(entry) {
    const { element } = entry;
    const figure = await entry.build();
    if (!figure) return;
    const made = layout(figure.layout);
    if (made.height) element.style.minHeight = `${made.height}px`;
    const first = !element.classList.contains("js-plotly-plot");
    await Plotly.react(element, figure.data, made, {
      responsive: true, displaylogo: false, scrollZoom: false, doubleClick: "reset",
      // Named one by one: Plotly's own list has a button that uploads the chart.
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    });
    element.setAttribute("role", "img");
    element.setAttribute("aria-label", figure.label);
    if (first && figure.ready) figure.ready(element);
  }

  function reveal(entry) {
    if (entry.seen) return;
    entry.seen = true;
    entry.draw();
  }

  const observer = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) {
      if (isIntersecting) charts.filter((c) => c.element === target).forEach(reveal);
    }
  }, { rootMargin: "400px" });

  // Draws the other charts while nothing else is to do, so that they are there for a printer.
  function drawRest() {
    const next = charts.find((entry) => !entry.seen && entry.element.clientWidth > 0);
    if (!next) return;
    reveal(next);
    next.drawn.then(() => (window.requestIdleCallback || setTimeout)(drawRest));
  }

  // Draws all charts that have a place; those in folded parts wait until they are opened.
  function redrawAll() {
    for (const entry of charts) {
      entry.seen = entry.seen && entry.element.clientWidth > 0;
      entry.draw();
    }
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  matchMedia("(max-width: 640px)").addEventListener("change", redrawAll);

  function fail(error) {
    const place = document.getElementById("problem");
    place.hidden = false;
    place.textContent = `This browser cannot show all of the page: ${error.message || error}`;
    console.error(error);
  }

  function choose(index) {
    run = index;
    listeners.forEach((listener) => listener());
  }

  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);

  // Shows plain text next to the pointer; null hides it.
  function showTip(text, event) {
    tip.hidden = text === null;
    if (text === null) return;
    tip.textContent = text;
    const { width, height } = tip.getBoundingClientRect();
    const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 12 : event.clientX + 16;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.min(event.clientY + 12, innerHeight - height - 4)}px`;
  }

  return {
    data, unpack, color, hue, symbol, plain, power, raised, count, share, decades, logAxis, binades, chart, fail, choose, showTip,
    run: () => run,
    current: () => data.runs[run],
    onRun: (listener) => listeners.push(listener),
    onPaper: () => document.documentElement.classList.contains("paper"),
    narrow: () => innerWidth <= 640 && !Report.onPaper(),
    drawRest,
    redrawAll,
    element: (name) => document.querySelector(`[data-chart="${name}"]`),
    // Draws the charts of this name, or all, also out of view; the promise waits for them.
    revealAll: (name) => Promise.all(charts.map((entry) => {
      if (!name || entry.element.dataset.chart === name) reveal(entry);
      return entry.drawn;
    })),
  };
})();
