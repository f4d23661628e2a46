"""Which tensors a user's pattern means: a name with wildcards, or a kind of module."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gradmedic.clip.spec import ROLES, Spec
from gradmedic.errors import InputError

#: How a pattern was understood; a name is more specific than a kind.
NAME, KIND = 1, 0


@dataclass(frozen=True, slots=True)
class Match:
    """What a pattern matches.

    Attributes:
        groups: positions of tensors that belong together: those of one matched module, or one matched tensor.
        rank: (NAME or KIND, number of literal characters): the most specific pattern wins.
    """

    groups: tuple[tuple[int, ...], ...]
    rank: tuple[int, int]


def match(pattern: str, spec: Spec) -> Match:
    """Return what a pattern means: parameter names, module names, and where it is neither, kinds of modules.

    A pattern is compared with whole qualified names; `*` stands for any characters, dots included. A module's name
    means all tensors below it; of nested modules that match, the outermost ones. A kind is the name of a class
    ("Conv2d", "MultiheadAttention"), a base class, or one of the roles attention, embedding, norm, RNN, output.

    Returns:
        The match; its `groups` are empty when there is none.
    """
    by_name = _groups_by_name(pattern, spec)
    literal = sum(character not in "*?[]" for character in pattern)
    if by_name:
        return Match(by_name, (NAME, literal))
    return Match(_groups_by_kind(pattern, spec), (KIND, literal))


def _groups_by_name(pattern: str, spec: Spec) -> tuple[tuple[int, ...], ...]:
    groups: dict[str, list[int]] = {}
    for at, tensor in enumerate(spec.tensors):
        names = [module.name for module in tensor.modules if module.name] + [tensor.name]
        matched = next((name for name in names if fnmatchcase(name, pattern)), None)
        if matched is not None:
            groups.setdefault(matched, []).append(at)
    return tuple(tuple(group) for group in groups.values())


def _groups_by_kind(pattern: str, spec: Spec) -> tuple[tuple[int, ...], ...]:
    groups: dict[str, list[int]] = {}
    for at, tensor in enumerate(spec.tensors):
        matched = next((module.name for module in tensor.modules if pattern in module.kinds), None)
        if matched is not None:
            groups.setdefault(matched, []).append(at)
    return tuple(tuple(group) for group in groups.values())


def check_matched(patterns: Iterable[str], spec: Spec, where: str) -> None:
    """Raise InputError for a pattern that matches nothing; the message lists near names and the kinds here."""
    for pattern in patterns:
        if not match(pattern, spec).groups:
            raise InputError(_unmatched(pattern, spec, where))


def _unmatched(pattern: str, spec: Spec, where: str) -> str:
    names = {tensor.name for tensor in spec.tensors}
    kinds: set[str] = set()
    for tensor in spec.tensors:
        names |= {module.name for module in tensor.modules if module.name}
        kinds |= {kind for module in tensor.modules for kind in (module.kinds[0], *module.kinds) if kind in ROLES}
        kinds |= {module.kinds[0] for module in tensor.modules}
    known = sorted(names | kinds)
    near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.4) or sorted(names)[:3]
    listed = f"; kinds here: {', '.join(sorted(kinds))}" if kinds else ""
    return (
        f"{where}: the pattern {pattern!r} matches no parameter, no module and no kind of module; near names: "
        f"{', '.join(near) or '(none)'}{listed}"
    )
