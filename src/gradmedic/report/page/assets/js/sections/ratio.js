"use strict";
// How the gradient grows or shrinks from one layer to the next: the root mean square of a layer's over that of the next.
(function (gm) {
  const kept = new WeakMap();

  /** Return a quantile of an ascending list. */
  const at = (sorted, q) => sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];

  /** Return {names, rows, low, middle, high}: for each layer its ratio to the next, over the whole run; null without data. */
  gm.ratios = function (payload) {
    const grid = gm.grid(payload, "layer_norm");
    if (!grid || grid.rows.length < 2) return null;
    if (kept.has(grid)) return kept.get(grid);
    const sizes = new Map();
    for (const tensor of payload.tensors) sizes.set(tensor.module, (sizes.get(tensor.module) || 0) + (tensor.numel || 0));
    const rms = grid.rows.map((name, index) => {
      const root = Math.sqrt(sizes.get(name) || 1);
      return Float64Array.from(gm.unpackRow(grid.values, index), (value) => value / root);
    });
    const out = { grid, names: [], after: [], rows: [], low: [], middle: [], high: [] };
    for (let index = 0; index + 1 < rms.length; index += 1) {
      const row = rms[index].map((value, column) => value / rms[index + 1][column]);
      const good = Array.from(row).filter((value) => value > 0 && Number.isFinite(value)).sort((one, two) => one - two);
      out.names.push(grid.rows[index]);
      out.after.push(grid.rows[index + 1]);
      out.rows.push(row);
      out.low.push(good.length ? at(good, 0.1) : null);
      out.middle.push(good.length ? at(good, 0.5) : null);
      out.high.push(good.length ? at(good, 0.9) : null);
    }
    kept.set(grid, out);
    return out;
  };

  const shown = (value) => (value > 0 && Number.isFinite(value) ? value : null);

  gm.section({
    id: "ratio",
    depends: ["step", "tensor"],
    missing: (payload) => (gm.ratios(payload) ? null : payload.run.steps ? "missing.layers" : "missing.steps"),
    build(body) {
      body.append(gm.figure("ratio", 320));
    },
    draw(payload, body) {
      const ratios = gm.ratios(payload);
      const palette = gm.palette();
      const column = gm.columnAt(ratios.grid, gm.state.step);
      const step = gm.unpack(ratios.grid.first)[column];
      const x = ratios.names.map((unused, index) => index);
      const text = x.map((index) => `${gm.markup(ratios.names[index], 50)} / ${gm.markup(ratios.after[index], 50)}`);
      const line = (y, name, extra) => ({ type: "scatter", mode: "lines", x, y, name, text, hovertemplate: "%{y:.3g}", ...extra });
      const traces = [
        line(ratios.low, gm.t("ratio.band"), { line: { width: 0 }, showlegend: false, hoverinfo: "skip", hovertemplate: null }),
        line(ratios.high, gm.t("ratio.band"), { line: { width: 0 }, fill: "tonexty", fillcolor: "rgba(0,114,178,0.16)", hoverinfo: "skip", hovertemplate: null }),
        line(ratios.middle, gm.t("ratio.median"), { mode: "lines+markers", line: { color: palette.series[0], width: 1.5 }, marker: { size: 4 }, hovertemplate: "%{text}<br>%{y:.3g}" }),
        line(ratios.rows.map((row) => shown(row[column])), gm.t("flow.step", { step }), { mode: "markers", marker: { color: palette.series[1], size: 6, symbol: "diamond" } }),
      ];
      const node = body.querySelector(".figure");
      const tensor = gm.tensor(payload);
      const mark = () => gm.markPlace(node, "x", tensor ? ratios.names.indexOf(tensor.module) : -1);
      const drawn = [gm.state.version, gm.state.run, gm.state.optimizer, gm.state.lang, gm.dark(), gm.printing, column].join("|");
      if (node.drawn !== drawn) {
        node.drawn = drawn;
        const [xaxis, room] = gm.nameAxis(ratios.names, body.clientWidth);
        const shapes = [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { color: palette.soft, width: 1, dash: "dash" } }];
        gm.chart(node, traces, { margin: { l: 60, r: 18, t: gm.TOP, b: room }, shapes, xaxis, yaxis: gm.logAxis(gm.t("ratio.axis")) }, gm.t("ratio.title"));
      }
      mark();
    },
  });
})(window.gradmedic);
