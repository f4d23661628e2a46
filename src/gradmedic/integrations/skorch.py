"""skorch: a callback for `NeuralNet(…, callbacks=[…])`.

`GradMedicCallback` is made from `skorch.callbacks.Callback` when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradmedic.integrations.callback import WatchingCallback, guarded
from gradmedic.integrations.libraries import library_class, no_such_name, require
from gradmedic.integrations.optimizer_names import name_optimizers

MINIMUM = "1.0"
_NAME = "GradMedicCallback"


class SkorchHooks(WatchingCallback):
    """Watches what a skorch net fits; see `WatchingCallback` for the arguments.

    Scores of the validation set are logged with the last step of each epoch. `stop_on` ends the training as a keyboard
    interrupt does, which skorch takes for the end of `fit`.

    Example:
        >>> from gradmedic.integrations.skorch import GradMedicCallback  # doctest: +SKIP
        >>> net = NeuralNetClassifier(Module, callbacks=[GradMedicCallback("runs/exp1")])  # doctest: +SKIP
    """

    @guarded
    def on_train_begin(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        """Training begins."""
        models = {name: getattr(net, f"{name}_") for name in net._modules}
        optimizers = [getattr(net, f"{name}_") for name in net._optimizers]
        if len(models) == 1:
            (model,) = models.values()
            self._attendance.begin(model, name_optimizers(model, optimizers))
        else:
            self._attendance.begin(models, None)

    @guarded
    def on_batch_end(self, net: Any, batch: Any = None, training: bool | None = None, **kwargs: Any) -> None:
        """A batch is done."""
        if training and self._attendance.should_stop():
            self._attendance.end("stopped by a finding")
            _interrupt()

    @guarded
    def on_epoch_end(self, net: Any, **kwargs: Any) -> None:
        """An epoch is done; callbacks that come before this one have written their scores."""
        row = {key: value for key, value in net.history[-1].items() if key != "batches"}
        self._attendance.log({key: value for key, value in row.items() if not key.endswith(("_best", "_count"))})

    @guarded
    def on_train_end(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        """Training has come to its end, or was interrupted."""
        self._attendance.end()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments, for `sklearn.clone` and grid searches."""
        return {"record": self.record, "stop_on": self.stop_on, **self.options}

    def _get_param_names(self) -> list[str]:
        return ["record", "stop_on", *self.options]


def _interrupt() -> None:
    raise KeyboardInterrupt


if TYPE_CHECKING:
    GradMedicCallback = SkorchHooks


def __getattr__(name: str) -> Any:
    if name == _NAME:
        library = require("skorch.callbacks", package="skorch", extra="skorch", minimum=MINIMUM)
        return library_class(globals(), name, SkorchHooks, library.Callback)
    raise no_such_name(__name__, name)
