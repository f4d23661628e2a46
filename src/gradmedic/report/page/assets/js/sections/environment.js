"use strict";
// Where the run was made, what could not be read of its record, and what nobody could judge.
(function (gm) {
  function list(key, entries) {
    if (!entries.length) return null;
    return gm.el("div", {}, gm.el("h3", { text: gm.t(key) }), gm.el("ul", {}, entries.map((entry) => gm.el("li", { text: gm.plain(entry) }))));
  }

  gm.section({
    id: "record",
    missing(payload) {
      const silent = (payload.not_judged[gm.state.lang] || []).length === 0;
      return payload.run.problems.length || payload.run.thinned || !silent ? null : "record.fine";
    },
    draw(payload, body) {
      const problems = [...payload.run.problems, ...(payload.run.thinned ? [gm.t("record.thinned")] : [])];
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
