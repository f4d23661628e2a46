"use strict";
// Puts the page together, and starts it.
(function (gm) {
  let connected = true;

  /** After the run or its data have changed: choices that no longer exist fall back. */
  function settle(runChanged) {
    const payload = gm.payload();
    if (!payload) return;
    const changes = {};
    if (!payload.optimizers.includes(gm.state.optimizer)) changes.optimizer = payload.optimizers[0] || "";
    if (runChanged) Object.assign(changes, { tensor: gm.worstTensor(payload), step: gm.startStep(payload), page: 0 });
    else if (gm.state.tensor >= payload.tensors.length) changes.tensor = 0;
    if (gm.state.other === String(gm.state.run)) changes.other = "";
    gm.set(changes);
  }

  let settledRun = null; // the run whose first data have been seen

  function takeData() {
    const first = settledRun !== gm.state.run && gm.payload() !== null;
    if (first) settledRun = gm.state.run;
    settle(first);
    gm.set({ version: gm.state.version + 1 });
  }

  /** Return the run to show first, and the one to lay over it: as the address has them, else the first, and none. */
  function chosenRuns(runs) {
    const asked = gm.readAddress();
    const ids = runs.map((run) => String(run.id));
    const compared = document.documentElement.dataset.compare === "true" ? ids[1] : undefined;
    const run = ids.includes(asked.run) ? asked.run : ids[0];
    const other = asked.other === undefined ? compared : asked.other;
    return { run, other: ids.includes(other) && other !== run ? other : "" };
  }

  function keepChoices() {
    const several = gm.runs.length > 1;
    const lang = gm.state.lang === document.documentElement.dataset.lang ? undefined : gm.state.lang;
    gm.writeAddress({ lang, run: several ? gm.state.run : undefined, other: several ? gm.state.other : undefined });
  }

  const sources = {
    onRuns(runs) {
      const before = gm.runs.map((run) => `${run.id} ${run.name}`).join("\n");
      gm.runs = runs;
      if (gm.state.run === null && runs.length) gm.set(chosenRuns(runs));
      else if (before !== runs.map((run) => `${run.id} ${run.name}`).join("\n")) gm.fillTopbar();
    },
    wanted: () => gm.runs.filter((run) => run.id === String(gm.state.run) || run.id === String(gm.state.other)),
    onData: takeData,
    onConnection(good) {
      connected = good;
      gm.showStatus(good ? null : "lost");
    },
  };

  function load(id) {
    const run = gm.runOf(id);
    if (run) gm.source.load(run);
  }

  gm.onChange((changed) => {
    if (changed.has("run") || changed.has("other")) {
      load(gm.state.run);
      if (gm.state.other !== "") load(gm.state.other);
      if (changed.has("run")) takeData();
    }
    if (changed.has("theme") || changed.has("lang")) gm.showLight();
    if (changed.has("lang")) {
      gm.translate(document);
    }
    if (changed.has("lang") || changed.has("run") || changed.has("other")) keepChoices();
    gm.fillTopbar();
    const run = gm.runOf(gm.state.run);
    document.title = run && run.name ? `${gm.shorten(run.name, 60)} · ${gm.t("page.title")}` : gm.t("page.title");
    gm.showStatus(connected ? null : "lost");
    gm.markChanged(changed);
  });

  function printing(on) {
    gm.printing = on;
    gm.showLight();
    gm.drawAll();
  }

  gm.buildTopbar();
  gm.buildSections(document.querySelector("main"), document.querySelector("#navigation"));
  gm.translate(document);
  gm.showLight();
  window.addEventListener("beforeprint", () => printing(true));
  window.addEventListener("afterprint", () => printing(false));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (gm.state.theme === "auto") {
      gm.showLight();
      gm.markChanged(new Set(["theme"]));
    }
  });
  gm.source = document.documentElement.dataset.live === "true" ? gm.liveSource() : gm.embeddedSource();
  gm.fillTopbar();
  gm.source.start(sources);
  const { section } = gm.readAddress();
  const again = performance.getEntriesByType("navigation")[0]?.type !== "navigate"; // then the browser knows the place
  if (section && !again && document.getElementById(section)) document.getElementById(section).scrollIntoView({ behavior: "instant" });
  // A link within the page has taken the choices out of the address.
  window.addEventListener("hashchange", keepChoices);
})(window.gradmedic);
