"use strict";
// How gradients are spread within each tensor: boxes from the log2 histograms, at one step.
(function (gm) {
  const BOXES = 80; // at most so many at once

  const ofOptimizer = (payload) => payload.boxes.filter((box) => (!box.optimizer || box.optimizer === gm.state.optimizer) && box.rows.length);

  /** Return the index of the step among those that have boxes that is nearest to the chosen one. */
  function nearest(boxes) {
    if (gm.state.step === null) return boxes.length - 1;
    let best = 0;
    boxes.forEach((box, index) => {
      if (Math.abs(box.step - gm.state.step) < Math.abs(boxes[best].step - gm.state.step)) best = index;
    });
    return best;
  }

  function pick(payload, box) {
    const matches = gm.matcher(gm.state.filter);
    let places = box.rows.map((tensor, place) => ({ tensor, place })).filter(({ tensor }) => matches(payload.tensors[tensor].name));
    if (gm.state.sort === "worst") places = [...places].sort((one, two) => payload.tensors[two.tensor].trouble - payload.tensors[one.tensor].trouble);
    if (places.length <= BOXES) return places;
    // The part that holds the chosen one; it stays while the choice does not leave it.
    const chosen = Math.max(0, places.findIndex(({ tensor }) => tensor === gm.state.tensor));
    const from = Math.floor(chosen / BOXES) * BOXES;
    return places.slice(from, from + BOXES);
  }

  const positive = (value) => (value > 0 && Number.isFinite(value) ? value : null);

  function traces(payload, box, places) {
    const palette = gm.palette();
    const rows = places.map(({ tensor, place }, x) => ({ x, name: gm.markup(payload.tensors[tensor].name, 70), q: gm.unpackRow(box.q, place) }));
    // A tensor without a single finite, nonzero element has no quantiles: it gets a mark in place of a box.
    const full = rows.filter(({ q }) => positive(q[3]) !== null);
    const bare = rows.filter(({ q }) => positive(q[3]) === null);
    const column = (at) => full.map(({ q }) => positive(q[at]));
    const dots = (at, name) => ({
      type: "scatter", mode: "markers", x: full.map(({ x }) => x), y: column(at), name, text: full.map((row) => row.name), hovertemplate: "%{text}<br>%{y:.3g}",
      marker: { symbol: "line-ew-open", size: 5, color: palette.soft },
    });
    const out = [
      {
        type: "box", x: full.map(({ x }) => x), q1: column(2), median: column(3), q3: column(4), lowerfence: column(1), upperfence: column(5),
        name: gm.t("distribution.box"), boxpoints: false, line: { width: 1.2 }, marker: { color: palette.series[0] }, width: 0.7,
      },
      dots(6, gm.t("distribution.max")),
      dots(0, gm.t("distribution.min")),
    ];
    if (bare.length) {
      out.push({
        type: "scatter", mode: "markers", x: bare.map(({ x }) => x), y: bare.map(() => 0.03), yaxis: "y2", name: gm.t("distribution.bare"), text: bare.map((row) => row.name),
        hovertemplate: "%{text}", marker: { symbol: "x-thin-open", size: 8, color: palette.severity.error },
      });
    }
    return out;
  }

  gm.section({
    id: "distribution",
    depends: ["step", "tensor", "filter", "sort"],
    missing: (payload) => (ofOptimizer(payload).length ? null : payload.run.steps ? "missing.histograms" : "missing.steps"),
    build(body) {
      const slider = gm.el("input", { type: "range", id: "box-slider", min: 0, "data-word-label": "distribution.slider" });
      slider.addEventListener("input", () => gm.set({ step: ofOptimizer(gm.payload())[Number(slider.value)].step }));
      body.append(gm.el("div", { class: "controls player" }, slider, gm.el("output", { id: "box-step" })), gm.figure("distribution", 360));
    },
    draw(payload, body) {
      const boxes = ofOptimizer(payload);
      const index = nearest(boxes);
      const box = boxes[index];
      const slider = body.querySelector("#box-slider");
      slider.max = String(boxes.length - 1);
      slider.value = String(index);
      const places = pick(payload, box);
      const step = gm.t("flow.step", { step: box.step });
      slider.setAttribute("aria-valuetext", step);
      const shown = box.rows.length > places.length ? gm.t("distribution.shown", { n: places.length, total: box.rows.length }) : "";
      body.querySelector("#box-step").textContent = step + shown;
      const node = body.querySelector(".figure");
      const drawn = [gm.state.version, gm.state.run, gm.state.optimizer, gm.state.lang, gm.dark(), gm.printing, index, gm.state.filter, gm.state.sort, places.length && places[0].tensor].join("|");
      node.places = places;
      if (node.drawn !== drawn) {
        node.drawn = drawn;
        const [xaxis, room] = gm.nameAxis(places.map(({ tensor }) => payload.tensors[tensor].name), body.clientWidth);
        const layout = { hovermode: "closest", margin: { l: 60, r: 18, t: gm.TOP, b: room }, boxmode: "overlay", xaxis, yaxis: gm.logAxis(gm.t("distribution.axis")), yaxis2: gm.edgeAxis() };
        gm.chart(node, traces(payload, box, places), layout, `${gm.t("distribution.title")}, ${step}`, `${gm.state.filter}${gm.state.sort}${places.length && places[0].tensor}`);
      }
      const mark = () => gm.markPlace(node, "x", node.places.findIndex(({ tensor }) => tensor === gm.state.tensor));
      mark();
      if (node.dataset.listening) return;
      node.dataset.listening = "1";
      node.on("plotly_afterplot", mark);
      node.on("plotly_click", (event) => gm.set({ tensor: node.places[Math.round(event.points[0].x)].tensor }));
    },
  });
})(window.gradmedic);
