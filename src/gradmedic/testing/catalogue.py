"""All models and all faults there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gradmedic.testing import gan, mlp, recurrent, resnet, transformer
from gradmedic.testing.case import Case, Fault

#: Name of each model -> the function that makes it.
MODELS: Mapping[str, Callable[..., Case]] = {
    "mlp": mlp.mlp,
    "resnet18": resnet.resnet18,
    "transformer": transformer.transformer,
    "rnn": recurrent.rnn,
    "lstm": recurrent.lstm,
    "gan": gan.gan,
}

_FAULTS = {
    "mlp": mlp.FAULTS,
    "resnet18": resnet.FAULTS,
    "transformer": transformer.FAULTS,
    "rnn": recurrent.FAULTS,
    "lstm": recurrent.FAULTS,
    "gan": gan.FAULTS,
}


def faults(model: str | None = None) -> list[Fault]:
    """Return every fault that a model of `gradmedic.testing` can be given, with the finding that names it.

    Args:
        model: only those of this one.

    Example:
        >>> [fault.code for fault in faults("gan")]
        ['GM410']
    """
    return [
        Fault(name, fault, code, says)
        for name, known in _FAULTS.items()
        if model in (None, name)
        for fault, (code, says) in known.items()
    ]
