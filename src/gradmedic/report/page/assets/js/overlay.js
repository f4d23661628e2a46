"use strict";
// What lies over a figure: the line at the chosen step, and the frame of the chosen layer. Moving them draws nothing anew.
(function (gm) {
  /** Return a figure, made once: what Plotly draws in, and over it the line that stands at the chosen step. */
  gm.figure = function (id, height) {
    const node = gm.el("div", { class: "figure", id: `figure-${id}`, role: "img", style: `height:${height}px` });
    return gm.el("div", { class: "frame" }, node, gm.el("div", { class: "cursor", hidden: true }), gm.el("div", { class: "chosen-mark", hidden: true }));
  };

  /**
   * Frame one place of an axis of names, -1 for none: a row of a heatmap (axis "y") or a column of names ("x").
   *
   * It lies over the figure, so that choosing another layer draws nothing anew.
   */
  gm.markPlace = function (node, letter, place) {
    const mark = node.parentElement.querySelector(".chosen-mark");
    const layout = node._fullLayout;
    const axis = layout && layout[`${letter}axis`];
    mark.hidden = true;
    if (place < 0 || !axis || !axis.l2p) return;
    const ends = [axis.l2p(place - 0.5), axis.l2p(place + 0.5)].sort((one, two) => one - two);
    const from = Math.max(0, ends[0]);
    const to = Math.min(axis._length, ends[1]);
    if (!(to > from)) return;
    mark.hidden = false;
    const size = layout._size;
    const box = letter === "y" ? [size.l, axis._offset + from, size.w, to - from] : [axis._offset + from, size.t, to - from, size.h];
    [mark.style.left, mark.style.top, mark.style.width, mark.style.height] = box.map((pixels) => `${pixels}px`);
  };

  /** Make a figure over steps follow the chosen step, and choose the one that is clicked. */
  gm.followSteps = function (node) {
    gm.moveCursor(node);
    if (node.dataset.steps) return;
    node.dataset.steps = "1";
    node.on("plotly_click", (event) => gm.set({ step: Math.round(event.points[0].x) }));
    node.on("plotly_afterplot", () => gm.moveCursor(node));
    gm.moveCursor(node);
  };
})(window.gradmedic);
