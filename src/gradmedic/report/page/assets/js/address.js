"use strict";
// Choices that a reload and a link keep: they stand in the address after the section, "#loss?lang=zh&other=1".
(function (gm) {
  const parts = () => decodeURIComponent(window.location.hash.slice(1)).split("?");

  /** Return what the address says: {section, lang, run, other}, each a text or undefined. */
  gm.readAddress = function () {
    try {
      const [section, query] = parts();
      return { ...Object.fromEntries(new URLSearchParams(query || "")), section: section || undefined };
    } catch (error) {
      return {}; // not one that this page has written
    }
  };

  /** Put choices into the address, without an entry in the browser's history; those that are undefined are left out. */
  gm.writeAddress = function (choices) {
    const known = Object.entries(choices).filter(([, value]) => value !== undefined);
    const query = new URLSearchParams(known).toString();
    const section = gm.readAddress().section || "";
    const hash = section || query ? `#${section}${query ? `?${query}` : ""}` : "";
    if (hash === window.location.hash) return;
    try {
      window.history.replaceState(null, "", hash || window.location.pathname + window.location.search);
    } catch (error) {
      return; // a page inside another one may not
    }
  };
})(window.gradmedic);
