"use strict";
// How names and numbers are written. Names in a run are hostile: control characters and signs that turn the direction of
// writing are shown as a replacement character, and what Plotly would read as markup is escaped.
(function (gm) {
  const CONTROL = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;

  gm.plain = (name) => String(name).replace(CONTROL, "\ufffd");

  /** Return a name that is at most `length` characters long; the middle is what can be spared. */
  gm.shorten = function (name, length) {
    const letters = Array.from(gm.plain(name));
    if (letters.length <= length) return letters.join("");
    const tail = Math.ceil((length - 1) * 0.6);
    return `${letters.slice(0, length - 1 - tail).join("")}…${letters.slice(-tail).join("")}`;
  };

  /**
   * Return names that are at most `length` characters long: of several ways to leave out their middle, the one that
   * leaves most of them different.
   */
  gm.shortenAll = function (names, length) {
    const cut = (part) => names.map((name) => {
      const letters = Array.from(gm.plain(name));
      if (letters.length <= length) return letters.join("");
      const tail = Math.ceil((length - 1) * part);
      return `${letters.slice(0, length - 1 - tail).join("")}…${letters.slice(-tail).join("")}`;
    });
    const ways = [0.6, 0.8, 1, 0.3, 0.1].map(cut);
    return ways.reduce((best, labels) => (new Set(labels).size > new Set(best).size ? labels : best));
  };

  /** Return text that Plotly shows as it is: it reads some tags and all entities. */
  gm.markup = function (name, length) {
    const text = length ? gm.shorten(name, length) : gm.plain(name);
    return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/\$/g, "&#36;");
  };

  /** Return a number as it reads best: integers whole, others with three significant digits. */
  gm.number = function (value) {
    if (value === null || value === undefined) return "–";
    if (typeof value === "string") return gm.plain(value);
    if (Number.isNaN(value)) return "NaN";
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
    if (Number.isInteger(value) && Math.abs(value) < 1e5) return String(value);
    const size = Math.abs(value);
    if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
    return String(Number(value.toPrecision(3)));
  };

  gm.count = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en-US"));

  gm.share = function (value) {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    return `${Number((100 * value).toPrecision(3))} %`;
  };

  gm.seconds = function (value) {
    if (value === null || value === undefined) return "–";
    if (value < 1) return `${Number((value * 1000).toPrecision(3))} ms`;
    if (value < 120) return `${Number(value.toPrecision(3))} s`;
    if (value < 7200) return `${Math.round(value / 60)} min`;
    return `${(value / 3600).toFixed(1)} h`;
  };

  /** Return 10 to the power of an integer, as text. */
  gm.power = function (exponent) {
    const digits = "⁰¹²³⁴⁵⁶⁷⁸⁹";
    const raised = Array.from(String(Math.abs(exponent)), (digit) => digits[Number(digit)]).join("");
    return `10${exponent < 0 ? "⁻" : ""}${raised}`;
  };

  /** Return a test for names: shell-style patterns, several separated by spaces or commas; without * or ? a part of the name. */
  gm.matcher = function (text) {
    const patterns = text.split(/[\s,]+/).filter(Boolean).map((word) => {
      const source = word.replace(/[.+^${}()|[\]\\]/g, "\\$&").replace(/\*+/g, ".*").replace(/\?/g, ".");
      return new RegExp(/[*?]/.test(word) ? `^${source}$` : source, "is");
    });
    return (name) => patterns.length === 0 || patterns.some((pattern) => pattern.test(name));
  };
})(window.gradmedic);
