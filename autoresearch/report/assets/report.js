"use strict";

// The experiments of a run: filtered and sorted in a table and on the plot, and each one alone.
(() => {
  const rows = page.data.rows;

  const CHUNK = 100; // rows of the table that are made at once
  const CURVES = ["var(--accent)", "var(--kept)", "var(--withdrawn)", "var(--failed)"];
  const find = (id) => document.getElementById(id);
  const byNumber = new Map(rows.map((row, index) => [row.n, { row, index }]));
  const points = new Map(page.data.progress.points.map(([n, y, edge]) => [n, { y, edge }]));

  // An element with attributes and children; texts become text, never markup.
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children.filter((child) => child !== null && child !== ""));
    return element;
  }

  const bpb = (value) => (value === null ? "" : value.toFixed(4));
  const signed = (value) => (value === null ? "" : `${value > 0 ? "−" : "+"}${Math.abs(value).toFixed(4)}`);
  const outcomeText = (row) => row.outcome.replaceAll("_", " ");

  // --- filters ------------------------------------------------------------------------------------------------------

  const OUTCOMES = {
    keep: ["kept", (row) => row.group === "keep"],
    discard: ["discarded", (row) => row.group === "discard"],
    failure: ["failed", (row) => row.group === "failure"],
    withdrawn: ["withdrawn", (row) => row.group === "withdrawn"],
    near: ["near misses", (row) => row.marks.includes("near miss")],
    suspect: ["suspect", (row) => row.marks.includes("suspect")],
    elsewhere: ["not comparable", (row) => row.marks.includes("not comparable")],
  };
  const filters = find("filters");
  for (const [value, [name, test]] of Object.entries(OUTCOMES)) {
    const count = rows.filter(test).length;
    if (count) filters.outcome.append(make("option", { value }, `${name} (${count})`));
  }
  for (const name of [...new Set(rows.map((row) => row.category))].sort()) {
    filters.category.append(make("option", { value: name }, name));
  }
  const texts = rows.map((row) =>
    [row.what, row.why, row.category, row.proposer, row.outcome].join("\n").toLowerCase());

  function chosen() {
    const [, test] = OUTCOMES[filters.outcome.value] ?? ["", () => true];
    const category = filters.category.value;
    const text = filters.text.value.trim().toLowerCase();
    const number = /^#\d+$/.test(text) ? Number(text.slice(1)) : null;
    return rows.filter((row, index) =>
      test(row) && (!category || row.category === category)
      && (number === null ? texts[index].includes(text) : row.n === number));
  }

  // --- table --------------------------------------------------------------------------------------------------------

  const body = find("experiments").tBodies[0];
  const more = find("more");
  let shown = [];
  let order = { key: "n", down: false };

  function tableRow(row) {
    const link = make("a", { href: `#${row.n}` }, row.what || "(nothing said)");
    const marks = row.marks.map((mark) => make("span", { class: "mark" }, mark));
    const element = make("tr", { "data-n": row.n },
      make("td", { class: "number" }, String(row.n)),
      make("td", { class: row.group }, outcomeText(row)),
      make("td", { class: "number" }, bpb(row.score)),
      make("td", { class: "number" }, signed(row.gain)),
      make("td", {}, link, ...marks, row.group === "failure" ? make("div", { class: "muted" }, row.why) : null),
      make("td", { class: "wide" }, row.category),
      make("td", { class: "number wide" }, row.seconds.toFixed(0)),
      make("td", { class: "number wide" }, row.cost ? `$${row.cost.toFixed(3)}` : ""));
    return element;
  }

  function addRows() {
    const start = body.rows.length;
    body.append(...shown.slice(start, start + CHUNK).map(tableRow));
    const left = shown.length - body.rows.length;
    more.hidden = left === 0;
    more.textContent = `show ${Math.min(left, CHUNK)} more of ${left}`;
  }

  function sorted(list) {
    const { key, down } = order;
    const sign = down ? -1 : 1;
    // What has no number comes last, whichever way.
    return [...list].sort((a, b) => {
      if (a[key] === null || b[key] === null) return (a[key] === null) - (b[key] === null) || a.n - b.n;
      return (a[key] < b[key] ? -sign : a[key] > b[key] ? sign : 0) || a.n - b.n;
    });
  }

  function update() {
    const list = chosen();
    shown = sorted(list);
    body.replaceChildren();
    addRows();
    find("count").textContent = `${list.length} of ${rows.length}`;
    drawProgress(list);
  }

  more.addEventListener("click", addRows);
  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (row && !event.target.closest("a")) location.hash = row.dataset.n;
  });
  for (const button of document.querySelectorAll("[data-sort]")) {
    button.addEventListener("click", () => {
      const key = button.dataset.sort;
      order = { key, down: order.key === key ? !order.down : ["gain", "seconds", "cost"].includes(key) };
      for (const head of document.querySelectorAll("#experiments th")) head.removeAttribute("aria-sort");
      button.parentElement.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      shown = sorted(shown);
      body.replaceChildren();
      addRows();
    });
  }
  filters.addEventListener("submit", (event) => event.preventDefault());
  // Not of the text, which changes when it loses the focus: to a row whose click would be lost with the row.
  for (const select of [filters.outcome, filters.category]) select.addEventListener("change", update);
  let waiting = 0;
  filters.text.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(update, 150);
  });

  // --- plot ---------------------------------------------------------------------------------------------------------

  // plotly.js reads some tags in texts, so what others wrote is escaped; long texts are broken into lines.
  function hoverText(row) {
    const safe = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
    const wrap = (text) => safe(text.slice(0, 300)).replaceAll(/(.{1,58})(\s+|$)/g, "$1<br>");
    const score = row.score === null ? "" : ` ${bpb(row.score)} bpb`;
    const worth = row.group !== "keep" || row.value === row.score ? "" : `, worth ${bpb(row.value)} by now`;
    const change = row.gain === null ? "" : ` (${signed(row.gain)})`;
    const marks = row.marks.length ? `${row.marks.join(", ")}<br>` : "";
    return `<b>#${row.n} ${outcomeText(row)}</b>${score}${worth}${change}<br>${wrap(row.what)}${marks}${wrap(row.why)}`;
  }

  const crowded = rows.length > 1000;
  const GROUPS = [
    ["discard", "discarded", { color: "var(--discarded)", size: crowded ? 4 : 6, opacity: 0.6 }],
    ["near", "near miss", { color: "var(--accent)", size: 7, symbol: "diamond" }],
    ["failure", "failed",
      { color: "var(--failed)", size: 7, symbol: "x-thin", line: { color: "var(--failed)", width: 1.5 } }],
    ["withdrawn", "withdrawn", { color: "var(--withdrawn)", size: 9, symbol: "diamond-open" }],
    ["keep", "kept", { color: "var(--kept)", size: 9 }],
    ["baseline", "baseline", { color: "var(--kept)", size: 10, symbol: "square" }],
  ];

  const kind = (row) => (row.marks.includes("near miss") ? "near" : row.group);

  function trace(name, list, marker, extra = {}) {
    const at = list.map((row) => points.get(row.n));
    const symbol = marker.symbol ?? "circle";
    const open = symbol.endsWith("-open"); // around what is drawn besides
    return {
      type: "scatter", mode: "markers", name,
      x: list.map((row) => row.n), y: at.map((point) => point.y), customdata: list.map((row) => row.n),
      text: list.map(hoverText), hovertemplate: "%{text}<extra></extra>", cliponaxis: false,
      marker: { ...marker, symbol: at.map((point) => (point.edge === "top" && !open ? "triangle-up" : symbol)) },
      ...extra,
    };
  }

  function drawProgress(list) {
    const { scale, line, elsewhere } = page.data.progress;
    const visible = list.filter((row) => points.has(row.n));
    const incumbent = {
      type: "scatter", mode: "lines", name: "best so far", x: line.map(([n]) => n), y: line.map(([, y]) => y),
      line: { shape: "hv", color: "var(--kept)", width: 2 }, hoverinfo: "skip",
    };
    const traces = [incumbent, ...GROUPS
      .map(([group, name, marker]) => [name, visible.filter((row) => kind(row) === group), marker])
      .filter(([, list]) => list.length).map((args) => trace(...args))];
    const suspect = visible.filter((row) => row.marks.includes("suspect"));
    const ring = { color: "var(--withdrawn)", size: crowded ? 9 : 14, symbol: "circle-open" };
    if (suspect.length) traces.push(trace("suspect", suspect, ring, { hoverinfo: "skip", hovertemplate: null }));
    const first = rows[0].n;
    const last = rows.at(-1).n;
    const pad = Math.max(0.5, (last - first) * 0.02);
    // Measured under other conditions: these have no place on this scale.
    const away = elsewhere.length ? [{
      type: "rect", xref: "x", x0: elsewhere[0] - 0.5, x1: elsewhere.at(-1) + 0.5, yref: "paper", y0: 0, y1: 1,
      fillcolor: "var(--raised)", line: { width: 0 }, layer: "below",
      label: {
        text: "other conditions: not comparable", font: { color: "var(--muted)", size: 11 }, textposition: "top center",
      },
    }] : [];
    const layout = {
      xaxis: { title: { text: "experiment" }, range: [first - pad, last + pad] },
      yaxis: { title: { text: "val_bpb" }, range: scale, tickformat: ".4~f" },
      shapes: away,
    };
    page.show(find("progress"), { traces, layout }).then((element) => {
      element.removeAllListeners("plotly_click");
      element.on("plotly_click", (event) => {
        const number = event.points.map((point) => point.customdata).find((n) => n !== undefined);
        if (number !== undefined) location.hash = number;
      });
    });
  }

  // --- one experiment -----------------------------------------------------------------------------------------------

  const dialog = find("experiment");
  const KINDS = { "+": "added", "-": "removed", "@": "hunk" };

  function diff(text) {
    const lines = text.split("\n").map((line) => make("span", { class: KINDS[line[0]] ?? "" }, `${line}\n`));
    return make("pre", { class: "diff", tabindex: 0 }, make("code", {}, ...lines));
  }

  function measurements(results) {
    const head = ["status", "val", "test", "tokens/s", "steps", "train s", "parameters", "peak", "seed"];
    const body = results.flatMap((r) => {
      const memory = r.memory ? `${(r.memory / 2 ** 30).toFixed(2)} GiB` : "";
      const cells = [r.status, bpb(r.val), bpb(r.test), r.tokens_per_second || "", r.steps || "", r.seconds || "",
        r.params ? `${(r.params / 1e6).toFixed(2)} M` : "", memory, r.seed];
      const note = [r.reason, r.suspect && `suspect: ${r.suspect}`].filter(Boolean).join("; ");
      return [make("tr", {}, ...cells.map((cell, i) => make("td", { class: i ? "number" : "" }, String(cell)))),
        ...(note ? [make("tr", {}, make("td", { colspan: head.length, class: "muted" }, note))] : [])];
    });
    return make("div", { class: "scroll" }, make("table", {},
      make("thead", {}, make("tr", {}, ...head.map((name, i) => make("th", { class: i ? "number" : "" }, name)))),
      make("tbody", {}, ...body)));
  }

  function curves(results) {
    const traces = results.map((result, k) => ({
      type: "scatter", mode: "lines", name: `seed ${result.seed}`, x: result.curve[0].map((share) => 100 * share),
      y: result.curve[1], line: { color: CURVES[k % CURVES.length], width: 1.5 },
      hovertemplate: "%{x:.0f} %: %{y:.3f}<extra></extra>",
    })).filter((trace) => trace.x.length);
    const layout = {
      xaxis: { title: { text: "of the training time" }, ticksuffix: " %" },
      yaxis: { title: { text: "training loss, nats" } },
      showlegend: traces.length > 1, paper_bgcolor: "var(--ground)",
    };
    return traces.length ? { traces, layout } : null;
  }

  function scores(row) {
    const score = row.score === null ? "" : ` · ${bpb(row.score)} bpb`;
    const gain = row.gain === null ? "" : ` (${signed(row.gain)})`;
    const fresh = `${row.of} fresh measurement${row.of === 1 ? "" : "s"}`;
    const moved = row.value !== null && row.value !== row.score;
    return [score, gain, moved ? ` · worth ${bpb(row.value)} by now, ${fresh}` : ""];
  }

  function origin(row, detail) {
    const cost = row.cost ? `$${row.cost.toFixed(3)}` : "";
    return [row.category, row.proposer, detail.commit.slice(0, 10), cost].filter(Boolean).join(" · ");
  }

  function change(detail) {
    if (detail.parent === null) return [];
    const head = make("h3", {}, "change against ", make("a", { href: `#${detail.parent}` }, `#${detail.parent}`));
    if (detail.diff) return [head, diff(detail.diff)];
    const why = detail.diff === null ? "Its repository was not at hand." : "No line differs.";
    return [head, make("p", { class: "muted" }, why)];
  }

  async function show(n) {
    const { row, index } = byNumber.get(n);
    const detail = await page.detail(index);
    const figure = curves(detail.results);
    const place = figure && make("div", { class: "figure low" });
    const step = (by, sign, name) => rows[index + by]
      ? make("a", { href: `#${rows[index + by].n}`, class: "step", "aria-label": name }, sign) : null;
    const close = make("button", { type: "button", "aria-label": "close" }, "✕");
    close.addEventListener("click", () => dialog.close());
    find("experiment-body").replaceChildren(
      make("nav", {}, step(-1, "←", "previous"), step(1, "→", "next"), close),
      make("h2", { id: "experiment-title" }, `#${row.n} ${row.what}`),
      make("p", {}, make("span", { class: row.group }, outcomeText(row)), ...scores(row)),
      make("p", {}, row.why),
      make("p", {}, ...row.marks.map((mark) => make("span", { class: "mark" }, mark))),
      make("p", { class: "muted" }, origin(row, detail)),
      ...change(detail),
      ...(detail.results.length ? [make("h3", {}, "measurements"), measurements(detail.results)] : []),
      ...(place ? [make("h3", {}, "loss"), place] : []),
      ...(detail.log ? [make("h3", {}, "end of the log"), make("pre", { class: "log", tabindex: 0 }, detail.log)] : []),
    );
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    if (place) page.show(place, figure);
  }

  dialog.addEventListener("close", () => history.replaceState(null, "", "#"));
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // beside it
  });
  function follow() {
    const number = Number(location.hash.slice(1) || NaN);
    if (byNumber.has(number)) show(number);
    else if (dialog.open) dialog.close();
  }
  window.addEventListener("hashchange", follow);
  update();
  follow();
})();
