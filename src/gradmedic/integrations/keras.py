"""Keras 3 on the torch backend: a callback for `model.fit(callbacks=[…])`.

`GradMedicCallback` is made from `keras.callbacks.Callback` when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gradmedic.errors import InputError
from gradmedic.integrations.callback import WatchingCallback, guarded
from gradmedic.integrations.libraries import library_class, no_such_name, require

MINIMUM = "3.4"
_NAME = "GradMedicCallback"


class KerasHooks(WatchingCallback):
    """Watches what a Keras model fits on the torch backend; see `WatchingCallback` for the arguments.

    Pre-clip gradients are those that the optimizer gets before `clipnorm`, `global_clipnorm` or `clipvalue`, unscaled,
    and accumulated where `gradient_accumulation_steps` is set. Metrics are logged with the last step of each epoch.
    A model that was compiled with `jit_compile=True` is not watched, which is said; `monitor` is then None.

    Example:
        >>> from gradmedic.integrations.keras import GradMedicCallback  # doctest: +SKIP
        >>> model.fit(x, y, callbacks=[GradMedicCallback("runs/exp1")])  # doctest: +SKIP
    """

    _stop_hearing: Callable[[], None] | None = None

    @guarded
    def on_train_begin(self, logs: Any = None) -> None:
        """Training begins."""
        from gradmedic.integrations.keras_steps import hear, leave_out

        model: Any = self.model  # type: ignore[attr-defined]
        if leave_out(model):
            return
        self._attendance.begin(model if model.built else None)
        if self._stop_hearing is None:
            self._stop_hearing = hear()

    @guarded
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A batch is done."""
        if self._attendance.should_stop():
            self.model.stop_training = True  # type: ignore[attr-defined]

    @guarded
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """An epoch is done, its validation included."""
        self._attendance.log(logs or {})

    @guarded
    def on_train_end(self, logs: Any = None) -> None:
        """Training has come to its end."""
        self.close()

    def _end(self, reason: str | BaseException | None) -> None:
        super()._end(reason)
        stop, self._stop_hearing = self._stop_hearing, None
        if stop is not None:
            stop()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__getstate__().items() if key not in ("_stop_hearing", "_model")}


if TYPE_CHECKING:
    GradMedicCallback = KerasHooks


def __getattr__(name: str) -> Any:
    if name != _NAME:
        raise no_such_name(__name__, name)
    library = require("keras", package="keras", extra="keras", minimum=MINIMUM)
    backend = library.config.backend()
    if backend != "torch":
        raise InputError(
            f"Keras runs on {backend} here, and gradmedic watches torch; set KERAS_BACKEND=torch before importing keras"
        )
    return library_class(globals(), name, KerasHooks, library.callbacks.Callback)
