"""`gradmedic env`: what a report of a problem needs to say about the machine."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import sys
from typing import Any

from gradmedic import __version__
from gradmedic.cli.command import FINE

PACKAGES = ("torch", "numpy", "pyarrow", "rich", "jinja2", "triton")
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "GRADMEDIC_LANG",
    "GRADMEDIC_RUN_DIR",
    "LANG",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "PYTHONPATH",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "RANK",
    "TORCHELASTIC_RUN_ID",
    "WORLD_SIZE",
)


class EnvCommand:
    """Describes the environment."""

    summary = "describe versions, devices and settings, for a report of a problem"
    example = "example: gradmedic env --json"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--json", action="store_true", help="write JSON")

    def run(self, args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Print the description."""
        facts = collect()
        if args.json:
            print(json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False))
        else:
            width = max(map(len, facts))
            for name, value in facts.items():
                print(f"{name:<{width}}  {_plain(value)}")
        return FINE


def collect() -> dict[str, Any]:
    """Return the facts: versions, processor, devices, variables that are set; JSON-ready."""
    facts: dict[str, Any] = {
        "gradmedic": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "processors": os.cpu_count(),
    }
    facts.update({name: _version(name) for name in PACKAGES})
    facts["native_kernel"] = _native_kernel()
    facts.update(_torch_facts())
    facts["variables"] = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    return facts


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _native_kernel() -> bool:
    try:
        importlib.import_module("gradmedic.stats._native")
    except ImportError:
        return False
    return True


def _torch_facts() -> dict[str, Any]:
    try:
        import torch
    except Exception as error:
        return {"torch_error": f"{type(error).__name__}: {error}"}
    facts: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
        "distributed": torch.distributed.is_available(),
    }
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    facts["cuda_devices"] = [torch.cuda.get_device_name(index) for index in range(count)]
    return facts


def _plain(value: Any) -> str:
    if value is None:
        return "not there"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key}={entry}" for key, entry in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
