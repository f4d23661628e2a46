"use strict";
// Where the data come from: they are in the page, or a server on this machine has them. Both call back in the same way.
(function (gm) {
  const EVERY = 1000; // milliseconds between two questions to the server

  /** The runs written into the page. Each is read when it is first shown. */
  gm.embeddedSource = function () {
    const nodes = [...document.querySelectorAll("script.run-data")];
    return {
      live: false,
      start(sources) {
        const runs = nodes.map((node, id) => ({ id: String(id), name: node.dataset.name, payload: null }));
        sources.onRuns(runs);
      },
      load(run) {
        if (!run.payload) {
          const node = nodes[Number(run.id)];
          run.payload = JSON.parse(node.textContent);
          node.textContent = "";
        }
      },
    };
  };

  /** The runs of a server: asked once a second for what is new of the runs that are shown. */
  gm.liveSource = function () {
    let listener = null;
    let busy = false;
    let again = false;

    async function ask(path) {
      const answer = await fetch(path, { cache: "no-store", credentials: "omit" });
      if (answer.status === 204) return null;
      if (!answer.ok) throw new Error(`${answer.status}`);
      return answer.json();
    }

    async function refresh(run) {
      const version = run.payload ? `?version=${encodeURIComponent(run.payload.version)}` : "";
      const payload = await ask(`/api/runs/${encodeURIComponent(run.id)}${version}`);
      if (!payload) return false;
      run.payload = payload;
      return true;
    }

    async function poll() {
      if (busy) {
        again = true;
        return;
      }
      busy = true;
      try {
        const listed = await ask("/api/runs");
        listener.onRuns(listed.map((entry) => {
          const known = gm.runOf(entry.id);
          return { ...entry, id: String(entry.id), payload: known ? known.payload : null };
        }));
        let fresh = false;
        for (const run of listener.wanted()) {
          const entry = listed.find((each) => String(each.id) === run.id);
          if (!run.payload || !entry || entry.version !== run.payload.version) fresh = (await refresh(run)) || fresh;
        }
        if (fresh) listener.onData();
        listener.onConnection(true);
      } catch (error) {
        listener.onConnection(false);
      }
      busy = false;
      if (again) {
        again = false;
        poll();
      }
    }

    return {
      live: true,
      start(sources) {
        listener = sources;
        poll();
        setInterval(() => {
          if (!document.hidden) poll();
        }, EVERY);
        document.addEventListener("visibilitychange", () => {
          if (!document.hidden) poll();
        });
      },
      load(run) {
        if (!run.payload) poll();
      },
    };
  };
})(window.gradmedic);
