"use strict";
// Colours: light and dark, for figures as for the page (style.css has the page's), safe for the colour-blind.
(function (gm) {
  const SERIES = {
    light: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#4b4b9b", "#7a4a2a"],
    dark: ["#56b4e9", "#ff9248", "#2fc79a", "#e79fc8", "#e6c229", "#9ad4f5", "#a5a5ff", "#d8a47f"],
  };
  const SEVERITY = {
    light: { critical: "#a4133c", error: "#c2410c", warning: "#a16207", info: "#0069a6", healthy: "#00785a" },
    dark: { critical: "#ff6b8f", error: "#ff9248", warning: "#f2c14e", info: "#6cbcf0", healthy: "#3ad6a6" },
  };
  const INK = {
    light: { ink: "#1c2430", soft: "#5b6675", grid: "#e3e7ec", zero: "#b9c0ca", panel: "#ffffff", absent: "#f3f5f7" },
    dark: { ink: "#e5eaf0", soft: "#9aa7b6", grid: "#2a333e", zero: "#5a6573", panel: "#171d25", absent: "#1f2731" },
  };
  // Viridis and a blue-grey-orange scale, nine anchors each.
  const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];
  const DIVERGING = ["#a34100", "#d55e00", "#f0a561", "#f6dcc0", "#d9d9dc", "#c0dcec", "#6db3de", "#0072b2", "#004a7c"];

  gm.scales = { viridis: VIRIDIS, diverging: DIVERGING };
  gm.NONFINITE = "#e5007d";

  gm.dark = function () {
    if (gm.printing) return false;
    if (gm.state.theme !== "auto") return gm.state.theme === "dark";
    return window.matchMedia("(prefers-color-scheme: dark)").matches;
  };

  gm.palette = function () {
    const mode = gm.dark() ? "dark" : "light";
    return { series: SERIES[mode], severity: SEVERITY[mode], ...INK[mode] };
  };

  gm.plotlyScale = (scale) => scale.map((color, index) => [index / (scale.length - 1), color]);

  const channels = (color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));

  /** Return a table of 256 colors [r, g, b] along a scale. */
  function tableOf(scale) {
    return Array.from({ length: 256 }, (unused, index) => {
      const place = (index / 255) * (scale.length - 1);
      const low = Math.min(Math.floor(place), scale.length - 2);
      const first = channels(scale[low]);
      const second = channels(scale[low + 1]);
      return first.map((value, at) => Math.round(value + (second[at] - value) * (place - low)));
    });
  }
  const tables = new Map();

  /** Return [r, g, b] on a scale for a share in [0, 1]. */
  gm.shade = function (scale, share) {
    if (!tables.has(scale)) tables.set(scale, tableOf(scale));
    return tables.get(scale)[Math.round(255 * Math.min(1, Math.max(0, share)))];
  };

  gm.channels = channels;
})(window.gradmedic);
