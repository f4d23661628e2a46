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

  const MOST_DOTS = 60; // each is an element of the page

  /** Return how a line that was measured now and then is drawn: with a dot at each place, as long as they are few. */
  gm.sampled = function (series) {
    const known = series.y.reduce((count, value) => count + !Number.isNaN(value), 0);
    return known > MOST_DOTS ? { mode: "lines" } : { mode: "lines+markers", marker: { size: 4 } };
  };

  gm.MOST_SYMBOLS = 100; // marks of a kind, beyond which they are strokes: each symbol is an element of the page

  /**
   * Return strokes at the upper or the lower edge of a figure.
   *
   * They are one line, that goes from one to the next beyond the edge: the parts of a line with gaps would be an element each.
   */
  gm.strokes = function (x, text, above, color) {
    const thrice = (values) => values.flatMap((value) => [value, value, value]);
    const [out, tip] = above ? [1.05, 0.955] : [-0.05, 0.045];
    return { mode: "lines", line: { color, width: 1.2 }, x: thrice(x), text: thrice(text), y: x.flatMap(() => [out, tip, out]) };
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
    const common = { type: "scatter", yaxis: edge || "y2", name: gm.t(key), meta: key, hovertemplate: "%{text}<extra></extra>" };
    if (x.length > gm.MOST_SYMBOLS) return { ...common, ...gm.strokes(x, x.map(() => text), y > 0.5, marker.color) };
    return { ...common, mode: "markers", x, y: x.map(() => y), marker, text: x.map(() => text) };
  }
})(window.gradmedic);
