"use strict";
// The gradient norm before and after clipping, beside the threshold.
(function (gm) {
  const COLUMNS = [
    ["grad_norm", {}],
    ["grad_norm_post", { line: { width: 1.2 } }],
    ["clip_threshold", { line: { dash: "dash", width: 1.2 } }],
    ["transform_threshold", { line: { dash: "dashdot", width: 1.2 } }],
  ];

  /** Whether nothing was clipped: a second line over the first would only hide it. */
  const same = (one, two) => two !== null && one.y.length === two.y.length && one.y.every((value, at) => Object.is(value, two.y[at]));

  function traces(payload) {
    const palette = gm.palette();
    const out = [];
    COLUMNS.forEach(([column, extra], index) => {
      const series = gm.scalar(payload, column);
      if (!series || (column === "grad_norm_post" && same(series, gm.scalar(payload, "grad_norm")))) return;
      const name = gm.t(`columns.${column}`);
      out.push(gm.line(series, name, { ...extra, line: { color: palette.series[index], ...extra.line } }));
      if (index < 2) out.push(...[gm.nonfiniteMarks(series, name), gm.zeroMarks(series, name)].filter(Boolean));
    });
    const other = gm.otherRun();
    const compared = other && gm.scalar(other.payload, "grad_norm");
    if (compared) out.push(gm.line(compared, `${gm.t("columns.grad_norm")} (${other.name})`, { line: { dash: "dot" } }));
    return [...out, ...gm.interventions(payload)];
  }

  gm.section({
    id: "norm",
    depends: ["other"],
    missing: (payload) => (gm.scalar(payload, "grad_norm") ? null : payload.run.steps ? "missing.norm" : "missing.steps"),
    build(body) {
      body.append(gm.figure("norm", 300));
    },
    draw(payload, body) {
      const node = body.querySelector(".figure");
      const layout = { xaxis: gm.stepAxis(payload), yaxis: gm.logAxis(gm.t("norm.axis")), yaxis2: gm.edgeAxis(), ...gm.findingLines(payload) };
      gm.chart(node, traces(payload), layout, gm.t("norm.title"));
      gm.followSteps(node);
    },
  });
})(window.gradmedic);
