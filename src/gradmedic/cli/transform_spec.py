"""Reads `--clip`: a number, or calls of gradmedic's own transforms with literal arguments. Nothing is evaluated.

`1.0` means `norm(1.0)`, and `zclip` means `zclip()`; `chain(norm(1.0), value(0.1))` and `norm(percentile(95, 100))`
nest. Names are those that `gradmedic.clip` and `gradmedic.guard` export, everything else is refused.
"""

from __future__ import annotations

import ast
import difflib
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from gradmedic.errors import InputError

Names = Mapping[str, Callable[..., Any]]


class _Refused(InputError):
    """A transform has refused its arguments: its own words say more than a list of names."""


def parse_transform(spec: str, names: Names | None = None) -> Any:
    """Return the transform that a specification describes.

    Args:
        spec: for example `1.0`, `norm(1.0)`, `clip.agc(0.01)`, `chain(zclip(), guard.skip_nonfinite(5))`.
        names: what may be called; the public names of `gradmedic.clip` and `gradmedic.guard` by default.

    Raises:
        InputError: with the list of names, when it is not such a specification or a transform refuses its arguments.

    Example:
        >>> parse_transform("norm(max(1, 2))", {"norm": float})
        Traceback (most recent call last):
        gradmedic.errors.InputError: --clip "norm(max(1, 2))": there is no transform 'max'; there are: norm
    """
    known = public_names() if names is None else names
    try:
        body = ast.parse(spec.strip(), mode="eval").body
        value = _value(body, known)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = _call(ast.Call(ast.Name("norm"), [body], []), known)
        if not (hasattr(value, "init") and hasattr(value, "update")):
            raise InputError("expected a number or a call that makes a transform, such as norm(1.0)")
    except SyntaxError as error:
        raise InputError(f'--clip "{spec}": {error.msg}; {_listing(known)}') from None
    except _Refused as error:
        raise InputError(f'--clip "{spec}": {error}') from None
    except InputError as error:
        raise InputError(f'--clip "{spec}": {error}; {_listing(known)}') from None
    return value


def public_names() -> dict[str, Callable[..., Any]]:
    """Return the functions that `gradmedic.clip` and `gradmedic.guard` export."""
    names: dict[str, Callable[..., Any]] = {}
    for module_name in ("gradmedic.guard", "gradmedic.clip"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name != module_name:
                raise
            continue
        exported = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
        for name in exported:
            value = getattr(module, name)
            if name.islower() and getattr(value, "__module__", "").startswith(("gradmedic.clip", "gradmedic.guard")):
                names[name] = value
    return names


def _listing(names: Names) -> str:
    return f"there are: {', '.join(sorted(names))}"


def _value(node: ast.expr, names: Names) -> Any:
    if isinstance(node, ast.Call):
        return _call(node, names)
    if isinstance(node, (ast.Name, ast.Attribute)):  # `zclip` for `zclip()`
        return _call(ast.Call(node, [], []), names)
    if isinstance(node, (ast.List, ast.Tuple)):
        entries = [_value(entry, names) for entry in node.elts]
        return entries if isinstance(node, ast.List) else tuple(entries)
    if isinstance(node, ast.Dict):
        if any(key is None for key in node.keys):
            raise InputError("a mapping is written out in full, without **")
        bare = next((key.id for key in node.keys if isinstance(key, ast.Name)), None)
        if bare is not None:
            raise InputError(f"expected a name in quotes, as in {{'{bare}': ...}}, got {bare}")
        return {
            _value(key, names): _value(value, names) for key, value in zip(node.keys, node.values, strict=True) if key
        }
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise InputError(f"expected a literal or a call, got {ast.unparse(node)!r}") from None


def _call(node: ast.Call, names: Names) -> Any:
    name = _name(node.func)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        raise InputError(f"there is no transform {name!r}" + (f", did you mean {near[0]}" if near else ""))
    if any(isinstance(argument, ast.Starred) for argument in node.args) or any(k.arg is None for k in node.keywords):
        raise InputError("arguments are written out in full, without * or **")
    positional = [_value(argument, names) for argument in node.args]
    keywords = {keyword.arg: _value(keyword.value, names) for keyword in node.keywords if keyword.arg is not None}
    try:
        return names[name](*positional, **keywords)
    except (TypeError, ValueError) as error:
        raise _Refused(f"{name}: {error}") from None


def _name(node: ast.expr) -> str:
    """Return the called name: `norm`, or the last part of `clip.norm`, `guard.x`, `gm.clip.norm`."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise InputError(f"expected a transform's name, got {ast.unparse(node)!r}")
    parts.append(node.id)
    if not set(parts[1:]) <= {"gm", "gradmedic", "clip", "guard"}:
        raise InputError(f"expected a transform's name, got {'.'.join(reversed(parts))!r}")
    return parts[0]
