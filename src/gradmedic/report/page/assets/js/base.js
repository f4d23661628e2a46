"use strict";
// The page's one namespace, and how elements are made. Whatever comes from a run enters the page as text, never as HTML.
window.gradmedic = {};
(function (gm) {
  /** Return a new element; `properties` that begin with "on" are listeners, "text" is its text, the rest attributes. */
  gm.el = function (tag, properties, ...children) {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(properties || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (key === "text") node.textContent = value;
      else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else node.setAttribute(key, value === true ? "" : String(value));
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return node;
  };

  /** Return an icon of the page's own symbols. */
  gm.icon = function (name) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
    svg.setAttribute("class", "icon");
    svg.setAttribute("aria-hidden", "true");
    use.setAttribute("href", `#icon-${name}`);
    svg.append(use);
    return svg;
  };

  gm.clear = function (node) {
    node.replaceChildren();
    return node;
  };

  /** Give a <select> its options, and keep what was chosen where it is still there. Options: [value, text] or [value, text, group]. */
  gm.fill = function (select, options, chosen) {
    const signature = JSON.stringify(options);
    if (select.dataset.signature !== signature) {
      const groups = new Map();
      const nodes = [];
      for (const [value, text, group] of options) {
        const option = gm.el("option", { value, text });
        if (!group) {
          nodes.push(option);
          continue;
        }
        if (!groups.has(group)) {
          groups.set(group, gm.el("optgroup", { label: group }));
          nodes.push(groups.get(group));
        }
        groups.get(group).append(option);
      }
      select.replaceChildren(...nodes);
      select.dataset.signature = signature;
    }
    select.value = String(chosen);
    return select;
  };

  const parameters = new Map();
  /** Return a label with a control in it; the words follow the language. */
  gm.field = function (key, control) {
    const caption = gm.el("span", { class: "caption", "data-word": key });
    return gm.el("label", { class: "field" }, caption, control);
  };

  gm.remember = function (key, value) {
    parameters.set(key, value);
    // A page opened from a file may be denied its storage: then choices last as long as the page.
    try {
      window.localStorage.setItem(`gradmedic.${key}`, value);
    } catch (error) {
      return;
    }
  };

  gm.recall = function (key) {
    try {
      return window.localStorage.getItem(`gradmedic.${key}`);
    } catch (error) {
      return parameters.get(key) || null;
    }
  };
})(window.gradmedic);
