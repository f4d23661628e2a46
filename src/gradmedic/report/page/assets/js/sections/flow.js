"use strict";
// The flow animation: step by step, the gradient travels from the output to the input.
(function (gm) {
  const SPEEDS = [1, 2, 5, 10, 30]; // recorded steps a second
  const TRAVEL = 0.7; // share of a step's time in which its gradient travels; then the picture rests
  const player = { playing: false, column: null, began: 0, speed: 2, front: 1, flow: null };
  let parts = null;

  const still = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;

  function describe(payload) {
    const flow = player.flow;
    const [largest, smallest] = gm.flowExtremes(flow, player.column);
    const step = gm.unpack(flow.grid.first)[player.column];
    let text = gm.t("flow.step", { step });
    if (largest >= 0) {
      const value = (index) => flow.values[index][player.column];
      text += gm.t("flow.extremes", {
        largest: gm.shorten(flow.names[largest], 40), most: gm.number(value(largest)),
        smallest: gm.shorten(flow.names[smallest], 40), least: gm.number(value(smallest)),
      });
    }
    const broken = flow.values.filter((row) => !Number.isFinite(row[player.column]) && !Number.isNaN(row[player.column])).length;
    if (broken) text += gm.t("flow.broken", { n: broken });
    parts.readout.textContent = text;
    parts.slider.setAttribute("aria-valuetext", gm.t("flow.step", { step }));
    parts.canvas.setAttribute("aria-label", `${gm.t("flow.title")}: ${text}`);
  }

  function chosenName(payload) {
    const tensor = gm.tensor(payload);
    if (!tensor) return null;
    return player.flow.grid.of === "tensors" ? tensor.name : tensor.module;
  }

  function paint() {
    const payload = gm.payload();
    if (!payload || !player.flow) return;
    parts.place = gm.paintFlow(parts.canvas, player.flow, player.column, player.front, chosenName(payload));
  }

  function go(column) {
    player.column = Math.min(player.flow.columns - 1, Math.max(0, column));
    player.front = 1;
    parts.slider.value = String(player.column);
    gm.set({ step: gm.unpack(player.flow.grid.first)[player.column] });
    describe(gm.payload());
    paint();
  }

  function tick(now) {
    if (!player.playing) return;
    const elapsed = ((now - player.began) / 1000) * player.speed;
    const travels = !still() && player.speed <= 5;
    if (elapsed >= 1) {
      const next = player.column + Math.floor(elapsed);
      if (player.column >= player.flow.columns - 1) {
        play(false);
        return;
      }
      player.began = now;
      go(next);
      player.front = travels ? 0 : 1;
    } else if (travels) player.front = Math.min(1, elapsed / TRAVEL);
    paint();
    requestAnimationFrame(tick);
  }

  function play(on) {
    if (on && player.column >= player.flow.columns - 1) go(0);
    player.playing = on;
    parts.play.textContent = on ? "❚❚" : "▶";
    parts.play.setAttribute("aria-pressed", String(on));
    parts.play.dataset.wordLabel = on ? "flow.pause" : "flow.play";
    gm.translate(parts.play.parentElement);
    if (on) {
      player.began = performance.now();
      player.front = still() || player.speed > 5 ? 1 : 0;
      requestAnimationFrame(tick);
    } else {
      player.front = 1;
      paint();
    }
  }

  function move(by) {
    play(false);
    go(player.column + by);
  }

  function onKey(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 };
    if (event.target.tagName === "SELECT" || (event.target.tagName === "INPUT" && event.key !== " ")) return;
    if (event.key === " " && event.target.tagName !== "BUTTON") play(!player.playing);
    else if (event.key in moves) move(moves[event.key]);
    else return;
    event.preventDefault();
  }

  function onClick(event) {
    const box = parts.canvas.getBoundingClientRect();
    const layer = Math.floor(((event.clientX - box.left - parts.place.left) / parts.place.width) * player.flow.names.length);
    if (!(layer in player.flow.names)) return;
    const tensor = gm.tensorOfRow(gm.payload(), player.flow.grid.of, player.flow.names[layer]);
    if (tensor !== null) gm.set({ tensor });
    const below = event.clientY - box.top - gm.FLOW.stream - gm.FLOW.labels;
    if (below >= 0) {
      play(false);
      go(Math.floor((below / gm.FLOW.steps) * player.flow.columns));
    }
  }

  function build(body) {
    const button = (key, text, onclick, id) => gm.el("button", { type: "button", "data-word-label": key, text, onclick, id });
    parts = {
      play: button("flow.play", "▶", () => play(!player.playing), "flow-play"),
      slider: gm.el("input", { type: "range", id: "flow-slider", min: 0, value: 0, "data-word-label": "flow.slider", oninput: () => {
        play(false);
        go(Number(parts.slider.value));
      } }),
      speed: gm.el("select", { id: "flow-speed", onchange: (event) => {
        player.speed = Number(event.target.value);
      } }),
      canvas: gm.el("canvas", { class: "flow", role: "img", onclick: onClick, style: `height:${gm.FLOW.height}px` }),
      readout: gm.el("p", { class: "readout", id: "flow-readout" }),
    };
    const stage = gm.el("div", { class: "stage", id: "flow-stage", tabindex: "0", onkeydown: onKey },
      gm.el("div", { class: "controls player" }, button("flow.back", "‹", () => move(-1), "flow-back"), parts.play,
        button("flow.forward", "›", () => move(1), "flow-forward"), parts.slider, gm.field("flow.speed", parts.speed)),
      parts.readout,
      gm.el("p", { class: "way" }, gm.el("span", { "data-word": "flow.output" }), gm.el("i", {}), gm.el("span", { "data-word": "flow.input" })),
      parts.canvas);
    body.append(stage, gm.el("div", { class: "keys" }));
    new ResizeObserver(() => paint()).observe(parts.canvas);
  }

  gm.section({
    id: "flow",
    depends: ["tensor", "step"],
    missing: (payload) => (gm.flowLayers(payload) ? null : payload.run.steps ? "missing.tables" : "missing.steps"),
    build,
    draw(payload, body) {
      const flow = gm.flowLayers(payload);
      if (player.flow !== flow) player.flow = flow;
      parts.slider.max = String(flow.columns - 1);
      gm.fill(parts.speed, SPEEDS.map((speed) => [speed, gm.t("flow.per_second", { n: speed })]), player.speed);
      gm.clear(body.querySelector(".keys")).append(gm.heatKey());
      if (!player.playing) player.column = gm.columnAt(flow.grid, gm.state.step);
      player.column = Math.min(player.column, flow.columns - 1);
      parts.slider.value = String(player.column);
      describe(payload);
      paint();
    },
  });
})(window.gradmedic);
