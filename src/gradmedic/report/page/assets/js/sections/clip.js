"use strict";
// How often steps were clipped, by how much, and which ones were skipped.
(function (gm) {
  const INTERVENTIONS = ["halt", "stop", "guard", "skip", "clip"]; // other marks say what happened, not what was done

  const counted = (payload) => INTERVENTIONS.map((kind) => [kind, payload.mark_counts[kind] || 0]).filter(([, count]) => count > 0);

  gm.section({
    id: "clip",
    missing(payload) {
      if (!payload.run.steps) return "missing.steps";
      const rate = gm.scalar(payload, "clip_rate");
      const clipped = rate && rate.y.some((value) => value > 0);
      return clipped || gm.scalar(payload, "clip_threshold") || gm.scalar(payload, "transform_threshold") || counted(payload).length ? null : "missing.clip";
    },
    build(body) {
      body.append(gm.el("ul", { class: "counts" }), gm.figure("clip", 240));
    },
    draw(payload, body) {
      const counts = gm.clear(body.querySelector(".counts"));
      for (const [kind, count] of counted(payload)) {
        const text = gm.t("clip.count", { n: count, share: gm.share(count / Math.max(1, payload.run.steps)) });
        counts.append(gm.el("li", {}, gm.el("b", { text: gm.markName(kind) }), ` ${text}`));
      }
      const palette = gm.palette();
      const traces = [];
      const rate = gm.scalar(payload, "clip_rate");
      const scale = gm.scalar(payload, "clip_scale");
      if (rate) traces.push(gm.line(rate, gm.t("columns.clip_rate"), { line: { color: palette.series[1] }, hovertemplate: "%{y:.1%}" }));
      if (scale) traces.push(gm.line(scale, gm.t("columns.clip_scale"), { line: { color: palette.series[0], width: 1 }, yaxis: "y3" }));
      const layout = {
        margin: { l: 60, r: 70, t: gm.TOP, b: 44 },
        xaxis: gm.stepAxis(payload),
        yaxis: gm.axis({ visible: Boolean(rate), title: { text: gm.t("clip.rate"), standoff: 6 }, range: [-0.03, 1.05], tickformat: ".0%" }),
        yaxis2: gm.edgeAxis(),
        yaxis3: gm.logAxis(gm.t("clip.scale"), { nticks: 3, visible: Boolean(scale), overlaying: "y", side: "right", showgrid: false, tickmode: "auto" }),
        ...gm.findingLines(payload),
      };
      const node = body.querySelector(".figure");
      gm.chart(node, [...traces, ...gm.interventions(payload)], layout, gm.t("clip.title"));
      gm.followSteps(node);
    },
  });
})(window.gradmedic);
