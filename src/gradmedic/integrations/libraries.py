"""Other libraries: imported when they are needed, and only in versions that are known to work."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from collections.abc import MutableMapping
from typing import Any

from gradmedic.errors import InputError


def require(module: str, *, package: str, extra: str, minimum: str) -> Any:
    """Import a module of an optional library.

    Args:
        module: what to import, e.g. "lightning.pytorch".
        package: the name under which it is installed, e.g. "lightning".
        extra: the extra of gradmedic that brings it.
        minimum: oldest version that works, e.g. "2.4".

    Returns:
        The module.

    Raises:
        InputError: the library is not installed, or older than `minimum`; names the command that mends it.
    """
    advice = f"pip install 'gradmedic[{extra}]'"
    try:
        version = importlib.metadata.version(package)
        found = importlib.import_module(module)
    except (importlib.metadata.PackageNotFoundError, ModuleNotFoundError) as error:
        raise InputError(
            f"{package} {minimum} or later is needed here and is not installed ({error}); run: {advice}"
        ) from error
    if _numbers(version) < _numbers(minimum):
        raise InputError(
            f"{package} {minimum} or later is needed here, {version} is installed; run: {advice} --upgrade"
        )
    return found


def _numbers(version: str) -> tuple[int, ...]:
    """Return the release of a version: (2, 6, 0) for "2.6.0rc1"."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[a-z+-]", version, maxsplit=1)[0]))


def library_class(namespace: MutableMapping[str, Any], name: str, hooks: type, base: type) -> type:
    """Make the class that a library calls: our hooks, on the library's own base class.

    Made when it is first asked for, so that importing the module imports no library; kept in the module, so that it is
    made once, and instances can be pickled by its name.

    Args:
        namespace: `globals()` of the module that offers the class.
        name: the class's name there.
        hooks: our methods.
        base: the library's base class.
    """
    made = type(name, (hooks, base), {"__doc__": hooks.__doc__, "__module__": namespace["__name__"]})
    return namespace.setdefault(name, made)  # type: ignore[no-any-return]


def no_such_name(module: str, name: str) -> AttributeError:
    """Return the error for a name that a module does not have."""
    return AttributeError(f"module {module!r} has no attribute {name!r}")
