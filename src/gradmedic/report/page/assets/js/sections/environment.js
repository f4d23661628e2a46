"use strict";
// Where the run was made, what could not be read of its record, and what nobody could judge.
(function (gm) {
  function list(key, entries) {
    if (!entries.length) return null;
    return gm.el("div", {}, gm.el("h3", { text: gm.t(key) }), gm.el("ul", {}, entries.map((entry) => gm.el("li", { text: gm.plain(entry) }))));
  }

  const FLUSH = 64; // steps that a rank may be ahead because its file was written a moment later

  /** Return the words on ranks that made different numbers of steps, none where they agree. */
  function apart(run) {
    const counts = run.ranks.map(([, steps]) => steps);
    const most = Math.max(...counts);
    const least = Math.min(...counts);
    if (!counts.length || most - least <= (run.ended ? 0 : FLUSH)) return [];
    const slowest = run.ranks.filter(([, steps]) => steps < most).map(([rank, steps]) => `${rank}: ${gm.count(steps)}`);
    return [gm.t("record.ranks", { most, others: slowest.slice(0, 8).join(gm.t("verdict.comma")) + (slowest.length > 8 ? " …" : "") })];
  }

  gm.section({
    id: "record",
    missing(payload) {
      const silent = (payload.not_judged[gm.state.lang] || []).length === 0;
      return payload.run.problems.length || payload.run.thinned || !silent || apart(payload.run).length ? null : "record.fine";
    },
    draw(payload, body) {
      const problems = [...payload.run.problems, ...apart(payload.run), ...(payload.run.thinned ? [gm.t("record.thinned")] : [])];
      gm.clear(body).append(...[list("record.problems", problems), list("record.not_judged", payload.not_judged[gm.state.lang] || [])].filter(Boolean));
    },
  });

  gm.section({
    id: "environment",
    draw(payload, body) {
      const run = payload.run;
      const own = [["environment.run", run.name], ["environment.path", run.path], ["environment.script", run.script], ["environment.processes", gm.count(run.processes)]];
      const rows = [...own.filter(([, value]) => value).map(([key, value]) => [gm.t(key), value]), ...run.environment];
      gm.clear(body).append(gm.el("div", { class: "scroll" }, gm.el("table", { class: "pairs" },
        gm.el("tbody", {}, rows.map(([key, value]) => gm.el("tr", {}, gm.el("th", { scope: "row", text: gm.plain(key) }), gm.el("td", { text: gm.plain(value) })))))));
    },
  });
})(window.gradmedic);
