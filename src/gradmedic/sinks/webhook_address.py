"""A webhook's address, which is a secret: what may be shown of it, and what must not be."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from gradmedic.errors import InputError

_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
#: Shorter parts of an address tell nothing, and would be taken out of ordinary words.
_LEAST_SECRET = 4


def check_address(url: Any) -> str:
    """Return the part of an address that may be shown.

    Raises:
        InputError: it is none that can be posted to. It is not shown, and no cause is chained that shows it.
    """
    shown = _shown(url)
    if shown is None:
        raise InputError(
            "Webhook: expected an address that begins with https:// or http://, of a host, a port from 1 to 65535 if "
            "any, and a path; without a user name or password, and with spaces, line ends and whatever is not ASCII "
            "percent-encoded (it is not shown here)"
        )
    return shown


def secrets_of(url: str) -> tuple[str, ...]:
    """Return the texts that no message may contain, the longest first, so that none leaves a rest of another."""
    parts = urlsplit(url)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    values = [value for _, value in parse_qsl(parts.query)]
    pieces = {*parts.path.split("/"), *re.split("[&=]", parts.query), *values, parts.query, parts.fragment}
    found = {url, target, parts.path, *pieces, f"/?{parts.query}" if parts.query else ""}
    return tuple(sorted((text for text in found if len(text) >= _LEAST_SECRET), key=len, reverse=True))


def _shown(url: Any) -> str | None:
    # Before it is taken apart: `urlsplit` leaves out line ends and tabs, which the one who posts does not.
    if not isinstance(url, str) or not all("!" <= char <= "~" for char in url):
        return None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        return None
    place = f"[{host}]" if ":" in host else host
    netloc = re.sub(r":\d*$", "", parts.netloc)
    if not _HOST.fullmatch(netloc):
        return None
    return f"{parts.scheme}://{place}/…"
