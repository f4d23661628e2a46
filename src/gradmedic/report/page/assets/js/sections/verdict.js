"use strict";
// The first thing to read: one sentence on how the run is, and the facts that everyone asks for.
(function (gm) {
  gm.SEVERITIES = ["critical", "error", "warning", "info"];

  const lastFinite = function (series) {
    for (let at = series.y.length - 1; at >= 0; at -= 1) if (!Number.isNaN(series.y[at])) return series.y[at];
    return null;
  };

  gm.placeOf = function (names, shown) {
    const listed = names.slice(0, shown).map((name) => gm.shorten(name, 60)).join(gm.t("verdict.comma"));
    return names.length > shown ? listed + gm.t("verdict.and_more", { n: names.length - shown }) : listed;
  };

  function sentence(payload) {
    const findings = gm.findings(payload);
    const faults = findings.filter((finding) => finding.severity !== "info");
    const steps = payload.run.steps;
    const values = { n: faults.length || findings.length, steps };
    if (!steps && !findings.length) return { state: "unknown", head: gm.t("verdict.untrained"), tail: "" };
    if (!faults.length) {
      const head = gm.t(findings.length ? "verdict.notes" : "verdict.healthy", values);
      const tails = [...(payload.alone ? ["verdict.alone"] : []), ...(payload.run.ended ? [] : ["verdict.so_far"])];
      return { state: "healthy", head, tail: tails.map((key) => gm.t(key)).join(" ") };
    }
    const first = faults[0];
    const where = first.where.length ? gm.t("verdict.place", { where: gm.placeOf(first.where, 1) }) : "";
    const tail = gm.t("verdict.cause", { code: first.code, title: first.title, where, step: first.step });
    const all = faults.flatMap((finding) => [finding, ...finding.folded]).map((finding) => finding.severity);
    return { state: gm.SEVERITIES.find((severity) => all.includes(severity)) || first.severity, head: gm.t("verdict.found", values), tail };
  }

  function facts(payload) {
    const run = payload.run;
    const loss = gm.scalar(payload, "loss");
    const norm = gm.scalar(payload, "grad_norm");
    const number = (series) => {
      if (!series) return "–";
      const value = lastFinite(series);
      return Number.isFinite(value) || value === null ? gm.number(value) : gm.t("value.nonfinite");
    };
    const ended = run.ended ? gm.t("facts.ended") : gm.t("facts.running");
    return [
      ["facts.steps", gm.count(run.steps)],
      ["facts.state", run.reason && run.reason !== "finished" ? `${ended}: ${gm.plain(run.reason)}` : ended],
      ["facts.loss", number(loss)],
      ["facts.norm", number(norm)],
      ["facts.parameters", gm.count(run.parameters)],
      ["facts.tensors", gm.count(run.tensors)],
      ["facts.seconds", gm.seconds(run.seconds)],
      ["facts.overhead", gm.share(run.overhead)],
      ["facts.begun", run.begun ? new Date(run.begun * 1000).toLocaleString(gm.state.lang) : "–"],
    ];
  }

  gm.section({
    id: "verdict",
    draw(payload, body) {
      const { state, head, tail } = sentence(payload);
      const band = gm.el("div", { class: `verdict ${state}`, role: "status" }, gm.icon(state),
        gm.el("div", {}, gm.el("p", { class: "head", text: head }), tail ? gm.el("p", { class: "tail", text: tail }) : null));
      const list = gm.el("dl", { class: "facts" });
      for (const [key, value] of facts(payload)) {
        list.append(gm.el("div", {}, gm.el("dt", { text: gm.t(key) }), gm.el("dd", { text: value })));
      }
      gm.clear(body).append(band, list);
    },
  });
})(window.gradmedic);
