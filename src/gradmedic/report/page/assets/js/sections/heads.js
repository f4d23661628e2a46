"use strict";
// One curve for each attention head.
(function (gm) {
  const label = (entry) => `${gm.shorten(entry.module, 50)} · ${gm.headMeasure(entry.what)}`;

  gm.headMeasure = function (what) {
    const key = `heads.what.${what}`;
    const text = gm.t(key);
    return text === key ? gm.plain(what) : text;
  };

  /** Return the name of a line: a head's number, or what sums up all heads. */
  function lineName(entry, at) {
    const given = entry.labels ? entry.labels[at] : String(at);
    if (/^\d+$/.test(given)) return gm.t("heads.head", { n: given });
    const text = gm.t(`heads.lines.${given}`);
    return text.startsWith("heads.") ? gm.plain(given) : text;
  }

  gm.section({
    id: "heads",
    depends: ["head"],
    missing: (payload) => (payload.heads.length ? null : payload.run.steps ? "missing.heads" : "missing.steps"),
    build(body) {
      const select = gm.el("select", { id: "head", onchange: (event) => gm.set({ head: Number(event.target.value) }) });
      body.append(gm.el("div", { class: "controls" }, gm.field("heads.module", select)), gm.figure("heads", 300));
    },
    draw(payload, body) {
      const index = Math.min(gm.state.head, payload.heads.length - 1);
      const entry = payload.heads[index];
      gm.fill(body.querySelector("#head"), payload.heads.map((each, at) => [at, label(each)]), index);
      const [rows, heads] = entry.values.n;
      const values = gm.unpack(entry.values);
      const step = gm.unpack(entry.steps);
      const traces = [];
      for (let head = 0; head < heads; head += 1) {
        const y = Float32Array.from({ length: rows }, (unused, row) => values[row * heads + head]);
        const dash = ["solid", "dash", "dot", "dashdot"][Math.floor(head / 8) % 4];
        traces.push(gm.line({ step, y }, lineName(entry, head), { line: { width: 1.3, dash }, ...gm.sampled({ step, y }) }));
        const broken = gm.nonfiniteMarks({ step, y }, lineName(entry, head));
        if (broken) traces.push(broken);
      }
      const layout = {
        xaxis: gm.stepAxis(payload), yaxis: gm.axis({ title: { text: gm.markup(gm.headMeasure(entry.what), 40), standoff: 6 } }), yaxis2: gm.edgeAxis(), hovermode: "closest",
      };
      const node = body.querySelector(".figure");
      gm.chart(node, traces, layout, `${gm.t("heads.title")}: ${label(entry)}`, `${entry.module}|${entry.what}`);
      gm.followSteps(node);
    },
  });
})(window.gradmedic);
