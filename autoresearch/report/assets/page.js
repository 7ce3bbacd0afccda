"use strict";

// What every page has: its data, its figures, and the theme.
const page = (() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("data").textContent);

  // Packed by gzip and base64, see document.py.
  async function unpack(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  // One line of JSON each: all of them are unpacked when the first is asked for, and parsed one by one.
  let lines = null;
  async function detail(index) {
    lines ??= unpack("details").then((text) => text.split("\n"));
    return JSON.parse((await lines)[index]);
  }

  let library = null;
  function plotly() {
    library ??= unpack("plotly").then((source) => {
      const script = document.createElement("script");
      script.textContent = source;
      document.head.append(script);
      return window.Plotly;
    });
    return library;
  }

  // plotly.js knows no CSS variables: what it is given are the colours that they stand for now.
  function coloured(value, probe) {
    if (typeof value === "string" && value.startsWith("var(--")) {
      probe.style.color = value;
      return getComputedStyle(probe).color;
    }
    if (Array.isArray(value)) return value.map((item) => coloured(item, probe));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item, probe)]));
  }

  const AXIS = { gridcolor: "var(--line)", zerolinecolor: "var(--line)", linecolor: "var(--line)", automargin: true };

  function themed(figure) {
    const { xaxis, yaxis, ...rest } = figure.layout;
    const narrow = window.innerWidth < 600;
    const layout = {
      paper_bgcolor: "var(--ground)",
      plot_bgcolor: "var(--ground)",
      font: { color: "var(--text)", size: narrow ? 11 : 12, family: getComputedStyle(document.body).fontFamily },
      margin: { l: narrow ? 44 : 60, r: narrow ? 8 : 20, t: 10, b: 44 },
      hoverlabel: { bgcolor: "var(--raised)", bordercolor: "var(--line)", font: { color: "var(--text)" }, align: "left" },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      hovermode: "closest",
      dragmode: narrow ? false : "zoom",
      xaxis: { ...AXIS, ...xaxis },
      yaxis: { ...AXIS, ...yaxis },
      ...rest,
    };
    const probe = document.body.appendChild(document.createElement("i"));
    const result = coloured({ traces: figure.traces, layout }, probe);
    probe.remove();
    return result;
  }

  // Draws a figure, or draws it anew; resolves to its element.
  async function draw(element, figure) {
    const library = await plotly();
    const { traces, layout } = themed(figure);
    return library.react(element, traces, layout, {
      responsive: true, displaylogo: false, displayModeBar: false, doubleClick: "reset",
    });
  }

  const drawn = new Map();
  function show(element, figure) {
    drawn.set(element, figure);
    return draw(element, figure);
  }

  function redraw() {
    for (const [element, figure] of drawn) {
      if (element.isConnected) draw(element, figure);
      else drawn.delete(element);
    }
  }

  const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
  systemDark.addEventListener("change", redraw);
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.style.colorScheme ? root.style.colorScheme === "dark" : systemDark.matches;
    root.style.colorScheme = dark ? "light" : "dark";
    redraw();
  });

  for (const element of document.querySelectorAll("[data-figure]")) {
    show(element, data.figures[element.dataset.figure]);
  }

  return { data, detail, show };
})();
