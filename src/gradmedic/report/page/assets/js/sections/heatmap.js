"use strict";
// Layers over steps, in the order in which they run. A click on a row chooses the layer that all other figures follow.
(function (gm) {
  let shown = null; // {grid, list, values} as drawn: what clicks, keys and the pointer refer to

  function controls() {
    const choose = (key) => (event) => gm.set({ [key]: event.target.value, page: 0 });
    let timer = 0;
    const typed = (event) => {
      clearTimeout(timer);
      timer = setTimeout(() => gm.set({ filter: event.target.value, page: 0 }), 120);
    };
    const turn = (by) => () => gm.set({ page: Math.max(0, gm.state.page + by) });
    return gm.el("div", { class: "controls" },
      gm.field("heatmap.metric", gm.el("select", { id: "metric", onchange: choose("metric") })),
      gm.field("heatmap.filter", gm.el("input", { id: "filter", type: "search", oninput: typed, spellcheck: "false", autocomplete: "off", "data-word-placeholder": "heatmap.filter_hint" })),
      gm.field("heatmap.group", gm.el("select", { id: "group", onchange: choose("group") })),
      gm.field("heatmap.sort", gm.el("select", { id: "sort", onchange: choose("sort") })),
      gm.el("span", { class: "pager" },
        gm.el("button", { type: "button", id: "page-back", "data-word-label": "heatmap.back", text: "‹", onclick: turn(-1) }),
        gm.el("output", { id: "page" }),
        gm.el("button", { type: "button", id: "page-next", "data-word-label": "heatmap.next", text: "›", onclick: turn(1) })));
  }

  function fillControls(payload, grid, list, body) {
    const ids = gm.gridIds(payload);
    const family = (id) => gm.t(`families.${gm.grid(payload, id).of}`);
    gm.fill(body.querySelector("#metric"), ids.map((id) => [id, gm.t(`metrics.${id}`), family(id)]), grid.id);
    gm.fill(body.querySelector("#group"), ["tensors", "layers", "blocks"].map((id) => [id, gm.t(`heatmap.by_${id}`)]), gm.state.group);
    gm.fill(body.querySelector("#sort"), ["order", "worst"].map((id) => [id, gm.t(`heatmap.by_${id}`)]), gm.state.sort);
    body.querySelector("#group").disabled = grid.of !== "tensors";
    const filter = body.querySelector("#filter");
    if (document.activeElement !== filter) filter.value = gm.state.filter;
    const from = list.page * gm.PAGE_ROWS + 1;
    const text = list.total ? gm.t("heatmap.page", { from, to: from + list.rows.length - 1, total: list.total }) : gm.t("heatmap.no_rows");
    body.querySelector("#page").textContent = text;
    body.querySelector("#page-back").disabled = list.page === 0;
    body.querySelector("#page-next").disabled = list.page >= list.pages - 1;
  }

  /** Return the grid of the chosen metric, or of the first one that the run has. */
  gm.chosenGrid = (payload) => gm.grid(payload, gm.state.metric) || gm.grid(payload, gm.gridIds(payload)[0] || "norm");

  function isChosen(payload, of, row) {
    const tensor = gm.tensor(payload);
    if (!tensor) return false;
    if (of === "tensors") return row.name === tensor.name;
    return row.name === (of === "blocks" ? tensor.block : tensor.module);
  }

  function layoutOf(payload, grid, list, width) {
    const { start, width: step, count: columns } = gm.columnsOf(grid);
    const count = list.rows.length;
    const rowHeight = count <= 24 ? 20 : count <= 60 ? 14 : count <= 120 ? 8 : 5;
    const height = Math.max(60, count * rowHeight);
    const stride = Math.ceil(count / Math.min(60, Math.floor(height / 13)));
    const narrow = width < 560;
    const letters = narrow ? 19 : width < 900 ? 24 : 34;
    const size = narrow ? 9 : 10.5;
    const tickvals = [];
    for (let at = 0; at < count; at += stride) tickvals.push(at);
    const short = gm.shortenAll(tickvals.map((at) => list.rows[at].name || "(model)"), letters);
    const labels = tickvals.map((at, place) => {
      const tensor = list.of === "tensors" ? gm.tensorNamed(payload, list.rows[at].name) : null;
      return (tensor && tensor.findings.length ? "● " : "") + short[place];
    });
    return {
      height: height + 44 + gm.TOP, margin: { l: Math.ceil(gm.widthOf(labels, size)) + 14, r: 84, t: gm.TOP, b: 44 }, hovermode: "closest", plot_bgcolor: gm.palette().absent,
      xaxis: { ...gm.stepAxis(payload), range: [start, start + columns * step], showgrid: false, zeroline: false, automargin: false },
      yaxis: gm.axis({ range: [count - 0.5, -0.5], autorange: false, tickvals, ticktext: labels.map((text) => gm.markup(text)), showgrid: false, zeroline: false, tickfont: { size }, automargin: false, ticklabeloverflow: "allow" }),
    };
  }

  /** Frame the row of the chosen layer, and put the line at the chosen step. */
  function mark() {
    const payload = gm.payload();
    const node = document.getElementById("figure-heatmap");
    if (!shown || !payload || !node) return;
    gm.markPlace(node, "y", shown.list.rows.findIndex((row) => isChosen(payload, shown.list.of, row)));
    gm.moveCursor(node);
  }

  gm.onChange((changed) => {
    if (changed.has("tensor")) mark();
  });

  function say(row, column) {
    const readout = document.getElementById("readout");
    if (!shown || row === null) {
      readout.textContent = gm.t("heatmap.hint");
      return;
    }
    const { low, high } = gm.columnsOf(shown.grid);
    const first = gm.unpack(shown.grid.first)[low[column]];
    const last = gm.unpack(shown.grid.last)[high[column]];
    const steps = first === last ? gm.t("heatmap.step", { step: first }) : gm.t("heatmap.steps", { first, last });
    const value = gm.cellText(shown.values[row][column]);
    readout.textContent = `${gm.plain(shown.list.rows[row].name)} · ${steps} · ${gm.t(`metrics.${shown.grid.id}`)} ${value}`;
  }

  function listen(node) {
    if (node.dataset.listening) return;
    node.dataset.listening = "1";
    const cell = (event) => {
      const at = event.points[0].pointIndex || event.points[0].pointNumber;
      return [at[0], at[1]];
    };
    node.on("plotly_hover", (event) => say(...cell(event)));
    node.on("plotly_unhover", () => say(null, 0));
    node.on("plotly_click", (event) => {
      const [row, column] = cell(event);
      choose(row, gm.unpack(shown.grid.first)[gm.columnsOf(shown.grid).low[column]]);
    });
  }

  function choose(row, step) {
    const tensor = gm.tensorOfRow(gm.payload(), shown.list.of, shown.list.rows[row].name);
    const changes = step === undefined ? {} : { step };
    gm.set(tensor === null ? changes : { ...changes, tensor });
  }

  function onKey(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by || !shown) return;
    event.preventDefault();
    const payload = gm.payload();
    const at = shown.list.rows.findIndex((row) => isChosen(payload, shown.list.of, row));
    const next = Math.min(shown.list.rows.length - 1, Math.max(0, at < 0 ? 0 : at + by));
    choose(next);
  }

  gm.section({
    id: "heatmap",
    depends: ["metric", "filter", "group", "sort", "page"],
    missing: (payload) => (gm.gridIds(payload).length ? null : payload.run.steps ? "missing.tables" : "missing.steps"),
    build(body) {
      const frame = gm.figure("heatmap", 300);
      frame.setAttribute("tabindex", "0");
      frame.addEventListener("keydown", onKey);
      body.append(controls(), gm.el("p", { id: "readout", class: "readout" }), frame, gm.el("div", { class: "keys" }));
    },
    draw(payload, body) {
      const grid = gm.chosenGrid(payload);
      const list = gm.rowsOf(payload, grid, gm.state, gm.PAGE_ROWS);
      const values = list.rows.map((row) => gm.evenRow(grid, gm.rowValues(grid, row)));
      shown = { grid, list, values };
      fillControls(payload, grid, list, body);
      say(null, 0);
      gm.clear(body.querySelector(".keys")).append(gm.heatKey());
      const node = body.querySelector(".figure");
      node.parentElement.hidden = !list.rows.length;
      if (!list.rows.length) return;
      const revision = `${grid.id}|${gm.state.filter}|${gm.state.group}|${list.page}|${list.rows.length}`;
      const label = `${gm.t("heatmap.title")}: ${gm.t(`metrics.${grid.id}`)}`;
      gm.chart(node, gm.heatTraces(grid, values).traces, layoutOf(payload, grid, list, body.clientWidth), label, revision);
      listen(node);
      if (!node.dataset.steps) {
        node.dataset.steps = "1";
        node.on("plotly_afterplot", mark);
      }
      mark();
    },
  });
})(window.gradmedic);
