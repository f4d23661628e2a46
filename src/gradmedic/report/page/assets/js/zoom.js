"use strict";
// Zoom that lasts while a run grows.
(function (gm) {
  // Plotly's own memory of a zoom ends when the range that it was given changes, as it does while a run grows.
  gm.rememberZoom = function (node) {
    node.zoom = {};
    node.on("plotly_relayout", (event) => {
      for (const [key, value] of Object.entries(event)) {
        const [axis, attribute] = key.split(".");
        if (attribute === "autorange" || attribute === "range" || /^range\[/.test(attribute || "")) {
          const range = node._fullLayout[axis].range.slice();
          const whole = node.whole[axis];
          const reset = (attribute === "autorange" && value) || (whole && whole[0] === range[0] && whole[1] === range[1]);
          if (reset) delete node.zoom[axis];
          else node.zoom[axis] = range;
        }
      }
    });
  };

  /** Give a layout the ranges that the reader has zoomed to, as long as the figure shows the same thing. */
  gm.keepZoom = function (node, layout) {
    const axes = Object.keys(layout).filter((key) => /^[xy]axis/.test(key));
    node.whole = Object.fromEntries(axes.map((axis) => [axis, layout[axis].range]));
    if (node.showing !== layout.uirevision) node.zoom = {};
    node.showing = layout.uirevision;
    for (const axis of axes) {
      if (node.zoom && node.zoom[axis]) layout[axis] = { ...layout[axis], range: node.zoom[axis], autorange: false };
    }
  };
})(window.gradmedic);
