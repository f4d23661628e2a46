"""What a code means: the pages that come with the rules."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import resources

from gradmedic.diagnosis import wording
from gradmedic.diagnosis.rules import RULES
from gradmedic.errors import InputError


def explain(code: str | None, lang: str = "en") -> str:
    """Return the page of a code as markdown, or, without a code, the table of all codes.

    Args:
        code: for instance "GM301", in any case; a rule's name ("vanishing-gradient") does as well.
        lang: "en" or "zh".

    Raises:
        InputError: no such code or language; the message lists near ones, if any, else how to list all.
    """
    wording.messages(lang)
    if code is None:
        return index(lang)
    names = {rule.name: rule.code for rule in RULES}
    wanted = names.get(code.lower(), code.upper())
    if wanted not in names.values():
        near = get_close_matches(code.upper(), names.values(), n=4, cutoff=0.5)
        near += [f"{names[name]} ({name})" for name in get_close_matches(code.lower(), names, n=3, cutoff=0.5)]
        hint = f"near it: {', '.join(near)}" if near else "`gradmedic explain` lists all"
        raise InputError(f"there is no rule {code!r}; {hint}")
    page = resources.files("gradmedic.diagnosis").joinpath("pages").joinpath(f"{wanted}.{lang}.md")
    return page.read_text(encoding="utf-8")


def index(lang: str = "en") -> str:
    """Return a markdown table of all codes: code, name, title, kind."""
    kinds = wording.messages(lang)["kinds"]
    lines = [f"| {' | '.join(kinds['header'])} |", "|---|---|---|---|"]
    for rule in sorted(RULES, key=lambda rule: rule.code):
        title = wording.messages(lang)[rule.code]["title"]
        lines.append(f"| {rule.code} | {rule.name} | {title} | {kinds[rule.kind]} |")
    return "\n".join(lines) + "\n"
