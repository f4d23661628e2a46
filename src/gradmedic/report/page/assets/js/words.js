"use strict";
// The page's words in both languages, and switching between them.
(function (gm) {
  const books = JSON.parse(document.getElementById("words").textContent);

  gm.languages = Object.keys(books);

  /** Return the words of a key ("loss.title") in the page's language, with {placeholders} filled in. */
  gm.t = function (key, values) {
    let entry = books[gm.state.lang];
    for (const part of key.split(".")) entry = entry && entry[part];
    if (typeof entry !== "string") return key;
    return entry.replace(/\{(\w+)(?::([^{}|]*)\|([^{}]*))?\}/g, (whole, name, one, many) => {
      if (!values || values[name] === undefined) return whole;
      const text = typeof values[name] === "number" ? gm.count(values[name]) : gm.plain(values[name]);
      return one === undefined ? text : `${text} ${values[name] === 1 ? one : many}`;
    });
  };

  /** Return the name of an evidence or of a unit; English ones are the data's own. */
  gm.evidenceName = (name) => books[gm.state.lang].evidence_names[name] || name;
  gm.unitName = (name, value) => (value === 1 && books[gm.state.lang].one_unit[name]) || books[gm.state.lang].unit_names[name] || name;

  /** Put the words into every element that names a key. */
  gm.translate = function (root) {
    for (const node of root.querySelectorAll("[data-word]")) node.textContent = gm.t(node.dataset.word);
    for (const node of root.querySelectorAll("[data-word-label]")) {
      const text = gm.t(node.dataset.wordLabel);
      node.setAttribute("aria-label", text);
      node.setAttribute("title", text);
    }
    for (const node of root.querySelectorAll("[data-word-title]")) node.setAttribute("title", gm.t(node.dataset.wordTitle));
    for (const node of root.querySelectorAll("[data-word-placeholder]")) {
      node.setAttribute("placeholder", gm.t(node.dataset.wordPlaceholder));
    }
  };
})(window.gradmedic);
