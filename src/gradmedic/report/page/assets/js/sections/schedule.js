"use strict";
// Learning rate and gradient norm side by side, and how far they move together.
(function (gm) {
  gm.section({
    id: "schedule",
    missing: (payload) => (gm.scalar(payload, "lr") ? null : payload.run.steps ? "missing.lr" : "missing.steps"),
    build(body) {
      body.append(gm.el("p", { id: "correlation", class: "readout" }), gm.figure("schedule", 260));
    },
    draw(payload, body) {
      const palette = gm.palette();
      const known = payload.correlation[gm.state.optimizer] || { value: null, n: 0 };
      const text = known.value === null ? gm.t(`schedule.${known.why || "still"}`) : gm.t("schedule.correlation", { r: known.value.toFixed(2), n: known.n });
      body.querySelector("#correlation").textContent = text;
      const norm = gm.scalar(payload, "grad_norm");
      const traces = [gm.line(gm.scalar(payload, "lr"), gm.t("columns.lr"), { line: { color: palette.series[1], width: 2 } })];
      if (norm) traces.push(gm.line(norm, gm.t("columns.grad_norm"), { yaxis: "y2", line: { color: palette.series[0], width: 1 } }));
      const layout = {
        xaxis: gm.stepAxis(payload), margin: { l: 60, r: 70, t: gm.TOP, b: 44 },
        yaxis: gm.axis({ title: { text: gm.t("columns.lr"), standoff: 6 }, rangemode: "tozero" }),
        yaxis2: gm.logAxis(gm.t("norm.axis"), { overlaying: "y", side: "right", showgrid: false, tickmode: "auto" }),
      };
      const node = body.querySelector(".figure");
      gm.chart(node, traces, layout, gm.t("schedule.title"));
      gm.followSteps(node);
    },
  });
})(window.gradmedic);
