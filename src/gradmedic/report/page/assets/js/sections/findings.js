"use strict";
// What was found, the most likely root cause first: evidence beside its threshold, what to do, and what follows from it.
(function (gm) {
  /** Return the code that carries a remedy out, "" where there is none; as `gradmedic.diagnosis.actions.expression` has it. */
  function codeOf(action) {
    if (!action) return "";
    if (action.kind === "clip" || action.kind === "guard") return `gm.${action.kind}.${action.spec || "default()"}`;
    return action.kind === "init" && action.scheme === "auto" ? "gm.init.suggest(model).apply_()" : "";
  }

  async function copy(text, button) {
    try {
      await navigator.clipboard.writeText(text);
    } catch (error) {
      // Without access to the clipboard (a file, an old browser) the text is selected, ready to be copied.
      const range = document.createRange();
      range.selectNodeContents(button.previousElementSibling);
      window.getSelection().removeAllRanges();
      window.getSelection().addRange(range);
      return;
    }
    button.textContent = gm.t("findings.copied");
    setTimeout(() => {
      button.textContent = gm.t("findings.copy");
    }, 1500);
  }

  gm.copyable = function (text) {
    const button = gm.el("button", { class: "copy", type: "button", text: gm.t("findings.copy") });
    button.addEventListener("click", () => copy(text, button));
    return gm.el("span", { class: "copyable" }, gm.el("code", { text: gm.plain(text) }), button);
  };

  const written = (value) => gm.number(value === "Infinity" ? Infinity : value === "-Infinity" ? -Infinity : value);

  function evidence(finding) {
    if (!finding.evidence.length) return null;
    const head = gm.el("tr", {}, ...["evidence", "value", "threshold"].map((key) => gm.el("th", { scope: "col", text: gm.t(`findings.${key}`) })));
    const rows = finding.evidence.map((entry) => {
      const unit = entry.unit ? ` ${gm.unitName(entry.unit, entry.value)}` : "";
      return gm.el("tr", {}, gm.el("th", { scope: "row", text: gm.plain(gm.evidenceName(entry.name)) }),
        gm.el("td", { text: written(entry.value) + unit }),
        gm.el("td", { text: entry.threshold === null ? "" : written(entry.threshold) }));
    });
    return gm.el("div", { class: "scroll" }, gm.el("table", { class: "evidence" }, gm.el("thead", {}, head), gm.el("tbody", {}, rows)));
  }

  function remedies(finding) {
    if (!finding.remedies.length) return null;
    const items = finding.remedies.map((remedy) => {
      const code = codeOf(remedy.action);
      return gm.el("li", { text: gm.plain(remedy.text) }, code ? gm.copyable(code) : null);
    });
    return gm.el("div", {}, gm.el("h4", { text: gm.t("findings.remedies") }), gm.el("ol", {}, items));
  }

  /** Return names as buttons that choose the layer, where the page knows it. */
  function places(payload, names) {
    if (!names.length) return null;
    const list = gm.el("p", { class: "places" }, gm.el("span", { class: "caption", text: gm.t("findings.where") }));
    for (const name of names.slice(0, 12)) {
      const index = payload.tensors.findIndex((tensor) => tensor.name === name || tensor.module === name);
      const text = gm.shorten(name, 48);
      if (index < 0) list.append(gm.el("code", { text, title: gm.plain(name) }));
      else {
        const choose = () => gm.set({ tensor: index });
        list.append(gm.el("button", { type: "button", class: "chip", text, title: gm.plain(name), onclick: choose }));
      }
    }
    if (names.length > 12) list.append(gm.el("span", { text: gm.t("verdict.and_more", { n: names.length - 12 }) }));
    return list;
  }

  function folded(payload, finding) {
    if (!finding.folded.length) return null;
    const items = finding.folded.map((entry) => card(payload, entry, "h4"));
    return gm.el("details", { class: "folded" },
      gm.el("summary", { text: gm.t("findings.folded", { n: finding.folded.length }) }), items);
  }

  function card(payload, finding, level) {
    const word = gm.t(`severity.${finding.severity}`);
    const several = payload.optimizers.length > 1 && finding.optimizer;
    const head = gm.el("header", {},
      gm.el("span", { class: "badge" }, gm.icon(finding.severity), gm.el("span", { text: word })),
      gm.el(level, { text: gm.plain(finding.title || finding.name) }),
      gm.el("span", { class: "code", text: gm.plain(finding.code) }),
      gm.el("button", { type: "button", class: "chip step", onclick: () => gm.set({ step: finding.step }), text: gm.t("findings.step", { step: finding.step }) }),
      several ? gm.el("span", { class: "soft", text: gm.plain(finding.optimizer) }) : null,
      gm.el("span", { class: "soft confidence", text: gm.t("findings.confidence", { share: gm.share(finding.confidence) }) }));
    return gm.el("article", { class: `card ${finding.severity}`, id: finding.url_key ? `finding-${finding.url_key}` : null },
      head, gm.el("p", { text: gm.plain(finding.message) }), places(payload, finding.where), evidence(finding),
      remedies(finding),
      gm.el("p", { class: "explain" }, gm.el("span", { class: "caption", text: gm.t("findings.explain") }), gm.copyable(`gradmedic explain ${finding.code}`)),
      folded(payload, finding));
  }

  gm.section({
    id: "findings",
    missing: (payload) => (gm.findings(payload).length ? null : payload.run.steps ? "findings.none" : "missing.steps"),
    draw(payload, body) {
      const open = new Set([...body.querySelectorAll("details[open]")].map((node) => node.parentElement.id));
      gm.clear(body).append(...gm.findings(payload).map((finding) => card(payload, finding, "h3")));
      for (const node of body.querySelectorAll("details")) node.open = open.has(node.parentElement.id) && Boolean(node.parentElement.id);
    },
  });
})(window.gradmedic);
