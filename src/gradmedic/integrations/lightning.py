"""Lightning: a callback for `Trainer(callbacks=[…])`.

`GradMedicCallback` is made from `lightning.pytorch.Callback` (or, in a program that uses only the older package, from
`pytorch_lightning.Callback`) when it is first asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gradmedic.integrations.callback import WatchingCallback, guarded
from gradmedic.integrations.libraries import library_class, no_such_name, require
from gradmedic.integrations.optimizer_names import name_optimizers

MINIMUM = "2.4"
_NAME = "GradMedicCallback"


class LightningHooks(WatchingCallback):
    """Watches what a Lightning `Trainer` fits; see `WatchingCallback` for the arguments.

    Gradients are read at the optimizer's step: after `unscale_`, before `gradient_clip_val` and after it, once for all
    micro-batches of `accumulate_grad_batches`; in manual optimization and with several optimizers as well. Validation
    metrics are logged with the last step. Step counters and the transform's state travel in checkpoints.

    Example:
        >>> from gradmedic.integrations.lightning import GradMedicCallback  # doctest: +SKIP
        >>> trainer = Trainer(callbacks=[GradMedicCallback("runs/exp1")])  # doctest: +SKIP
    """

    _key: str | None = None

    @property
    def state_key(self) -> str:
        """Under which key Lightning keeps `state_dict()`.

        A number among the callbacks of a trainer while it is at work; before and after, another for each callback: what
        an earlier trainer has numbered may come together in the next, which looks for equal keys before it has begun.
        """
        return self._key or f"{_NAME} at {id(self):x}"

    @guarded
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Lightning begins to fit, validate, test or predict."""
        for each, key in _keys(trainer):
            each._key = key

    @guarded
    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is put together, maybe after the trainer has left its stage."""
        states = checkpoint.get("callbacks") or {}
        for each, key in _keys(trainer):
            if each is self and self.state_key != key and self.state_key in states:
                states[key] = states.pop(self.state_key)

    @guarded
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Training begins, after the sanity check of validation."""
        self._attendance.begin(pl_module, name_optimizers(pl_module, list(trainer.optimizers)))

    @guarded
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A micro-batch is done."""
        if self._attendance.should_stop():
            trainer.should_stop = True

    @guarded
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Validation has ended: its metrics belong to the last step."""
        if not trainer.sanity_checking:
            self._attendance.log(trainer.callback_metrics)

    @guarded
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Training has come to its end."""
        self._attendance.end()

    @guarded
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Training was ended by an exception, or by a keyboard interrupt."""
        self._attendance.end(exception)
        self._key = None

    @guarded
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Lightning leaves a stage."""
        self._attendance.end("left by the trainer")
        self._key = None

    def state_dict(self) -> dict[str, Any]:
        """Return what goes into a checkpoint."""
        return self._attendance.state_dict()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__getstate__().items() if key != "_key"}

    @guarded
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take what came from a checkpoint."""
        self._attendance.load_state_dict(state_dict)


def _keys(trainer: Any) -> list[tuple[LightningHooks, str]]:
    """Return, for each of several callbacks of one trainer, its key in checkpoints."""
    ours = [each for each in trainer.callbacks if isinstance(each, LightningHooks)]
    return [(each, _NAME if at == 0 else f"{_NAME}_{at + 1}") for at, each in enumerate(ours)]


def _library() -> Any:
    older = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
    module, package = ("pytorch_lightning", "pytorch-lightning") if older else ("lightning.pytorch", "lightning")
    return require(module, package=package, extra="lightning", minimum=MINIMUM)


if TYPE_CHECKING:
    GradMedicCallback = LightningHooks


def __getattr__(name: str) -> Any:
    if name == _NAME:
        return library_class(globals(), name, LightningHooks, _library().Callback)
    raise no_such_name(__name__, name)
