"use strict";
// The runs that the page holds, and how figures ask for their data.
(function (gm) {
  gm.runs = []; // [{id, name, payload}] as the source has them; payload null until it has come

  gm.runOf = (id) => gm.runs.find((run) => String(run.id) === String(id)) || null;

  /** Return the data of the run that is shown; null while there are none. */
  gm.payload = function () {
    const run = gm.runOf(gm.state.run);
    return run ? run.payload : null;
  };

  gm.otherRun = function () {
    const run = gm.state.other === "" ? null : gm.runOf(gm.state.other);
    return run && run.payload && String(run.id) !== String(gm.state.run) ? run : null;
  };

  /** Return one column of an optimizer's scalars as {step, y}, null where there is none. */
  gm.scalar = function (payload, column, optimizer) {
    const named = optimizer === undefined ? gm.state.optimizer : optimizer;
    const table = payload.scalars[named] || payload.scalars[payload.optimizers[0]];
    const entry = table && table[column];
    if (!entry || entry.step.n[0] === 0) return null;
    return { step: gm.unpack(entry.step), y: gm.unpack(entry.y) };
  };

  gm.loggedNames = function (payload) {
    const table = payload.scalars[gm.state.optimizer] || {};
    return Object.keys(table).filter((name) => name.startsWith("logged."));
  };

  /** Return a grid for the optimizer that is shown: its own, or the one of all of them. */
  gm.grid = function (payload, id) {
    const all = payload.grids.filter((grid) => grid.id === id && grid.rows.length && grid.first.n[0]);
    return all.find((grid) => grid.optimizer === gm.state.optimizer) || all.find((grid) => grid.optimizer === null) || null;
  };

  gm.gridIds = function (payload) {
    const order = ["norm", "layer_norm", "max_abs", "update_ratio", "zero_share", "nonfinite", "cosine_prev", "status"];
    const ids = [...order, "activation_rms", "activation_zero", "output_grad"];
    return ids.filter((id) => gm.grid(payload, id));
  };

  /** Return the column of a grid that holds a step, the last one by default. */
  gm.columnAt = function (grid, step) {
    const first = gm.unpack(grid.first);
    if (step === null || step === undefined) return first.length - 1;
    let low = 0;
    let high = first.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (first[middle] <= step) low = middle;
      else high = middle - 1;
    }
    return low;
  };

  /** Return [first, last] recorded step of the optimizer that is shown. */
  gm.stepRange = function (payload) {
    let first = Infinity;
    let last = -Infinity;
    for (const column of ["grad_norm", "loss", "lr", "step_seconds"]) {
      const series = gm.scalar(payload, column);
      for (const step of series ? series.step : []) {
        first = Math.min(first, step);
        last = Math.max(last, step);
      }
      if (series) break;
    }
    const grid = gm.grid(payload, "norm");
    if (grid) {
      first = Math.min(first, gm.unpack(grid.first)[0]);
      last = Math.max(last, gm.unpack(grid.last)[grid.last.n[0] - 1]);
    }
    return last >= first ? [first, last] : [0, 1];
  };

  gm.tensor = function (payload) {
    return payload.tensors[Math.min(gm.state.tensor, payload.tensors.length - 1)] || null;
  };

  /** Return the row of a grid that stands for the chosen layer, -1 where none does. */
  gm.rowOfTensor = function (payload, grid) {
    const tensor = gm.tensor(payload);
    if (!tensor) return -1;
    const wanted = grid.of === "tensors" ? tensor.name : tensor.module;
    const exact = grid.rows.indexOf(wanted);
    // A module that is called several times a step has one row for each call.
    return exact >= 0 || grid.of !== "modules" ? exact : grid.rows.findIndex((name) => name.startsWith(`${wanted} · `));
  };

  const places = new WeakMap();

  /** Return the tensor that a row of a grid leads to, null where none does. */
  gm.tensorOfRow = function (payload, of, name) {
    if (!places.has(payload)) {
      const table = { tensors: new Map(), modules: new Map(), blocks: new Map() };
      payload.tensors.forEach((tensor, index) => {
        for (const [key, value] of [["tensors", tensor.name], ["modules", tensor.module], ["blocks", tensor.block]]) {
          if (!table[key].has(value)) table[key].set(value, index);
        }
      });
      places.set(payload, table);
    }
    const table = places.get(payload)[of === "layers" ? "modules" : of];
    for (const key of [name, name.split(" · ")[0]]) if (table.has(key)) return table.get(key);
    return null;
  };

  gm.findings = (payload) => payload.findings[gm.state.lang] || payload.findings.en || [];

  /** Return the step to open at: that of the first fault, where a run ends in numbers that are not finite; else null. */
  gm.startStep = function (payload) {
    const norms = gm.scalar(payload, "grad_norm", payload.optimizers[0]);
    if (!norms || Number.isFinite(norms.y[norms.y.length - 1])) return null;
    const fault = (payload.findings.en || []).find((finding) => finding.severity === "critical" || finding.severity === "error");
    return fault ? fault.step : null;
  };

  gm.worstTensor = function (payload) {
    const named = (payload.findings.en || []).filter((finding) => finding.severity !== "info").flatMap((finding) => finding.where);
    for (const name of named) {
      const index = payload.tensors.findIndex((tensor) => tensor.name === name || tensor.module === name);
      if (index >= 0) return index;
    }
    let worst = 0;
    payload.tensors.forEach((tensor, index) => {
      if (tensor.trouble > payload.tensors[worst].trouble) worst = index;
    });
    return worst;
  };
})(window.gradmedic);
