"use strict";
// Whether gradients keep their direction: the cosine of each with the one before.
(function (gm) {
  const any = (series) => series !== null && series.y.some((value) => !Number.isNaN(value));

  gm.section({
    id: "direction",
    depends: ["tensor"],
    missing(payload) {
      if (any(gm.scalar(payload, "direction")) || gm.grid(payload, "cosine_prev")) return null;
      return payload.run.steps ? "missing.direction" : "missing.steps";
    },
    build(body) {
      body.append(gm.figure("direction", 240));
    },
    draw(payload, body) {
      const palette = gm.palette();
      const traces = [];
      const own = gm.rowSeries(payload, "cosine_prev");
      const tensor = gm.tensor(payload);
      if (any(own)) traces.push(gm.line(own, gm.shorten(tensor.name, 40), { line: { color: palette.series[1], width: 1 } }));
      const all = gm.scalar(payload, "direction");
      if (any(all)) traces.push(gm.line(all, gm.t("columns.direction"), { line: { color: palette.series[0] } }));
      const layout = {
        xaxis: gm.stepAxis(payload), yaxis: gm.axis({ range: [-1.05, 1.05], title: { text: gm.t("direction.axis"), standoff: 6 } }),
        shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 0, y1: 0, line: { color: palette.soft, width: 1, dash: "dot" } }],
      };
      const node = body.querySelector(".figure");
      gm.chart(node, traces, layout, gm.t("direction.title"));
      gm.followSteps(node);
    },
  });
})(window.gradmedic);
