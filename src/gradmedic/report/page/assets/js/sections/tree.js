"use strict";
// The model's modules, in the order of their definition: shapes, state, and how far each is from healthy.
(function (gm) {
  const SHOWN = 300; // rows before "show all"
  let all = false;
  const closed = new Set();

  function visible(payload) {
    const matches = gm.matcher(gm.state.search);
    if (gm.state.search.trim()) return payload.tree.filter((module) => matches(module.name) || matches(module.kind || ""));
    const rows = [];
    let hiddenBelow = Infinity;
    for (const module of payload.tree) {
      if (module.depth > hiddenBelow) continue;
      hiddenBelow = closed.has(module.name) ? module.depth : Infinity;
      rows.push(module);
    }
    return rows;
  }

  function row(payload, module, hasChildren) {
    const found = gm.tensorOfRow(payload, "modules", module.name);
    const index = found === null ? -1 : found;
    const label = module.name ? gm.plain(module.name.split(".").pop()) : gm.t("tree.model");
    const toggle = hasChildren && !gm.state.search.trim()
      ? gm.el("button", { type: "button", class: "toggle", "aria-expanded": String(!closed.has(module.name)), "aria-label": `${gm.t("tree.toggle")} ${gm.plain(module.name)}`, text: closed.has(module.name) ? "▸" : "▾", onclick: () => {
        if (!closed.delete(module.name)) closed.add(module.name);
        fill(gm.payload(), document.getElementById("module-tree"));
      } })
      : gm.el("span", { class: "toggle" });
    const name = index >= 0
      ? gm.el("button", { type: "button", class: "name", text: gm.state.search.trim() ? gm.shorten(module.name, 60) : gm.shorten(label, 48), title: gm.plain(module.name), onclick: () => gm.set({ tensor: index }) })
      : gm.el("span", { class: "name", text: gm.state.search.trim() ? gm.shorten(module.name, 60) : gm.shorten(label, 48), title: gm.plain(module.name) });
    const shapes = module.shapes.map((shape) => `[${shape.join(" × ")}]`).join("  ");
    return gm.el("tr", {},
      gm.el("th", { scope: "row" }, gm.el("span", { class: "indent", style: `padding-left:${gm.state.search.trim() ? 0 : Math.min(module.depth, 12) * 14}px` }, toggle, name)),
      gm.el("td", { text: gm.shorten(module.kind || "", 30) }), gm.el("td", { class: "number", text: module.parameters ? gm.count(module.parameters) : "" }),
      gm.el("td", { class: "shapes", text: shapes }),
      gm.el("td", {}, module.state ? gm.el("span", { class: `state ${String(module.state).replace(/[^a-z]/g, "")}`, text: gm.stateName(module.state) }) : null),
      gm.el("td", { class: "number", text: module.trouble > 0 ? gm.number(module.trouble) : "" }));
  }

  /** Mark the row of the chosen layer. */
  function mark() {
    const table = document.getElementById("module-tree");
    const tensor = gm.payload() && gm.tensor(gm.payload());
    if (!table || !table.modules) return;
    for (const row of table.querySelectorAll("tr.chosen")) row.classList.remove("chosen");
    const row = tensor && table.tBodies[0].rows[table.modules.indexOf(tensor.module)];
    if (row) row.classList.add("chosen");
  }

  gm.onChange((changed) => {
    if (changed.has("tensor")) mark();
  });

  function fill(payload, table) {
    const rows = visible(payload);
    const shown = all ? rows : rows.slice(0, SHOWN);
    const parents = new Set(payload.tree.filter((module, at) => at + 1 < payload.tree.length && payload.tree[at + 1].depth > module.depth).map((module) => module.name));
    gm.clear(table.tBodies[0]).append(...shown.map((module) => row(payload, module, parents.has(module.name))));
    table.modules = shown.map((module) => module.name);
    mark();
    const more = document.getElementById("tree-more");
    more.hidden = rows.length <= shown.length;
    more.textContent = gm.t("tree.more", { n: rows.length - shown.length });
  }

  gm.section({
    id: "tree",
    depends: ["search"],
    missing: (payload) => (payload.tree.length ? null : "missing.tree"),
    build(body) {
      const search = gm.el("input", { type: "search", id: "search", spellcheck: "false", autocomplete: "off", "data-word-placeholder": "heatmap.filter_hint", oninput: (event) => gm.set({ search: event.target.value }) });
      const columns = ["module", "kind", "parameters", "shapes", "state", "trouble"];
      const head = gm.el("tr", {}, columns.map((key) => gm.el("th", { scope: "col", "data-word": `tree.${key}`, "data-word-title": key === "trouble" ? "tree.trouble_about" : null })));
      const more = gm.el("button", { type: "button", id: "tree-more", onclick: () => {
        all = true;
        fill(gm.payload(), document.getElementById("module-tree"));
      } });
      body.append(gm.el("div", { class: "controls" }, gm.field("tree.search", search)),
        gm.el("div", { class: "scroll tall", tabindex: "0" }, gm.el("table", { id: "module-tree" }, gm.el("thead", {}, head), gm.el("tbody", {}))), more, gm.el("p", { class: "soft", id: "trouble-about", "data-word": "tree.trouble_about" }));
    },
    draw: (payload, body) => fill(payload, body.querySelector("#module-tree")),
  });
})(window.gradmedic);
