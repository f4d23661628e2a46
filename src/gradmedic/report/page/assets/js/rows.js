"use strict";
// Which rows of a grid are shown: filtered by name, joined by layer or block, sorted, and a page at a time.
(function (gm) {
  gm.PAGE_ROWS = 200;

  const JOIN = { norm: "root", layer_norm: "root", max_abs: "max", nonfinite: "sum", cosine_prev: "mean" };

  /** Return how the values of several rows of a metric become one. */
  gm.joinOf = (id) => JOIN[id] || "max";

  function joined(rows, how) {
    if (rows.length === 1) return rows[0];
    const width = rows[0].length;
    const out = new rows[0].constructor(width).fill(NaN);
    for (let column = 0; column < width; column += 1) {
      let total = 0;
      let largest = 0;
      let seen = 0;
      let broken = false;
      // The root of a sum of squares relative to the largest value cannot overflow.
      for (const row of rows) {
        const value = row[column];
        if (Number.isNaN(value)) continue;
        seen += 1;
        broken = broken || !Number.isFinite(value);
        largest = Math.max(largest, how === "mean" ? 1 : Math.abs(value));
      }
      if (!seen) continue;
      if (broken) {
        out[column] = Infinity;
        continue;
      }
      for (const row of rows) {
        const value = row[column];
        if (Number.isNaN(value)) continue;
        if (how === "root") total += largest > 0 ? (value / largest) ** 2 : 0;
        else if (how === "max") total = Math.max(total, value);
        else total += value;
      }
      out[column] = how === "root" ? largest * Math.sqrt(total) : how === "mean" ? total / seen : total;
    }
    return out;
  }

  const troubles = new WeakMap();
  function troubleTable(payload) {
    if (!troubles.has(payload)) {
      const table = { tensors: new Map(), layers: new Map(), blocks: new Map() };
      for (const tensor of payload.tensors) {
        table.tensors.set(tensor.name, tensor);
        for (const [key, name] of [["layers", tensor.module], ["blocks", tensor.block]]) {
          const members = table[key].get(name);
          if (members) members.push(tensor);
          else table[key].set(name, [tensor]);
        }
      }
      troubles.set(payload, table);
    }
    return troubles.get(payload);
  }

  gm.tensorNamed = (payload, name) => troubleTable(payload).tensors.get(name) || null;

  /** Return how far a row is from healthy: that of its worst tensor. */
  gm.troubleOf = function (payload, of, name) {
    const table = troubleTable(payload);
    if (of === "tensors") return (table.tensors.get(name) || { trouble: 0 }).trouble;
    const members = table[of === "blocks" ? "blocks" : "layers"].get(name) || [];
    return members.reduce((worst, tensor) => Math.max(worst, tensor.trouble), 0);
  };

  function grouped(payload, grid, group) {
    if (grid.of !== "tensors" || group === "tensors") {
      return { of: grid.of, rows: grid.rows.map((name, index) => ({ name, members: [index] })) };
    }
    const rows = new Map();
    grid.rows.forEach((name, index) => {
      const tensor = gm.tensorNamed(payload, name);
      const key = tensor ? tensor[group === "blocks" ? "block" : "module"] : name;
      if (!rows.has(key)) rows.set(key, { name: key, members: [] });
      rows.get(key).members.push(index);
    });
    return { of: group, rows: [...rows.values()] };
  }

  /**
   * Return the rows of a grid to show: {of, rows: [{name, members}], total, pages, page}.
   *
   * `of` says what a row is: "tensors", "layers", "blocks" or "modules".
   */
  gm.rowsOf = function (payload, grid, choice, size) {
    const { of, rows } = grouped(payload, grid, choice.group);
    const matches = gm.matcher(choice.filter);
    let kept = rows.filter((row) => matches(row.name) || row.members.some((index) => matches(grid.rows[index])));
    if (choice.sort === "worst") {
      const worst = new Map(kept.map((row) => [row, gm.troubleOf(payload, of, row.name)]));
      kept = [...kept].sort((one, two) => worst.get(two) - worst.get(one));
    }
    const pages = Math.max(1, Math.ceil(kept.length / size));
    const page = Math.min(choice.page, pages - 1);
    return { of, rows: kept.slice(page * size, (page + 1) * size), total: kept.length, pages, page };
  };

  /** Return the values of one row, joined where it stands for several. */
  gm.rowValues = function (grid, row) {
    return joined(row.members.map((index) => gm.unpackRow(grid.values, index)), gm.joinOf(grid.id));
  };
})(window.gradmedic);
