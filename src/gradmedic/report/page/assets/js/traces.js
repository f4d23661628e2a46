"use strict";
// Lines over steps. What is not finite or, on a logarithmic axis, zero is never drawn as a number: it is a mark at the edge.
(function (gm) {
  /** Return a line over steps; what is not finite is left out of it. */
  gm.line = function (series, name, extra) {
    const y = Array.from(series.y, (value) => (Number.isFinite(value) ? value : null));
    return {
      type: "scatter", mode: series.step.length < 2 ? "markers" : "lines", x: series.step, y, name: gm.markup(name, 60),
      line: { width: 1.6, ...(extra && extra.line) }, hovertemplate: "%{y:.4g}", ...without(extra, "line"),
    };
  };

  function without(object, key) {
    const rest = { ...object };
    delete rest[key];
    return rest;
  }

  /** Return marks at the upper edge where a series is not finite; null where it always is. */
  gm.nonfiniteMarks = function (series, name, edge) {
    const x = [];
    for (let at = 0; at < series.y.length; at += 1) {
      const value = series.y[at];
      if (!Number.isFinite(value) && !Number.isNaN(value)) x.push(series.step[at]);
    }
    if (!x.length) return null;
    return edgeMarks(x, 0.97, edge, name, "value.nonfinite", { symbol: "x", size: 8, color: gm.NONFINITE });
  };

  /** Return marks at the lower edge where a series is zero, which a logarithmic axis cannot show; null where it never is. */
  gm.zeroMarks = function (series, name, edge) {
    const x = Array.from(series.step).filter((step, at) => series.y[at] === 0);
    return x.length ? edgeMarks(x, 0.03, edge, name, "value.zero", { symbol: "circle-open", size: 6, color: gm.palette().soft }) : null;
  };

  function edgeMarks(x, y, edge, name, key, marker) {
    const text = `${gm.markup(name, 40)}: ${gm.t(key)}`;
    return { type: "scatter", mode: "markers", x, y: x.map(() => y), yaxis: edge || "y2", name: gm.t(key), meta: key, marker, text: x.map(() => text), hovertemplate: "%{text}<extra></extra>" };
  }
})(window.gradmedic);
