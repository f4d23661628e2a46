"use strict";
// The gradient's way, from the output to the input: the layers against their order, and their norms at each recorded step.
(function (gm) {
  const kept = new WeakMap();

  /** Return {grid, names, values, columns, low, high}: layers from output to input, values one row for each; null without data. */
  gm.flowLayers = function (payload) {
    const grid = gm.grid(payload, "layer_norm") || gm.grid(payload, "norm");
    if (!grid) return null;
    if (!kept.has(grid)) {
      const order = grid.rows.map((name, index) => index).reverse();
      const [low, high] = gm.spanOf(grid);
      kept.set(grid, {
        grid, low, high,
        names: order.map((index) => grid.rows[index]),
        values: order.map((index) => gm.unpackRow(grid.values, index)),
        columns: grid.first.n[0],
      });
    }
    return kept.get(grid);
  };

  /** Return the share in [0, 1] of a value between the smallest and the largest norm, on a logarithmic scale. */
  gm.flowShare = function (flow, value) {
    const level = flow.grid.log ? Math.log10(value) : value;
    return Math.min(1, Math.max(0, (level - flow.low) / (flow.high - flow.low)));
  };

  /** Return [index of the largest, index of the smallest] finite and nonzero norm in a column; -1 where there is none. */
  gm.flowExtremes = function (flow, column) {
    let largest = -1;
    let smallest = -1;
    flow.values.forEach((row, index) => {
      const value = row[column];
      if (!(value > 0) || !Number.isFinite(value)) return;
      if (largest < 0 || value > flow.values[largest][column]) largest = index;
      if (smallest < 0 || value < flow.values[smallest][column]) smallest = index;
    });
    return [largest, smallest];
  };

  /** Return the color of a norm: on the scale, or that of zero, of not finite, of not recorded. */
  gm.flowColor = function (flow, value, palette) {
    if (Number.isNaN(value)) return palette.absent;
    if (!Number.isFinite(value)) return gm.NONFINITE;
    if (value === 0) return palette.zero;
    const [red, green, blue] = gm.shade(gm.scales.viridis, gm.flowShare(flow, value));
    return `rgb(${red},${green},${blue})`;
  };
})(window.gradmedic);
