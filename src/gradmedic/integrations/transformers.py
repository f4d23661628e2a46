"""Hugging Face Transformers: a callback for `Trainer(callbacks=[…])`.

`GradMedicCallback` is made from `transformers.TrainerCallback` when it is first asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradmedic.integrations.callback import WatchingCallback, guarded
from gradmedic.integrations.libraries import library_class, no_such_name, require

MINIMUM = "5.0"
#: In a checkpoint's folder: step counters and the transform's state.
STATE_FILE = "gradmedic.pt"
_NAME = "GradMedicCallback"


class TransformersHooks(WatchingCallback):
    """Watches what a Transformers `Trainer` trains; see `WatchingCallback` for the arguments.

    The trainer's own events show gradients after clipping; here they are read before as well. The recorded loss is that
    of `backward()`, which `logging_nan_inf_filter` does not touch. Metrics of evaluations are logged with the last
    step, `stop_on` sets `control.should_training_stop`, and the state travels in checkpoint folders.

    Example:
        >>> from gradmedic.integrations.transformers import GradMedicCallback  # doctest: +SKIP
        >>> trainer = Trainer(model, args, callbacks=[GradMedicCallback("runs/exp1")])  # doctest: +SKIP
    """

    @guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training begins, or goes on from a checkpoint."""
        optimizer = torch_optimizer(kwargs.get("optimizer"))
        if state.global_step:
            self._resume(args, state.global_step)
        self._attendance.begin(kwargs.get("model"), optimizer)

    @guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step is done."""
        if self._attendance.should_stop():
            control.should_training_stop = True

    @guarded
    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """An evaluation has ended."""
        self._attendance.log(metrics or {})

    @guarded
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint was written."""
        folder = _checkpoint(args, state.global_step)
        taken = self._attendance.state_dict()
        if taken and folder.is_dir() and state.is_world_process_zero:
            import torch

            torch.save(taken, folder / STATE_FILE)

    @guarded
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training has come to its end."""
        self._attendance.end()

    def _resume(self, args: Any, step: int) -> None:
        named = getattr(args, "resume_from_checkpoint", None)
        folder = Path(named) if isinstance(named, str) and Path(named).is_dir() else _checkpoint(args, step)
        if (folder / STATE_FILE).is_file():
            import torch

            self._attendance.load_state_dict(torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True))


def torch_optimizer(optimizer: Any) -> Any:
    """Return the torch optimizer inside Accelerate's wrappers; None for an engine's stand-in, which has no tensors."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    import torch

    return optimizer if isinstance(optimizer, torch.optim.Optimizer) else None


def _checkpoint(args: Any, step: int) -> Path:
    return Path(args.output_dir) / f"checkpoint-{step}"


if TYPE_CHECKING:
    GradMedicCallback = TransformersHooks


def __getattr__(name: str) -> Any:
    if name == _NAME:
        library = require("transformers", package="transformers", extra="transformers", minimum=MINIMUM)
        return library_class(globals(), name, TransformersHooks, library.TrainerCallback)
    raise no_such_name(__name__, name)
