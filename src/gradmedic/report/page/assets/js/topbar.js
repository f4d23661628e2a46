"use strict";
// The bar that stays in sight: which run, which optimizer, which layer, in which language and light.
(function (gm) {
  const find = (id) => document.getElementById(id);

  gm.buildTopbar = function () {
    find("run").addEventListener("change", (event) => gm.set({ run: event.target.value }));
    find("other").addEventListener("change", (event) => gm.set({ other: event.target.value }));
    find("optimizer").addEventListener("change", (event) => gm.set({ optimizer: event.target.value }));
    find("tensor").addEventListener("change", (event) => gm.set({ tensor: Number(event.target.value) }));
    find("lang").addEventListener("change", (event) => gm.set({ lang: event.target.value }));
    find("theme").addEventListener("change", (event) => {
      gm.remember("theme", event.target.value);
      gm.set({ theme: event.target.value });
    });
  };

  function runLabel(run, index) {
    return gm.shorten(run.name || gm.t("topbar.unnamed", { n: index + 1 }), 40);
  }

  /** Fill the selectors from what there is. */
  gm.fillTopbar = function () {
    const payload = gm.payload();
    const labels = gm.runs.map((run, index) => [run.id, runLabel(run, index)]);
    gm.fill(find("run"), labels, gm.state.run);
    find("run").title = gm.plain((gm.runOf(gm.state.run) || { name: "" }).name);
    const others = labels.filter(([id]) => String(id) !== String(gm.state.run));
    gm.fill(find("other"), [["", gm.t("topbar.nothing")], ...others], gm.state.other);
    find("other").closest("label").hidden = others.length === 0;
    gm.fill(find("theme"), ["auto", "light", "dark"].map((theme) => [theme, gm.t(`topbar.${theme}`)]), gm.state.theme);
    gm.fill(find("lang"), [["en", "English"], ["zh", "中文"]], gm.state.lang);
    const optimizers = payload ? payload.optimizers : [];
    gm.fill(find("optimizer"), optimizers.map((name) => [name, gm.shorten(name || "–", 30)]), gm.state.optimizer);
    find("optimizer").closest("label").hidden = optimizers.length < 2;
    const tensors = payload ? payload.tensors : [];
    const marked = (tensor) => (tensor.findings.length ? "● " : "") + gm.shorten(tensor.name, 60);
    gm.fill(find("tensor"), tensors.map((tensor, index) => [index, marked(tensor)]), gm.state.tensor);
    find("tensor").closest("label").hidden = tensors.length === 0;
  };

  gm.showLight = function () {
    document.documentElement.dataset.theme = gm.dark() ? "dark" : "light";
    document.documentElement.lang = gm.state.lang === "zh" ? "zh-CN" : "en";
  };

  /** Say whether the run goes on, has ended, or the server is gone. */
  gm.showStatus = function (status) {
    const node = find("status");
    const payload = gm.payload();
    const ended = payload && payload.run.ended;
    const key = status || (ended ? "ended" : gm.source && gm.source.live ? "live" : "recorded");
    node.className = `status ${key}`;
    node.dataset.word = `status.${key}`;
    node.textContent = gm.t(`status.${key}`);
  };
})(window.gradmedic);
