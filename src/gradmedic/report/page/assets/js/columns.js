"use strict";
// Columns of one width. Plotly paints a heatmap of equal columns in one go, and every other one cell by cell, twenty times
// as slowly; a record that was thinned has columns of many widths.
(function (gm) {
  const MOST = 800; // columns that a record of uneven ones is drawn with
  const kept = new WeakMap();

  /**
   * Return {start, width, count, low, high}: equal columns from the step `start` on, and the first and the last column of
   * the grid that each of them shows.
   */
  gm.columnsOf = function (grid) {
    if (kept.has(grid)) return kept.get(grid);
    const first = gm.unpack(grid.first);
    const last = gm.unpack(grid.last);
    const given = first.length;
    const start = first[0] - 0.5;
    const end = Math.max(last[given - 1] + 0.5, start + 1);
    let width = (end - start) / given;
    const even = Array.from(first).every((step, at) => Math.abs(step - 0.5 - (start + at * width)) <= 0.75 * width);
    const count = even ? given : MOST;
    width = (end - start) / count;
    const low = new Int32Array(count);
    const high = new Int32Array(count);
    let column = 0;
    for (let at = 0; at < count; at += 1) {
      if (even) {
        low[at] = high[at] = at;
        continue;
      }
      // A column of the grid reaches up to the next one.
      while (column + 1 < given && first[column + 1] - 0.5 <= start + at * width) column += 1;
      let until = column;
      while (until + 1 < given && first[until + 1] - 0.5 < start + (at + 1) * width) until += 1;
      low[at] = column;
      high[at] = until;
    }
    kept.set(grid, { start, width, count, low, high });
    return kept.get(grid);
  };

  const middle = function (values) {
    const sorted = Array.from(values).filter(Number.isFinite).sort((one, two) => one - two);
    return sorted.length ? sorted[sorted.length >> 1] : 0;
  };

  /** Return a row of a grid in equal columns: where several fall into one, the one that is not finite or farthest from the row's middle. */
  gm.evenRow = function (grid, values) {
    const { count, low, high } = gm.columnsOf(grid);
    if (count === values.length) return values;
    const level = grid.log ? (value) => Math.log(Math.max(value, 1e-45)) : (value) => value;
    const center = level(middle(values));
    const out = new values.constructor(count);
    for (let at = 0; at < count; at += 1) {
      let best = values[low[at]];
      for (let column = low[at] + 1; column <= high[at]; column += 1) {
        const value = values[column];
        if (Number.isNaN(value) || best === Infinity || best === -Infinity) continue;
        if (Number.isNaN(best) || !Number.isFinite(value) || Math.abs(level(value) - center) > Math.abs(level(best) - center)) best = value;
      }
      out[at] = best;
    }
    return out;
  };
})(window.gradmedic);
