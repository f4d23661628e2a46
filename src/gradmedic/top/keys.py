"""From what a terminal sends to names of keys."""

from __future__ import annotations

import re

_SEQUENCES = {
    "A": "up",
    "B": "down",
    "C": "right",
    "D": "left",
    "H": "home",
    "F": "end",
    "1~": "home",
    "4~": "end",
    "5~": "page up",
    "6~": "page down",
    "7~": "home",
    "8~": "end",
}
_CONTROLS = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x1b": "escape", "\x03": "q"}
#: CSI and SS3 sequences, with whatever modifiers; or one character.
_KEY = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1bO[@-~]|\x1b(?=\x1b)|.", re.DOTALL)


def decode_keys(data: bytes) -> list[str]:
    """Return the keys of what was read: a character, or a name such as "up", "page down", "enter", "escape".

    Sequences that mean nothing here are left out, and so are control characters.

    Example:
        >>> decode_keys(b"s\\x1b[A\\x1b[6~q")
        ['s', 'up', 'page down', 'q']
    """
    keys = []
    for token in _KEY.findall(data.decode("utf-8", "ignore")):
        key = _key(token)
        if key:
            keys.append(key)
    return keys


def _key(token: str) -> str:
    if len(token) == 1:
        return _CONTROLS.get(token, token if token.isprintable() else "")
    body = re.sub(r"\d*;\d+", "", token[2:]) if ";" in token else token[2:]
    return _SEQUENCES.get(body, "")
