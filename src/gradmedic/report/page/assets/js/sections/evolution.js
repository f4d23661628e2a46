"use strict";
// The chosen layer over time: size of its gradient, of its updates, and what share of it is zero.
(function (gm) {
  /** Return the chosen layer's row of a grid as a series over steps, null where it has none. */
  gm.rowSeries = function (payload, id) {
    const grid = gm.grid(payload, id);
    const row = grid ? gm.rowOfTensor(payload, grid) : -1;
    if (row < 0) return null;
    return { step: gm.unpack(grid.first), y: gm.unpackRow(grid.values, row) };
  };

  const PARTS = [
    { ids: ["norm", "max_abs", "output_grad", "activation_rms"], axis: "y", log: true },
    { ids: ["update_ratio"], axis: "y3", log: true },
    { ids: ["zero_share", "activation_zero", "cosine_prev"], axis: "y5", log: false },
  ];

  function traces(payload) {
    const palette = gm.palette();
    const out = [];
    let color = 0;
    for (const part of PARTS) {
      for (const id of part.ids) {
        const series = gm.rowSeries(payload, id);
        if (!series || series.y.every(Number.isNaN)) continue;
        const shade = palette.series[color % palette.series.length];
        const name = gm.t(`metrics.${id}`);
        // A logarithmic axis cannot show a zero: it is a gap in the line and a mark at the lower edge.
        const drawn = part.log ? { step: series.step, y: series.y.map((value) => (value === 0 ? NaN : value)) } : series;
        const sampled = id.startsWith("activation") || id === "output_grad";
        out.push(gm.line(drawn, name, { yaxis: part.axis, line: { color: shade }, connectgaps: sampled, ...(sampled ? gm.sampled(series) : {}) }));
        color += 1;
        const zeros = part.log ? gm.zeroMarks(series, name, edgeOf(part)) : null;
        out.push(...[gm.nonfiniteMarks(series, name, edgeOf(part)), zeros].filter(Boolean));
      }
    }
    return out;
  }

  const edgeOf = (part) => `y${Number(part.axis.slice(1) || 1) + 1}`;

  function summary(payload, tensor) {
    const shape = tensor.shape ? `[${tensor.shape.join(" × ")}]` : "–";
    const aliases = tensor.aliases && tensor.aliases.length ? [["evolution.aliases", tensor.aliases.map(gm.plain).join(", ")]] : [];
    return [
      ["evolution.name", gm.plain(tensor.name)], ["evolution.kind", gm.plain(tensor.kind || "–")], ["evolution.shape", shape], ["evolution.numel", gm.count(tensor.numel)],
      ["evolution.dtype", gm.plain(tensor.dtype || "–")], ["evolution.optimizer", gm.plain(tensor.optimizer || "–")],
      ["evolution.state", gm.stateName(tensor.state)], ["evolution.findings", tensor.findings.join(", ") || "–"], ...aliases,
    ];
  }

  gm.stateName = function (state) {
    const key = `states.${String(state).replace(/[ -]/g, "_")}`;
    const text = gm.t(key);
    return text === key ? gm.plain(state) : text;
  };

  gm.section({
    id: "evolution",
    depends: ["tensor"],
    missing: (payload) => (payload.tensors.length && gm.gridIds(payload).length ? null : payload.run.steps ? "missing.tables" : "missing.steps"),
    build(body) {
      const move = (by) => () => gm.set({ tensor: Math.min(gm.payload().tensors.length - 1, Math.max(0, gm.state.tensor + by)) });
      const button = (key, text, by, id) => gm.el("button", { type: "button", id, "data-word-label": key, text, onclick: move(by) });
      body.append(gm.el("div", { class: "controls" }, button("evolution.back", "‹", -1, "layer-back"), button("evolution.next", "›", 1, "layer-next")),
        gm.el("dl", { class: "facts small" }), gm.figure("evolution", 500));
    },
    draw(payload, body) {
      const tensor = gm.tensor(payload);
      const list = gm.clear(body.querySelector("dl"));
      for (const [key, value] of summary(payload, tensor)) list.append(gm.el("div", {}, gm.el("dt", { text: gm.t(key) }), gm.el("dd", { text: value })));
      const small = { title: undefined };
      const layout = {
        xaxis: { ...gm.stepAxis(payload), anchor: "y5" },
        yaxis: gm.logAxis(gm.t("evolution.size"), { domain: [0.56, 1] }), yaxis2: { ...gm.edgeAxis("y"), ...small },
        yaxis3: gm.logAxis(gm.t("evolution.update"), { domain: [0.29, 0.5], nticks: 3 }), yaxis4: { ...gm.edgeAxis("y3"), ...small },
        yaxis5: gm.axis({ domain: [0, 0.23], nticks: 5, title: { text: gm.t("evolution.share"), standoff: 6 } }), yaxis6: { ...gm.edgeAxis("y5"), ...small },
        ...gm.findingLines(payload),
      };
      const node = body.querySelector(".figure");
      gm.chart(node, traces(payload), layout, `${gm.t("evolution.title")}: ${gm.shorten(tensor.name, 80)}`, tensor.name);
      gm.followSteps(node);
    },
  });
})(window.gradmedic);
