"""The watching of one process, from its first training step to the check-up: all that commands ask of the core.

Only this file touches the monitor, and only inside functions, so that importing it imports no torch.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gradmedic.cli import arm, sink_options, tracebacks
from gradmedic.cli.children import OPTIONS_VARIABLE
from gradmedic.cli.command import complain
from gradmedic.cli.folders import holds_run, rank_of
from gradmedic.cli.options import RunOptions
from gradmedic.cli.transform_spec import parse_transform
from gradmedic.errors import InputError

Findings = list[Any]

#: The session of this process, once it is armed; a later one replaces an earlier one.
_sessions: list[Session] = []


def watches_process() -> bool:
    """Whether `gradmedic run` watches all that this process trains, now or as soon as it begins to."""
    return bool(_sessions) and _sessions[-1].failure is None and not _sessions[-1].closed


class Session:
    """Watches this process once it trains. Faults of gradmedic end the watching, never the script.

    Args:
        options: what was asked for.
        transform: what to do to gradients; None: nothing.
        is_child: whether the script, not the command line, has started this process.
    """

    def __init__(self, options: RunOptions, transform: Any = None, *, is_child: bool = False) -> None:
        self.options = options
        self.transform = transform
        self.is_child = is_child
        self.monitor: Any = None
        self.probe: Any = None
        self.failure: Exception | None = None
        self.process = os.getpid()
        self.closed = False
        self._stop_hearing: Callable[[], None] | None = None

    def begin(self) -> None:
        """Arm the watching, and make sure that the record is closed in whatever way the process ends."""
        _sessions.append(self)
        self.close_at_exit()
        arm.when_training_begins(self.start)

    def start(self) -> None:
        """Start to watch; called just before the first optimizer or backward call of this process."""
        try:
            self.monitor = _watch(self.options, self.transform)
            self._stop_hearing = _hear_trainers()
            if self.options.probe and not self.is_child:
                self.probe = _probe(self.monitor)
        except Exception as error:
            self.failure = error
            if not self.is_child:
                complain(f"this run is not watched: {str(error) or type(error).__name__}")
        if self.is_child or self.is_copy:
            _close_with_multiprocessing(self)

    def close(self, error: BaseException | None = None) -> None:
        """Stop watching and close the record; may be called again.

        Args:
            error: what the program ended with, for the record.
        """
        self.closed = True
        if not self.is_child and not self.is_copy:
            sink_options.release(self.options.sink_claim)
        if self.monitor is None:
            return
        try:
            from gradmedic.settings import ending

            reason = ending(error)
            if self.probe is not None and not self.is_copy:
                probe, self.probe = self.probe, None
                probe.finish() if reason == "finished" else probe.stop()
            self.monitor.close(reason)
            if self._stop_hearing is not None:
                self._stop_hearing()
                self._stop_hearing = None
        except Exception as error:
            self.failure = self.failure or error

    @property
    def is_copy(self) -> bool:
        """Whether this is a fork of the process that the session was made in."""
        return os.getpid() != self.process

    @property
    def trained(self) -> bool:
        """Whether this process, or one that it started, has trained anything."""
        seen = self.monitor is not None and self.monitor.steps_seen > 0
        return seen or (self.options.record is not None and holds_run(Path(self.options.record)))

    def result(self) -> tuple[Any, Findings]:
        """Return (run, findings): of the run folder, which holds the child processes too, else of the memory."""
        if self.options.record is not None and holds_run(Path(self.options.record)):
            wait_for_ranks(Path(self.options.record), *rank_of(os.environ))
            return examine(self.options.record, self.options.lang, core_limits(self.options))
        return self.monitor.run, list(self.monitor.diagnose())

    def close_at_exit(self) -> None:
        """Close the record however this process, or a fork of it, ends by itself."""
        atexit.register(self._close_at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def _close_at_exit(self) -> None:
        # Python has put the exception that ended a program of its own there; ours was closed before this.
        self.close(getattr(sys, "last_value", None))

    def _after_fork(self) -> None:
        """In a forked child: multiprocessing drops all finalizers first, and then makes its after-fork calls."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.register_after_fork(self, _close_with_multiprocessing)


def _close_with_multiprocessing(session: Session) -> None:
    """Close the record when a process of multiprocessing ends; a forked one ends without running `atexit`."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, session.close, exitpriority=-100)


def start_child() -> None:
    """Watch a process that the script has started; see `children`."""
    options = RunOptions.from_json(os.environ[OPTIONS_VARIABLE])
    session = Session(options, make_transform(options), is_child=True)
    tracebacks.clean_main()
    tracebacks.clean_threads()
    _sessions.append(session)
    session.close_at_exit()
    session.start()


def make_transform(options: RunOptions) -> Any:
    """Return the transform that `--clip` and `--guard` ask for, None without either.

    Raises:
        InputError: when a description is not one, or what is asked for is not available in this version.
    """
    clip = None if options.clip is None else parse_transform(options.clip)
    return importlib.import_module("gradmedic.guard").default(clip) if options.guard else clip


def examine(folder: str | Path, lang: str, limits: Any = None) -> tuple[Any, Findings]:
    """Return (run, findings) of a run folder; `limits` None are those that it was recorded with.

    Raises:
        InputError: when it cannot be read.
    """
    from gradmedic.diagnosis import diagnose
    from gradmedic.record import open_run

    run = open_run(folder)
    if run.problems and not run.steps.num_rows:
        raise InputError(f"{folder} holds no readable run: {run.problems[0]}")
    return run, list(diagnose(run, lang=lang, limits=limits))


def wait_for_ranks(folder: Path, rank: int, world: int, patience: float = 5.0) -> None:
    """Wait a moment for the other ranks to close their records, and say which have not."""
    if rank != 0 or world < 2:
        return
    from gradmedic.record import open_run

    run = open_run(folder)
    deadline = time.monotonic() + patience
    while True:
        ended = {event.get("rank", 0) for event in run.events if event["kind"] == "end"}
        missing = sorted(set(range(world)) - ended)
        if not missing:
            return
        if time.monotonic() > deadline:
            shown = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
            complain(f"{len(missing)} of {world} ranks have not closed their records: {shown}")
            return
        time.sleep(0.1)
        run.reload()


def watch_model(model: Any, optimizer: Any, record: Path, transform: Any = None) -> Any:
    """Return `gradmedic.watch(model, optimizer, record=record, transform=transform)`."""
    import gradmedic

    return gradmedic.watch(model, optimizer, record=record, transform=transform)


def script_globals() -> Mapping[str, Any]:
    """Return the globals of the program, so that models and tensors get the names that the script gives them."""
    main = sys.modules.get("__main__")
    return {} if main is None else vars(main)


def core_limits(options: RunOptions) -> Any:
    """Return limits as the core takes them: a number, a mapping from pattern to number, or None."""
    return options.limits.get("", options.limits) if options.limits else None


def _hear_trainers() -> Callable[[], None] | None:
    """Listen to Keras, which has optimizers of its own, where the script has imported it; return what ends that."""
    keras = sys.modules.get("keras")
    if keras is None or keras.config.backend() != "torch":
        return None
    from gradmedic.integrations.keras_steps import hear

    try:
        return hear()
    except RuntimeError as error:  # another version of Keras than is known
        complain(str(error))
        return None


def _probe(monitor: Any) -> Any:
    from gradmedic.probing.kept import StepProbe

    probe = StepProbe(monitor)
    probe.start()
    return probe


def _watch(options: RunOptions, transform: Any) -> Any:
    from gradmedic.watching import watch_process

    feeds = bool(options.sinks) and sink_options.claim(options.sink_claim)
    return watch_process(
        record=options.record,
        every=options.every,
        modules=options.modules,
        transform=transform,
        limits=core_limits(options),
        stop_after=options.steps,
        budget=options.budget,
        lang=options.lang,
        namespace=script_globals,
        # The folder was claimed before the script began; whatever is in it now was written by processes of this run.
        join=True,
        lazy=True,
        sinks=sink_options.make_sinks(options.sinks) if feeds else (),
    )
