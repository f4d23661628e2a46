"use strict";
// What a heatmap of rows over steps is made of: colours for values, and colours of their own for zero and for not finite.
(function (gm) {
  /** Return [low, high] of what a grid's colours span: nearly all of its values, single outliers aside. */
  gm.spanOf = function (grid) {
    if (grid.id === "cosine_prev") return [-1, 1];
    if (grid.id === "zero_share" || grid.id === "activation_zero") return [0, 1];
    if (grid.id === "status") return [0, 2];
    if (spans.has(grid)) return spans.get(grid);
    const all = gm.unpack(grid.values);
    const stride = Math.max(1, Math.floor(all.length / 40000));
    const values = [];
    for (let at = 0; at < all.length; at += stride) {
      const value = all[at];
      if (Number.isFinite(value) && (!grid.log || value > 0)) values.push(grid.log ? Math.log10(value) : value);
    }
    values.sort((one, two) => one - two);
    let span = [0, 1];
    if (values.length) {
      span = [values[Math.floor(0.005 * values.length)], values[Math.min(values.length - 1, Math.floor(0.998 * values.length))]];
    }
    if (span[1] - span[0] < 1e-6) span = [span[0] - 0.5, span[1] + 0.5];
    spans.set(grid, span);
    return span;
  };
  const spans = new WeakMap();

  gm.scaleOf = (grid) => (grid.id === "cosine_prev" ? gm.scales.diverging : gm.scales.viridis);

  function colorbar(grid, span) {
    const bar = { thickness: 10, outlinewidth: 0, xpad: 6, tickfont: { size: 10 }, title: { text: gm.t(`units.${grid.id}`), side: "right", font: { size: 11 } } };
    if (!grid.log) return bar;
    const low = Math.ceil(span[0]);
    const high = Math.floor(span[1]);
    if (high - low < 2) {
      const ticks = [0, 1, 2, 3, 4].map((part) => span[0] + (part / 4) * (span[1] - span[0]));
      return { ...bar, tickvals: ticks, ticktext: ticks.map((tick) => gm.number(Number((10 ** tick).toPrecision(2)))) };
    }
    const stride = Math.max(1, Math.ceil((high - low) / 6));
    const ticks = [];
    for (let exponent = low; exponent <= high; exponent += stride) ticks.push(exponent);
    return { ...bar, tickvals: ticks, ticktext: ticks.map(gm.power) };
  }

  /** Return the traces of a heatmap of rows in equal columns: values (their logarithm where the grid says so), and over them zero and not finite. */
  gm.heatTraces = function (grid, rows) {
    const palette = gm.palette();
    const { start, width } = gm.columnsOf(grid);
    const z = [];
    const odd = { nonfinite: [], zero: [] };
    const seen = { nonfinite: false, zero: false };
    for (const values of rows) {
      const line = new Float32Array(values.length).fill(NaN);
      const broken = new Float32Array(values.length).fill(NaN);
      const zero = new Float32Array(values.length).fill(NaN);
      for (let at = 0; at < values.length; at += 1) {
        const value = values[at];
        if (Number.isNaN(value)) continue;
        if (!Number.isFinite(value)) {
          broken[at] = 1;
          seen.nonfinite = true;
        } else if (grid.log && value === 0) {
          zero[at] = 1;
          seen.zero = true;
        } else line[at] = grid.log ? Math.log10(value) : value;
      }
      z.push(line);
      odd.nonfinite.push(broken);
      odd.zero.push(zero);
    }
    const span = gm.spanOf(grid);
    const common = { type: "heatmap", x0: start + width / 2, dx: width, y0: 0, dy: 1, hoverinfo: "none", hoverongaps: false, zsmooth: false };
    const flat = (color) => [[0, color], [1, color]];
    const traces = [{
      ...common, name: "values", z, zmin: span[0], zmax: span[1], zauto: false, colorscale: gm.plotlyScale(gm.scaleOf(grid)), colorbar: colorbar(grid, span),
    }];
    const over = { zmin: 0, zmax: 1, zauto: false, showscale: false };
    if (seen.zero) traces.push({ ...common, ...over, name: "zero", z: odd.zero, colorscale: flat(palette.zero) });
    if (seen.nonfinite) traces.push({ ...common, ...over, name: "nonfinite", z: odd.nonfinite, colorscale: flat(gm.NONFINITE) });
    return { traces, seen };
  };

  /** Return a value as a cell's text. */
  gm.cellText = function (value) {
    if (Number.isNaN(value)) return gm.t("value.absent");
    if (!Number.isFinite(value)) return gm.t("value.nonfinite");
    return value === 0 ? gm.t("value.zero") : gm.number(value);
  };

  /** Return the key to colours that are not on the scale. */
  gm.heatKey = function () {
    const palette = gm.palette();
    const entry = (color, key) => gm.el("span", {}, gm.el("i", { style: `background:${color}` }), gm.t(key));
    return gm.el("p", { class: "key" }, entry(gm.NONFINITE, "value.nonfinite"), entry(palette.zero, "value.zero"), entry(palette.absent, "value.absent"));
  };
})(window.gradmedic);
