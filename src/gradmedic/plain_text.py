"""Names of a run as a person may be shown them: they are anyone's, and may hold whatever a terminal acts upon."""

from __future__ import annotations

#: Letters of a name that are shown within a sentence.
LONGEST = 100


def plain(text: object) -> str:
    """Return a text on one line with all that a terminal could act upon spelled out.

    Example:
        >>> plain("a\\nb")
        'a\\\\nb'
    """
    raw = str(text)
    if raw.isprintable():
        return raw
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii") for sign in raw)


def abridged(name: object, limit: int = LONGEST) -> str:
    """Return a plain text of at most `limit` letters; what is left out is its middle, since its end says most.

    Example:
        >>> abridged("encoder.layers.11.weight", 12)
        'enco….weight'
    """
    text = plain(name)
    if len(text) <= limit:
        return text
    head = (limit - 1) // 3 + 1
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"
