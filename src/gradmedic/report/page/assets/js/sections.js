"use strict";
// The sections of the page. Each is drawn when it first comes near the screen, and again when what it shows has changed.
(function (gm) {
  const ALWAYS = ["run", "optimizer", "lang", "theme", "version"];
  const sections = [];
  let waiting = false;

  /**
   * Add a section: {id, depends, missing, build, draw}.
   *
   * `depends` are the choices that it shows, `missing(payload)` names the words that say why there is nothing to show
   * (null: there is), `build(body)` makes the controls once, `draw(payload, body)` fills it.
   */
  gm.section = (section) => sections.push(section);

  gm.allSections = () => sections;

  gm.buildSections = function (main, navigation) {
    const watcher = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) {
          const section = sections.find((each) => each.node === entry.target);
          section.near = entry.isIntersecting;
        }
        gm.redraw();
      },
      { rootMargin: "250px 0px" },
    );
    for (const section of sections) {
      section.dirty = true;
      section.body = gm.el("div", { class: "body" });
      section.note = gm.el("p", { class: "missing", hidden: true });
      section.heading = gm.el("h2", { id: `title-${section.id}`, "data-word": `${section.id}.title` });
      section.about = gm.el("p", { class: "about", "data-word": `${section.id}.about` });
      section.node = gm.el("section", { id: section.id, class: "section", "aria-labelledby": `title-${section.id}` },
        gm.el("header", {}, section.heading, section.note), section.about, section.body);
      main.append(section.node);
      section.link = gm.el("a", { href: `#${section.id}`, "data-word": `${section.id}.title` });
      navigation.append(gm.el("li", {}, section.link));
      watcher.observe(section.node);
    }
    markPlace(sections);
  };

  /** Mark the section being read in the navigation: the first one in the upper part of the screen. */
  function markPlace(all) {
    const inside = new Set();
    const place = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) {
          if (entry.isIntersecting) inside.add(entry.target);
          else inside.delete(entry.target);
        }
        const current = all.find((section) => inside.has(section.node));
        for (const section of all) {
          if (section === current) section.link.setAttribute("aria-current", "true");
          else section.link.removeAttribute("aria-current");
        }
      },
      { rootMargin: "-15% 0px -60% 0px" },
    );
    for (const section of all) place.observe(section.node);
  }

  function show(section) {
    const payload = gm.payload();
    section.dirty = false;
    const missing = payload ? section.missing && section.missing(payload) : "missing.waiting";
    section.note.hidden = !missing;
    section.note.textContent = missing ? gm.t(missing) : "";
    section.body.hidden = section.about.hidden = Boolean(missing);
    section.node.classList.toggle("empty", Boolean(missing));
    section.link.classList.toggle("empty", Boolean(missing));
    if (missing) return;
    if (!section.built) {
      section.built = true;
      if (section.build) section.build(section.body);
      gm.translate(section.body);
    }
    section.draw(payload, section.body);
  }

  const SLICE = 40; // milliseconds of drawing before the browser gets to show what is there

  function onScreen(section) {
    const box = section.node.getBoundingClientRect();
    return box.bottom > 0 && box.top < window.innerHeight;
  }

  /** Return the sections to draw, those on the screen first. What has nothing to show is cheap to say, wherever it is. */
  function pending(everything) {
    const payload = gm.payload();
    const due = sections.filter((section) => section.dirty && (everything || section.near || !payload || (section.missing && section.missing(payload))));
    return due.length < 2 ? due : [...due.filter(onScreen), ...due.filter((section) => !onScreen(section))];
  }

  function drawNear(everything) {
    const began = performance.now();
    let drawn = 0;
    for (const section of pending(everything)) {
      if (!everything && drawn && performance.now() - began > SLICE) {
        schedule();
        return;
      }
      show(section);
      drawn += 1;
    }
    waiting = false;
    document.body.dataset.settled = "true";
  }

  function schedule() {
    waiting = true;
    // A page in the background gets no animation frames, and needs none.
    if (document.hidden) setTimeout(drawNear, 0, false);
    else requestAnimationFrame(() => drawNear(false));
  }

  /** Draw what is near the screen and has changed, before the next frame; what takes longer, in the frames after it. */
  gm.redraw = function () {
    document.body.dataset.settled = "false";
    if (!waiting) schedule();
  };

  gm.markChanged = function (changed) {
    for (const section of sections) {
      if ([...ALWAYS, ...(section.depends || [])].some((key) => changed.has(key))) section.dirty = true;
    }
    gm.redraw();
  };

  /** Draw now whatever has changed, also what is not near the screen. */
  gm.drawChanged = () => drawNear(true);

  /** Draw everything, also what was never near the screen. */
  gm.drawAll = function () {
    for (const section of sections) section.dirty = true;
    drawNear(true);
  };
})(window.gradmedic);
