"""Runs everything that is not on file: one fork for the script, one for the judgement, several runs side by side."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.patients.child import judge_run, run_script
from benchmarks.patients.forks import Fork, fork
from benchmarks.patients.plan import Job
from benchmarks.patients.results import Line

#: Seconds after which a run, and the judging of one, is given up.
TIMEOUT = 120.0
_PAUSE = 0.02
#: Of the output of a run that failed, so many characters are kept.
_TAIL = 600

Done = Callable[[Job, Line], None]


@dataclass
class Active:
    """A run under way: the script first, the judgement after it."""

    job: Job
    folder: Path
    process: Fork
    script: Fork | None = None
    files: dict[str, Path] = field(default_factory=dict)


@dataclass
class Runner:
    """Runs jobs side by side.

    Args:
        scripts: folder of the scripts.
        workers: runs at the same time.
        timeout: seconds for one run.
        keep: folder that keeps the run folders; None removes each as soon as it is judged.
    """

    scripts: Path
    workers: int = 2
    timeout: float = TIMEOUT
    keep: Path | None = None

    def run(self, jobs: Iterable[Job], done: Done, idle: Callable[[], None] = lambda: None) -> None:
        """Run all jobs.

        Args:
            jobs: in the order in which they are begun.
            done: takes each job and its line of results as it ends.
            idle: called while nothing happens, some fifty times a second.
        """
        waiting = deque(jobs)
        active: list[Active] = []
        root = Path(tempfile.mkdtemp(prefix="patients-"))
        try:
            while waiting or active:
                while waiting and len(active) < self.workers:
                    active.append(self._begin(waiting.popleft(), root))
                ended = [each for each in active if each.process.poll()]
                for each in ended:
                    line = self._advance(each)
                    if line is not None:
                        active.remove(each)
                        done(each.job, line)
                if not ended:
                    idle()
                    time.sleep(_PAUSE)
        finally:
            for each in active:
                each.process.end()
            shutil.rmtree(root, ignore_errors=True)

    def _begin(self, job: Job, root: Path) -> Active:
        folder = Path(tempfile.mkdtemp(prefix=f"{job.seed}-", dir=root))
        home = folder / "home"
        home.mkdir()
        files = {name: folder / name for name in ("record", "metric.json", "judgement.json", "output.txt")}
        body = functools.partial(
            run_script,
            files["record"],
            self.scripts / job.script,
            job.arguments(str(files["metric.json"])),
        )
        return Active(job, folder, fork(body, home, files["output.txt"], self.timeout), files=files)

    def _advance(self, active: Active) -> Line | None:
        """Return the line of a run that is judged; begin the judgement of one whose script has ended."""
        if active.script is None:
            active.script = active.process
            body = functools.partial(judge_run, active.files["record"], active.files["judgement.json"])
            log = active.folder / "judging.txt"
            active.process = fork(body, active.folder, log, self.timeout)
            return None
        line = _line(active.job, active.script, active.files)
        if line["problem"] == "not judged":
            line["output"] = _tail(active.files["output.txt"]) + _tail(active.folder / "judging.txt")
        if self.keep is not None and active.files["record"].is_dir():
            name = f"{active.job.id}-{active.job.seed}".replace(":", "-")
            shutil.copytree(active.files["record"], self.keep / name, dirs_exist_ok=True)
        shutil.rmtree(active.folder, ignore_errors=True)
        return line


def _line(job: Job, script: Fork, files: dict[str, Path]) -> Line:
    judged = _json(files["judgement.json"])
    metric = _json(files["metric.json"]) or {}
    code = script.code or 0
    line: Line = {
        "id": job.id,
        "seed": job.seed,
        "script": job.script,
        "split": job.split,
        "healthy": job.healthy,
        "status": "timeout" if script.timed_out else "ended" if code == 0 else f"code {code}",
        "problem": "" if judged is not None else "not judged",
        "metric": metric.get("metric"),
        "higher_is_better": metric.get("higher_is_better"),
        "seconds": round(script.seconds, 2),
        "cpu": round(script.cpu, 2),
        "steps": 0,
        "overhead": None,
        "findings": [],
        "peers": {},
    }
    line |= {key: value for key, value in (judged or {}).items() if key != "problems"}
    if line["status"] != "ended":
        line["output"] = _tail(files["output.txt"])
    return line


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _tail(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[-_TAIL:]
    except OSError:
        return ""
