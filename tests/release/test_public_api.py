"""What is public is sorted, complete, documented, and importing it is light."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gradmedic as gm

SOURCE = Path(gm.__file__).parent
MODULES = ("clip", "diagnosis", "guard", "init", "plot", "sinks", "stats", "testing")
#: The public names of version 0.1; a name goes only as docs/deprecation.md says.
PROMISED = {
    "Clipper", "Finding", "Frame", "GradmedicError", "InputError", "Monitor", "Run", "TrainingHalted", "TransformError",
    "clip", "clip_grad_norm_", "diagnose", "guard", "init", "open_run", "plot", "residual_scale", "sinks", "stats",
    "testing", "watch",
}  # fmt: skip


def public() -> list[tuple[str, object]]:
    names = [(f"gm.{name}", getattr(gm, name)) for name in gm.__all__]
    for module_name in MODULES:
        module = importlib.import_module(f"gradmedic.{module_name}")
        names += [(f"gm.{module_name}.{name}", getattr(module, name)) for name in module.__all__]
    return names


def in_order(names: list[str]) -> list[str]:
    """Constants, classes, everything else: as ruff's RUF022 has it."""
    return sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def test_names_are_sorted_and_there():
    assert gm.__all__ == in_order(gm.__all__)
    assert set(gm.__all__) == PROMISED
    assert set(gm.__all__) <= set(dir(gm))
    for module_name in MODULES:
        module = importlib.import_module(f"gradmedic.{module_name}")
        assert list(module.__all__) == in_order(module.__all__), module_name
        assert all(hasattr(module, name) for name in module.__all__), module_name


def test_nothing_that_is_imported_for_others_is_left_out():
    """`from x import A as A` means that A is public here; it must be in `__all__` then."""
    for module_name in ("", *MODULES):
        file = SOURCE / module_name / "__init__.py"
        tree = ast.parse(file.read_text("utf-8"))
        exported = {
            alias.asname
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.asname == alias.name
        }
        module = importlib.import_module(f"gradmedic.{module_name}".rstrip("."))
        assert exported <= set(module.__all__), (module_name, exported - set(module.__all__))


def test_everything_has_a_docstring_and_types():
    for name, value in public():
        if inspect.ismodule(value) or inspect.isclass(value) or callable(value):
            text = inspect.getdoc(value) or ""
            assert len(text.partition("\n")[0]) > 10, name
        if inspect.isfunction(value):
            signature = inspect.signature(value)
            assert signature.return_annotation is not signature.empty, name
            for parameter in signature.parameters.values():
                assert parameter.annotation is not parameter.empty, f"{name}: {parameter.name}"


@pytest.mark.parametrize(
    "function", [gm.watch, gm.diagnose, gm.open_run, gm.clip_grad_norm_, gm.Clipper, gm.residual_scale]
)
def test_arguments_are_described(function):
    text = inspect.getdoc(function) or ""
    described = text[text.index("Args:") :]
    for name in inspect.signature(function).parameters:
        assert f"{name}:" in described or f"{name}," in described, f"{function.__name__}: {name}"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="wacth"):
        _ = gm.wacth


def test_importing_is_light():
    """Neither torch nor any optional library, no thread, no file: a script may still set what torch reads at import."""
    heavy = "torch numpy pyarrow pandas matplotlib plotly rich jinja2 tensorboard wandb mlflow lightning transformers"
    heavy += " accelerate keras prometheus_client opentelemetry starlette uvicorn ignite skorch sklearn"
    code = (
        "import sys, threading; before = set(sys.modules); import gradmedic; new = set(sys.modules) - before; "
        f"heavy = set({heavy!r}.split()); "
        "assert not new & heavy, new & heavy; assert threading.active_count() == 1; print(len(new))"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert made.returncode == 0, made.stderr
    assert int(made.stdout) < 60


def test_sources_that_are_imported_have_no_optional_library_at_the_top():
    optional = {
        "matplotlib", "PIL", "plotly", "starlette", "uvicorn", "tensorboard", "wandb", "mlflow", "prometheus_client",
        "opentelemetry", "pandas", "polars", "ignite", "skorch", "keras", "composer",
    }  # fmt: skip
    #: Rooms that are imported only together with their library.
    faces = {"integrations", "plot", "serve"}
    for file in SOURCE.rglob("*.py"):
        if file.relative_to(SOURCE).parts[0] in faces:
            continue
        found = set(re.findall(r"^(?:from|import) (\w+)", file.read_text("utf-8"), re.M))
        assert not found & optional, file
