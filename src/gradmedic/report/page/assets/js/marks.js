"use strict";
// Findings and interventions, as they are marked in figures over steps.
(function (gm) {
  const SYMBOLS = { skip: "triangle-up", halt: "square", clip: "line-ns-open" };

  const belongs = (optimizer) => !optimizer || optimizer === gm.state.optimizer;

  /** Return vertical lines at the first steps of the findings, and their codes above. */
  gm.findingLines = function (payload) {
    const palette = gm.palette();
    const steps = new Map();
    for (const finding of gm.findings(payload)) {
      if (!belongs(finding.optimizer)) continue;
      if (!steps.has(finding.step)) steps.set(finding.step, []);
      steps.get(finding.step).push(finding);
    }
    const shapes = [];
    const annotations = [];
    for (const [step, findings] of [...steps].slice(0, 40)) {
      const color = palette.severity[findings[0].severity] || palette.soft;
      const codes = [...new Set(findings.map((finding) => finding.code))];
      shapes.push({ type: "line", x0: step, x1: step, yref: "paper", y0: 0, y1: 1, line: { color, width: 1.2, dash: "dash" } });
      annotations.push({
        x: step, y: 1, yref: "paper", xanchor: "left", yanchor: "top", showarrow: false, textangle: 90, xshift: 1, yshift: -12,
        text: gm.markup(codes.slice(0, 3).join(" ") + (codes.length > 3 ? " …" : "")), font: { color, size: 10 },
      });
    }
    return { shapes, annotations };
  };

  /** Return one trace of marks at the lower edge for each kind of intervention, but those left out. */
  gm.interventions = function (payload, without) {
    const palette = gm.palette();
    const byKind = new Map();
    for (const mark of payload.marks) {
      if (!belongs(mark.optimizer) || mark.kind === without) continue;
      if (!byKind.has(mark.kind)) byKind.set(mark.kind, []);
      byKind.get(mark.kind).push(mark);
    }
    return [...byKind].map(([kind, marks], index) => {
      const common = { type: "scatter", yaxis: "y2", name: gm.markup(gm.markName(kind), 40), hovertemplate: "%{text}" };
      const color = kind === "halt" ? palette.severity.critical : kind === "skip" ? palette.severity.error : palette.series[(index + 3) % 8];
      const x = marks.map((mark) => mark.step);
      const text = marks.map((mark) => gm.markup(mark.text, 160));
      if (marks.length <= gm.MOST_SYMBOLS) {
        const thin = kind === "clip" ? { size: 7, line: { width: 1.2 } } : { size: 9 };
        return { ...common, mode: "markers", x, text, y: x.map(() => 0.03), marker: { symbol: SYMBOLS[kind] || "diamond", color, ...thin } };
      }
      return { ...common, ...gm.strokes(x, text, false, color) };
    });
  };

  gm.markName = function (kind) {
    const key = `marks.${kind}`;
    const text = gm.t(key);
    return text === key ? gm.plain(kind) : text;
  };
})(window.gradmedic);
