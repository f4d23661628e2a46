"""From a code and its parameters to words: the message files, and how numbers and names are written."""

from __future__ import annotations

import importlib
import math
import string
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from gradmedic.diagnosis.actions import resolve
from gradmedic.diagnosis.finding import Remedy
from gradmedic.errors import InputError
from gradmedic.plain_text import abridged

LANGUAGES: tuple[str, ...] = ("en", "zh")

#: So many names are spelled out in a sentence; the rest is counted.
SHOWN_NAMES = 3

#: Placeholders that may stand for layers.
_LAYERS = ("where", "layer", "first", "last")


@dataclass(frozen=True, slots=True)
class Words:
    """A finding's text in one language."""

    title: str
    message: str
    remedies: tuple[Remedy, ...]


class Counted(str):
    """A number's text that brings its noun along.

    In a template `{n:tensor|tensors}` reads "1 tensor" or "3 tensors", and `{n:!has|have}` only the word. Chinese needs
    neither.
    """

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        """Return the text, with the word that fits it where `spec` names two."""
        if "|" not in spec:
            return str(self)
        one, _, many = spec.removeprefix("!").partition("|")
        word = one if self == "1" else many
        return word if spec.startswith("!") else f"{self} {word}"


class _Values(dict[str, str]):
    """Texts of placeholders; one that a finding of an older version does not have is left empty."""

    def __missing__(self, key: str) -> str:
        return Counted("")


@lru_cache(maxsize=4)
def messages(lang: str) -> Mapping[str, Any]:
    """Return the message file of a language, read once, when first needed.

    Raises:
        InputError: there is no such language.
    """
    if lang not in LANGUAGES:
        raise InputError(f"lang must be one of {', '.join(LANGUAGES)}, not {lang!r}")
    # tomllib came with Python 3.11; tomli is the same parser for 3.10.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = (
        resources.files("gradmedic.diagnosis").joinpath("messages").joinpath(f"{lang}.toml").read_text(encoding="utf-8")
    )
    parsed: Mapping[str, Any] = toml.loads(text)
    return parsed


def codes() -> tuple[str, ...]:
    """Return every code that has messages, in order."""
    return tuple(sorted(key for key in messages("en") if key.startswith("GM")))


def number(value: float) -> str:
    """Return a number as it reads best in a sentence: integers whole, others with three significant digits."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == int(value) and abs(value) < 1e5:
        return str(int(value))
    return f"{value:.3g}"


def share(value: float) -> str:
    """Return a share in [0, 1] as percent."""
    return f"{100 * value:.3g}%"


def place(name: str, lang: str) -> str:
    """Return the name of a layer or tensor; one of digits and dots alone, as nn.Sequential gives, is called a layer.

    Example:
        >>> place("4", "en"), place("features.4", "en")
        ('layer 4', 'features.4')
    """
    numbered = name[:1].isdigit() and name.replace(".", "").isdigit()
    told: str = messages(lang)["phrases"]["numbered_layer"].format(n=abridged(name)) if numbered else abridged(name)
    return told


def places(entries: Sequence[str], lang: str) -> str:
    """Return names of layers and tensors as they stand in a sentence, as `names` does."""
    return names([place(entry, lang) for entry in entries], lang)


def names(entries: Sequence[str], lang: str) -> str:
    """Return names as they stand in a sentence, at most three of them and the count of the rest.

    Names are anyone's: what a terminal could act upon is spelled out, and the middle of very long ones is left out.
    """
    phrases = messages(lang)["phrases"]
    shown = phrases["list_separator"].join(abridged(entry) for entry in entries[:SHOWN_NAMES])
    rest = len(entries) - SHOWN_NAMES
    return f"{shown}{phrases['and_more'].format(n=rest)}" if rest > 0 else shown


def counted(value: int) -> Counted:
    """Return a count for a template of one's own."""
    return Counted(number(value))


def label(name: str, lang: str, kind: str = "evidence") -> str:
    """Return the name of an evidence, or with kind "units" a unit, in a language; English ones are the data's own."""
    table: Mapping[str, str] = messages(lang).get(kind, {})
    return table.get(name, name)


def unit(name: str, value: object, lang: str) -> str:
    """Return the name of a unit as it stands behind a value: "1 element", "2 elements"."""
    singular: Mapping[str, str] = messages(lang)["one_unit"]
    return singular.get(name, label(name, lang, "units")) if value == 1 else label(name, lang, "units")


def phrase(key: str, params: Mapping[str, Any], lang: str) -> str:
    """Return a phrase of the message file with its placeholders filled in."""
    template: str = messages(lang)["phrases"][key]
    text: str = template.format_map(_plain(params, lang, nested=False))
    return text


def render(code: str, variant: str, params: Mapping[str, Any], lang: str) -> Words:
    """Return title, message and remedies of a finding.

    A rule of the user's own has no place in the message files: its `params` bring the words, "message" at least,
    "title" and "remedy" if it likes, in whatever language they are.

    Args:
        code: for instance "GM301".
        variant: "" for the rule's main message, else the name of one of its variants.
        params: values of the placeholders.
        lang: "en" or "zh".

    Raises:
        InputError: no such language or code.
    """
    table = messages(lang).get(code)
    if table is None:
        if "message" not in params:
            if not code.startswith("GM"):
                raise InputError(
                    f"there are no words for {code!r}: a rule of your own brings them in the params of its Draft, "
                    "params={'title': ..., 'message': ..., 'remedy': ...}; message is a must"
                )
            raise InputError(f"there is no rule {code!r}; there are: {', '.join(codes())}")
        return _own_words(code, params)
    values = _plain(params, lang, nested=True)
    told = _Values(values | _layers_told(params, lang))
    template = table.get("variants", {}).get(variant, table["message"])
    remedies = tuple(
        Remedy(entry["text"].format_map(told), resolve(entry.get("action"), params, values))
        for entry in table.get("remedies", ())
        if (not entry.get("for") or variant in entry["for"])
        and (not entry.get("when") or params.get(entry["when"]))
        and not params.get(entry.get("unless", ""))
    )
    title = table.get("titles", {}).get(variant, table["title"])
    return Words(title, template.format_map(told), remedies)


def _own_words(code: str, params: Mapping[str, Any]) -> Words:
    remedies = (Remedy(str(params["remedy"])),) if params.get("remedy") else ()
    return Words(str(params.get("title") or code), str(params["message"]), remedies)


def placeholders(template: str) -> frozenset[str]:
    """Return the names of a template's placeholders."""
    return frozenset(field for _, field, _, _ in string.Formatter().parse(template) if field)


def _plain(params: Mapping[str, Any], lang: str, *, nested: bool) -> dict[str, str]:
    return _Values({key: _text(value, params, lang, nested=nested) for key, value in params.items()})


def _layers_told(params: Mapping[str, Any], lang: str) -> dict[str, str]:
    """Return what sentences call the layers of a finding; actions want the names themselves."""
    found = {key: params[key] for key in _LAYERS if key in params}
    told = {key: place(value, lang) for key, value in found.items() if _is_name(value)}
    lists = {key: value for key, value in found.items() if isinstance(value, (tuple, list))}
    return told | {key: places([str(each) for each in value], lang) for key, value in lists.items()}


def _is_name(value: object) -> bool:
    return isinstance(value, str) and not value.startswith("@")


def _text(value: Any, params: Mapping[str, Any], lang: str, *, nested: bool) -> str:
    if isinstance(value, str):
        return phrase(value[1:], params, lang) if nested and value.startswith("@") else abridged(value)
    if isinstance(value, (tuple, list)):
        return names([str(entry) for entry in value], lang)
    if value is None:
        return "?"
    return Counted(number(value.item() if hasattr(value, "item") else value))
