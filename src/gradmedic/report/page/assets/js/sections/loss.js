"use strict";
// The loss, where findings begin, and where steps were skipped.
(function (gm) {
  const DECADES = 1000; // largest loss over the smallest from which on the axis is logarithmic by itself
  const LOGGED = 12; // so many logged series are offered in the legend

  function traces(payload) {
    const out = [];
    const add = (series, name, extra) => {
      out.push(gm.line(series, name, extra));
      const marks = gm.nonfiniteMarks(series, name);
      if (marks && !(extra && extra.visible)) out.push(marks);
    };
    const loss = gm.scalar(payload, "loss");
    if (loss) add(loss, gm.t("loss.series"));
    const other = gm.otherRun();
    const compared = other && gm.scalar(other.payload, "loss");
    if (compared) add(compared, `${gm.t("loss.series")} (${other.name})`, { line: { dash: "dot" } });
    for (const name of gm.loggedNames(payload).slice(0, LOGGED)) {
      add(gm.scalar(payload, name), name.slice("logged.".length), { visible: loss ? "legendonly" : true, line: { width: 1.2 } });
    }
    return [...out, ...gm.interventions(payload, "clip")];
  }

  /** Whether the loss spans so much that a linear axis would show one stroke. */
  function spansDecades(payload) {
    const loss = gm.scalar(payload, "loss");
    let low = Infinity;
    let high = 0;
    for (const value of loss ? loss.y : []) {
      if (value <= 0) return false;
      if (!Number.isFinite(value)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    return high > DECADES * low;
  }

  gm.section({
    id: "loss",
    depends: ["other", "logLoss"],
    missing: (payload) => (gm.scalar(payload, "loss") || gm.loggedNames(payload).length ? null : payload.run.steps ? "missing.loss" : "missing.steps"),
    build(body) {
      const box = gm.el("input", { type: "checkbox", id: "log-loss", onchange: (event) => gm.set({ logLoss: event.target.checked }) });
      body.append(gm.el("div", { class: "controls" }, gm.field("loss.log", box)), gm.figure("loss", 300));
    },
    draw(payload, body) {
      const logarithmic = gm.state.logLoss === null ? spansDecades(payload) : gm.state.logLoss;
      body.querySelector("#log-loss").checked = logarithmic;
      const node = body.querySelector(".figure");
      const title = { text: gm.t("loss.series"), standoff: 6 };
      const yaxis = logarithmic ? gm.logAxis(gm.t("loss.series")) : gm.axis({ title });
      const layout = { xaxis: gm.stepAxis(payload), yaxis, yaxis2: gm.edgeAxis(), ...gm.findingLines(payload) };
      gm.chart(node, traces(payload), layout, gm.t("loss.title"), logarithmic);
      gm.followSteps(node);
    },
  });
})(window.gradmedic);
