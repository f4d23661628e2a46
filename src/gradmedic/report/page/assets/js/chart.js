"use strict";
// Plotly, with the page's look. Zoom and hidden lines survive new data: what belongs to one run and one figure has one uirevision.
(function (gm) {
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'PingFang SC', 'Microsoft YaHei', 'Noto Sans CJK SC', sans-serif";

  gm.TOP = 32; // above the drawing, pixels: the tool bar has room there, and covers no step
  const PAPER = 690; // pixels between the margins of a sheet

  /** What has been drawn since somebody last set it to nothing: an interaction must not draw what it does not change. */
  gm.drawn = { figures: [], points: 0 };

  function axis(palette, extra) {
    return {
      gridcolor: palette.grid, linecolor: palette.grid, zerolinecolor: palette.grid, tickcolor: palette.grid,
      ticks: "outside", ticklen: 4, exponentformat: "power", automargin: true,
      // Plotly measures every label to hide those that reach beyond the figure: none does here, and to measure takes as long as to draw.
      ticklabeloverflow: "allow", ...extra,
    };
  }

  gm.axis = (extra) => axis(gm.palette(), extra);
  /** The axis of steps: the whole run, whatever lies at its edges. */
  gm.stepAxis = function (payload) {
    const [first, last] = gm.stepRange(payload);
    const pad = Math.max(0.5, 0.012 * (last - first));
    return gm.axis({ title: { text: gm.t("axis.step"), standoff: 6 }, tickformat: ",d", tickangle: 0, automargin: false, range: [first - pad, last + pad], nticks: Math.max(4, Math.min(12, Math.floor(window.innerWidth / 90))) });
  };
  // With a format of their own, minor ticks show whole numbers ("0.02") where Plotly would show single digits ("2").
  gm.logAxis = (title, extra) => gm.axis({ type: "log", tickformat: ".4~g", nticks: 3, title: { text: title, standoff: 6 }, ...extra });
  /** An axis over the same area that runs from 0 to 1, for marks at its edges. */
  gm.edgeAxis = (over) => ({ overlaying: over || "y", range: [0, 1], fixedrange: true, visible: false });

  let ruler = null;
  /** Return the width of the widest of some labels in pixels: cheaper than to let Plotly measure each of them. */
  gm.widthOf = function (labels, size) {
    ruler = ruler || document.createElement("canvas").getContext("2d");
    ruler.font = `${size}px ${FONT}`;
    return labels.reduce((widest, label) => Math.max(widest, ruler.measureText(label).width), 0);
  };

  /** Return an axis of names that stand aslant below the figure, and the margin that they need: [axis, pixels]. */
  gm.nameAxis = function (names, width) {
    const stride = Math.ceil(names.length / Math.max(4, Math.floor(width / 24)));
    const tickvals = [];
    for (let at = 0; at < names.length; at += stride) tickvals.push(at);
    const labels = tickvals.map((at) => gm.shorten(names[at] || "(model)", 20));
    const room = Math.ceil(gm.widthOf(labels, 10) * 0.72) + 18;
    return [gm.axis({ tickvals, ticktext: labels.map((label) => gm.markup(label)), tickangle: -45, tickfont: { size: 10 }, range: [-0.6, names.length - 0.4], showgrid: false, zeroline: false, automargin: false }), room];
  };

  /** Put the line of the chosen step where the figure's axis has that step; cheap enough for every frame of an animation. */
  gm.moveCursor = function (node) {
    const cursor = node.nextElementSibling;
    const layout = node._fullLayout;
    cursor.hidden = true;
    if (gm.state.step === null || !layout || !layout.xaxis || !node.dataset.steps) return;
    const place = layout.xaxis.l2p(gm.state.step);
    if (!(place >= 0 && place <= layout.xaxis._length)) return;
    cursor.hidden = false;
    cursor.style.transform = `translateX(${layout.xaxis._offset + place}px)`;
    cursor.style.top = `${layout._size.t}px`;
    cursor.style.height = `${layout._size.h}px`;
  };

  gm.onChange((changed) => {
    if (changed.has("step")) for (const node of document.querySelectorAll(".figure[data-steps]")) gm.moveCursor(node);
  });

  /** Return by how many decades the positive values that traces draw on an axis differ. */
  function decades(traces, name) {
    let low = Infinity;
    let high = 0;
    for (const trace of traces) {
      if ((trace.yaxis || "y") !== name || trace.visible === "legendonly") continue;
      for (const value of trace.y || []) {
        if (value > 0 && value < low) low = value;
        if (value > high && value < Infinity) high = value;
      }
    }
    return high > low ? Math.log10(high / low) : 0;
  }

  /** Over three to four decades three ticks are a hundredfold apart, and only one of them may lie on the axis. */
  function moreTicks(layout, traces) {
    for (const key of Object.keys(layout).filter((name) => /^yaxis/.test(name) && layout[name].type === "log")) {
      const range = layout[key].range;
      const span = range ? Math.abs(range[1] - range[0]) : 1.12 * decades(traces, key.replace("axis", ""));
      if (span > 2.9 && span < 4.1) layout[key] = { ...layout[key], nticks: 4 };
    }
  }

  /** Draw or redraw a figure. */
  gm.chart = function (node, traces, layout, label, revision) {
    const palette = gm.palette();
    const height = layout.height || parseInt(node.style.height, 10);
    node.style.height = `${height}px`;
    const named = traces.filter((trace) => trace.showlegend !== false && trace.type !== "heatmap").length > 1;
    const full = {
      // The screen is no measure of a sheet of paper: figures get a width that fits on one.
      ...(gm.printing ? { width: PAPER } : {}),
      showlegend: named,
      autosize: !gm.printing,
      font: { family: FONT, size: 12, color: palette.ink },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 60, r: 18, t: gm.TOP, b: 44 },
      colorway: palette.series,
      hovermode: "x unified",
      hoverlabel: { bgcolor: palette.panel, bordercolor: palette.zero, font: { color: palette.ink, size: 12 }, namelength: 60 },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11 }, itemwidth: 30 },
      dragmode: "zoom",
      uirevision: `${gm.state.run}|${gm.state.optimizer}|${revision || ""}`,
      ...layout,
      height,
    };
    const config = {
      displaylogo: false,
      responsive: true,
      displayModeBar: "hover",
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
      // Nothing of a run leaves the page.
      showSendToCloud: false,
      plotlyServerURL: "",
      toImageButtonOptions: { filename: `gradmedic-${node.id}`, scale: 2 },
      showTips: false,
    };
    node.setAttribute("aria-label", label);
    // Axes that lie over "y" need it to exist, which it does not while nothing is drawn on it.
    const bare = !traces.some((trace) => !trace.yaxis && (trace.z || (trace.x && trace.x.length)));
    const all = bare ? [{ type: "scatter", x: [0], y: [null], showlegend: false, hoverinfo: "skip" }, ...traces] : traces;
    const fresh = !node.whole;
    gm.drawn.figures.push(node.id);
    gm.drawn.points += all.reduce((sum, trace) => sum + (trace.z ? trace.z.length * trace.z[0].length : trace.x ? trace.x.length : 0), 0);
    gm.keepZoom(node, full);
    moreTicks(full, all);
    Plotly.react(node, gm.tidyLegend(all), full, config);
    if (fresh) gm.rememberZoom(node);
  };

  /** Leave one entry in the legend for all marks of a kind. */
  gm.tidyLegend = function (traces) {
    const seen = new Set();
    for (const trace of traces) {
      if (!trace.meta || trace.visible === "legendonly") continue;
      trace.legendgroup = trace.meta;
      trace.showlegend = !seen.has(trace.meta);
      seen.add(trace.meta);
    }
    return traces;
  };

})(window.gradmedic);
