"""Libraries that only some faces need: imported when they are used, and named when they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from gradmedic.errors import InputError


def needed(module: str, why: str, extra: str) -> ModuleType:
    """Import a module that an extra brings.

    Args:
        module: its name.
        why: who needs it, the beginning of a sentence: "the page needs plotly".
        extra: what to install.

    Raises:
        InputError: it is not installed; or it is, and cannot be imported, which is said with its own words: to install
            it again would not help.

    Example:
        >>> needed("json", "the page needs json", "report").__name__
        'json'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # What is missing may be something that the module itself imports.
        if error.name is None or f"{module}.".startswith(f"{error.name}."):
            raise InputError(f"{why}, which is not installed: pip install 'gradmedic[{extra}]'") from error
        raise InputError(f"{why}, which is installed, but lacks {error.name}: install that") from error
    except ImportError as error:
        raise InputError(f"{why}, which is installed, but cannot be imported: {error}") from error
