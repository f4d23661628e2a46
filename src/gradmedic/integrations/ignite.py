"""PyTorch-Ignite: a handler that is attached to a trainer, `GradMedicHandler(…).attach(trainer, model, optimizer)`."""

from __future__ import annotations

from typing import Any

from gradmedic.integrations.callback import WatchingCallback, guarded
from gradmedic.integrations.libraries import require

MINIMUM = "0.5"


class GradMedicHandler(WatchingCallback):
    """Watches what an Ignite `Engine` trains; see `WatchingCallback` for the arguments.

    Example:
        >>> from gradmedic.integrations.ignite import GradMedicHandler
        >>> GradMedicHandler("runs/exp1").attach(trainer, model, optimizer)  # doctest: +SKIP
        >>> trainer.run(loader, max_epochs=3)  # doctest: +SKIP
    """

    def attach(self, engine: Any, model: Any = None, optimizer: Any = None, evaluator: Any = None) -> GradMedicHandler:
        """Watch the runs of an engine, from now on.

        Args:
            engine: the trainer.
            model: what it trains, as for `gm.watch`; None: whatever this process trains.
            optimizer: as for `gm.watch`.
            evaluator: an engine whose metrics are logged with the trainer's last step.

        Returns:
            The handler itself.

        Raises:
            InputError: Ignite is not installed, or too old.
        """
        events = require("ignite.engine", package="pytorch-ignite", extra="ignite", minimum=MINIMUM).Events
        engine.add_event_handler(events.STARTED, self._started, model, optimizer)
        engine.add_event_handler(events.ITERATION_COMPLETED, self._iterated)
        engine.add_event_handler(events.COMPLETED, self._completed)
        engine.add_event_handler(events.EXCEPTION_RAISED, self._raised, events.EXCEPTION_RAISED)
        if hasattr(events, "INTERRUPT"):
            engine.add_event_handler(events.INTERRUPT, self._completed)
        if evaluator is not None:
            evaluator.add_event_handler(events.COMPLETED, self._evaluated)
        return self

    @guarded
    def _started(self, _engine: Any, model: Any, optimizer: Any) -> None:
        self._attendance.begin(model, optimizer)

    @guarded
    def _iterated(self, engine: Any) -> None:
        if self._attendance.should_stop():
            engine.terminate()

    @guarded
    def _evaluated(self, evaluator: Any) -> None:
        self._attendance.log(evaluator.state.metrics)

    @guarded
    def _completed(self, _engine: Any) -> None:
        self._attendance.end()

    def _raised(self, engine: Any, error: BaseException, event: Any) -> None:
        """The run was ended by an exception, which an engine without any handler for it raises."""
        self._attendance.end(error)
        others = [each for each in engine._event_handlers[event] if not _is_ours(each[0])]
        if not others:
            raise error


def _is_ours(handler: Any) -> bool:
    """Whether a handler, which Ignite may have wrapped, is a method of a `GradMedicHandler`."""
    handler = handler() if callable(handler) and type(handler).__name__ == "WeakMethod" else handler
    return isinstance(getattr(handler, "__self__", None), GradMedicHandler)
