"use strict";
// What the reader has chosen. Everything drawn is a function of this and of the runs.
(function (gm) {
  gm.state = {
    run: null, // id of the run shown
    other: "", // id of the run laid over it, "" for none
    optimizer: "",
    lang: gm.languages.includes(gm.readAddress().lang) ? gm.readAddress().lang : document.documentElement.dataset.lang,
    theme: gm.recall("theme") || "auto",
    tensor: 0, // index of the layer that all figures follow
    metric: "norm",
    filter: "",
    group: "tensors",
    sort: "order",
    page: 0,
    step: null, // step that distribution, ratio and flow show; null is the last
    logLoss: null, // whether the loss has a logarithmic axis; null: as the loss wants it
    head: 0,
    search: "",
    version: 0, // counts what has come from the source
  };

  const listeners = [];

  gm.onChange = (listener) => listeners.push(listener);

  /** Change choices and tell everyone which ones have changed. */
  gm.set = function (changes) {
    const changed = new Set();
    for (const [key, value] of Object.entries(changes)) {
      if (gm.state[key] !== value) {
        gm.state[key] = value;
        changed.add(key);
      }
    }
    if (changed.size) for (const listener of listeners) listener(changed);
  };
})(window.gradmedic);
