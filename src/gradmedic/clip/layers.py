"""A policy of its own for each part of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from gradmedic.clip.answers import ask
from gradmedic.clip.base import BaseTransform, Decision, Scope, may_skip, merge, needs_of, scope_of, settle
from gradmedic.clip.chain import as_transform
from gradmedic.clip.matching import Match, check_matched, match
from gradmedic.clip.norm import scale_to
from gradmedic.clip.operations import Scale
from gradmedic.clip.spec import Spec
from gradmedic.clip.state import State
from gradmedic.clip.summary import GradientSummary
from gradmedic.clip.thresholds.base import check_threshold
from gradmedic.errors import InputError
from gradmedic.stats.transfer import to_device


@dataclass(frozen=True, slots=True)
class _Plan:
    """Who decides about which tensors: the patterns' own, and groups whose joint norm a number limits.

    Attributes:
        masks: pattern -> its tensors, bool [N].
        positions: the same on the host.
        group: number of each tensor's group, 0 for none, int64 [N].
        limits: the groups' limits, float64; the first is infinite.
    """

    masks: dict[str, torch.Tensor]
    positions: dict[str, frozenset[int]]
    group: torch.Tensor
    limits: torch.Tensor = field(repr=False)


@dataclass(frozen=True)
class Layers(BaseTransform):
    """Policies by pattern; see `layers`."""

    policies: tuple[tuple[str, Any], ...]
    default: Any = None

    @cached_property
    def _inner(self) -> dict[str, Any]:
        """The transforms, by pattern; numbers are dealt with together."""
        found = {pattern: policy for pattern, policy in self.policies if not isinstance(policy, float)}
        return found if self.default is None else {**found, _DEFAULT: self.default}

    @property
    def scope(self) -> Scope:  # type: ignore[override]
        """Every tensor by itself only if all parts are so; the joint norm of a module needs all of its gradients."""
        numbers = any(isinstance(policy, float) for _, policy in self.policies)
        return "model" if numbers or any(scope_of(each) == "model" for each in self._inner.values()) else "tensor"

    @property
    def may_skip(self) -> bool:  # type: ignore[override]
        """Whether any part may."""
        return any(may_skip(each) for each in self._inner.values())

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """What the parts need."""
        return frozenset().union(*(needs_of(each) for each in self._inner.values()))

    def check(self, spec: Spec) -> None:
        """Raise InputError if a pattern matches none of all the tensors that are trained."""
        check_matched([pattern for pattern, _ in self.policies], spec, "clip.layers")

    def init(self, spec: Spec) -> State:
        """Return the parts' first states. Who owns what is no state: a resumed run may have other limits."""
        self._plan(spec)  # copies to the device are made here, before training
        return State(parts={pattern: each.init(spec) for pattern, each in self._inner.items()})

    def _plan(self, spec: Spec) -> _Plan:
        key = ("layers", tuple((pattern, p if isinstance(p, float) else None) for pattern, p in self.policies))
        if key not in spec.memo:
            spec.memo[key] = self._planned(spec)
        plan: _Plan = spec.memo[key]
        return plan

    def _planned(self, spec: Spec) -> _Plan:
        owners = _owners([pattern for pattern, _ in self.policies], spec)
        places = {pattern: place for place, (pattern, _) in enumerate(self.policies)}
        positions = {
            pattern: frozenset(at for at, (owner, _) in enumerate(owners) if owner == places.get(pattern))
            for pattern in [*places, _DEFAULT]
        }
        masks = {
            pattern: to_device(torch.tensor([at in mine for at in range(len(spec))], device="cpu"), spec.device)
            for pattern, mine in positions.items()
        }
        group, limits = self._numbers(spec, owners)
        return _Plan(
            masks,
            positions,
            to_device(torch.tensor(group, dtype=torch.int64, device="cpu"), spec.device),
            to_device(torch.tensor(limits, dtype=torch.float64, device="cpu"), spec.device),
        )

    def _numbers(self, spec: Spec, owners: Sequence[tuple[int | None, int]]) -> tuple[list[int], list[float]]:
        """Return each tensor's group among those limited by a number (0: none), and the groups' limits."""
        group, limits = [0] * len(spec), [torch.inf]
        places: dict[tuple[int, int], int] = {}
        for at, (owner, module) in enumerate(owners):
            if owner is None or not isinstance(self.policies[owner][1], float):
                continue
            key = (owner, module)
            if key not in places:
                places[key] = len(limits)
                limits.append(self.policies[owner][1])
            group[at] = places[key]
        return group, limits

    def update(self, summary: GradientSummary, state: State) -> tuple[Decision, State]:
        """Let each part decide about its own tensors."""
        plan = self._plan(summary.spec)
        decisions = [_limit_groups(summary, plan)] if len(plan.limits) > 1 else []
        parts: dict[str, State] = {}
        for pattern, each in self._inner.items():
            mask = plan.masks[pattern]
            own = summary.among(mask, plan.positions[pattern])
            decision, parts[pattern] = ask(each, own, state.parts[pattern])
            decisions.append(_confined(decision, mask))
        return merge(decisions), State(parts=parts)

    def settle(self, before: State, after: State, skipped: torch.Tensor) -> State:
        """Let each part settle by itself."""
        parts = {key: settle(each, before.parts[key], after.parts[key], skipped) for key, each in self._inner.items()}
        return State(parts=parts)


_DEFAULT = "(default)"


def _owners(patterns: Sequence[str], spec: Spec) -> list[tuple[int | None, int]]:
    """Return for each tensor the place of the pattern that wins, and the number of the group within its match."""
    matches: list[Match] = [match(pattern, spec) for pattern in patterns]
    owners: list[tuple[int | None, int]] = [(None, 0)] * len(spec)
    # Least specific first, later ones first among equals: what comes after overrides.
    order = sorted(range(len(patterns)), key=lambda place: (matches[place].rank, -place))
    for place in order:
        for number, group in enumerate(matches[place].groups):
            for at in group:
                owners[at] = (place, number)
    return owners


def _limit_groups(summary: GradientSummary, plan: _Plan) -> Decision:
    """Clip the joint norm of each group to its limit, all groups at once."""
    group, limits = plan.group, plan.limits
    largest = summary.norm.max()
    # A power of two, which rounds nothing: the limit of one module must not depend, in its last bit, on which others
    # this rank has.
    divisor = torch.where(largest > 0, largest / torch.frexp(largest).mantissa, torch.ones_like(largest))
    squares = torch.zeros_like(limits).index_add(0, group, (summary.norm / divisor).square())
    sick = torch.zeros_like(limits).index_add(0, group, summary.nonfinite.to(limits.dtype))
    norms = squares.sqrt() * divisor
    factors = scale_to(limits, norms, sick)
    return Decision((Scale(factors[group]),), ((norms > limits) & (sick == 0)).any())


def _confined(decision: Decision, mine: torch.Tensor) -> Decision:
    """Return a decision with factors of 1 for all tensors that are not the part's own."""
    operations = tuple(
        Scale(torch.where(mine, each.factor, torch.ones_like(each.factor))) if isinstance(each, Scale) else each
        for each in decision.operations
    )
    return Decision(operations, decision.clipped, None, decision.skips, decision.halts, decision.notes)


def layers(policies: Mapping[str, Any], default: Any = None) -> Layers:
    """Give parts of the model policies of their own.

    Patterns are compared with whole names of parameters and modules (`*` stands for any characters); what is no name is
    taken for a kind of module: a class ("Conv2d", "MultiheadAttention"), or attention, embedding, norm, RNN, output. A
    name wins over a kind; then the pattern with the most literal characters wins; then the first. Every tensor obeys
    one pattern only.

    Args:
        policies: pattern -> a number, which limits the joint norm of each matched module (or parameter), or a
            transform, which decides about all that the pattern matches.
        default: the same for all other tensors, jointly; None leaves them alone.

    Returns:
        A transform. A pattern that matches nothing is an InputError when training begins, with near names.

    Raises:
        InputError: for something that is neither a number > 0 nor a transform.

    Example:
        >>> layers({"Embedding": 10.0, "MultiheadAttention": 0.5, "Linear": 1.0}).scope
        'model'
    """
    if not isinstance(policies, Mapping) or not policies:
        raise InputError(
            f'layers: expected a mapping such as {{"encoder.*": 1.0, "Embedding": 10.0}}, got {policies!r}'
        )
    read: list[tuple[str, Any]] = []
    for pattern, policy in policies.items():
        if not isinstance(pattern, str) or not pattern:
            raise InputError(f"layers: expected a pattern over names, or a kind of module, got {pattern!r}")
        where = f"layers[{pattern!r}]"
        number = isinstance(policy, (int, float)) and not isinstance(policy, bool)
        read.append((pattern, check_threshold(policy, where) if number else as_transform(policy, where)))
    return Layers(tuple(read), None if default is None else as_transform(default, "layers: default"))
