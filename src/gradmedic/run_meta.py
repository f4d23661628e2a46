"""What a run folder says of itself: who, when, versions, the models' tree, how the optimizers are set."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradmedic.names import walk_modules
from gradmedic.process_rank import job_of, rank_and_world
from gradmedic.torch_hooks import cuda_in_use

_MAX_MODULES = 5000
#: A webhook's address is its password; so is what stands before the host in an address.
_WEBHOOK = re.compile(r"(?<![\w-])(webhook:)(?!\$)\S+")
_CREDENTIALS = re.compile(r"(://)[^/@\s]+@")


def describe_run(models: Mapping[str, nn.Module], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON-ready content of `run.json`.

    Args:
        models: the watched models by prefix; empty when they are found later.
        settings: what the user asked for (every, limits, transform …).
    """
    import gradmedic

    rank, world = rank_and_world()
    return {
        "gradmedic": gradmedic.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "command": [without_secrets(str(part)) for part in getattr(sys, "orig_argv", sys.argv)],
        "threads": torch.get_num_threads(),
        "rank": rank,
        "world": world,
        "job": job_of(os.environ),
        "distributed": _backend(),
        "cuda": [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())] if cuda_in_use() else [],
        "settings": dict(settings),
        "limits": settings.get("limits"),
        "models": describe_models(models),
    }


def without_secrets(argument: str) -> str:
    """Return an argument of the command line without what only its owner should know.

    Example:
        >>> without_secrets("--sink=webhook:https://hooks.example/T0/B0"), without_secrets("mlflow:https://me:pw@host")
        ('--sink=webhook:***', 'mlflow:https://***@host')
    """
    return _CREDENTIALS.sub(r"\1***@", _WEBHOOK.sub(r"\1***", argument))


def _backend() -> str | None:
    """Return what the ranks of this job talk through; None where they do not, or there is one."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return None
    return str(distributed.get_backend())


def describe_models(models: Mapping[str, nn.Module]) -> list[dict[str, Any]]:
    """Return the module tree: for each module its name, class and own parameters' shapes."""
    tree: list[dict[str, Any]] = []
    for prefix, model in models.items():
        for name, module in walk_modules(model, prefix):
            if len(tree) >= _MAX_MODULES:
                return tree
            tree.append({"name": name, "class": type(module).__name__, "parameters": _shapes(module)})
    return tree


def _shapes(module: nn.Module) -> dict[str, Any]:
    held = {key: parameter for key, parameter in module._parameters.items() if parameter is not None}
    return {
        key: None
        if is_lazy(parameter)
        else {
            "shape": list(parameter.shape),
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "trainable": parameter.requires_grad,
        }
        for key, parameter in held.items()
    }
