"""Which finding explains which: the graph that folds consequences under their cause (rules.md, "Suppress")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gradmedic.diagnosis.finding import Finding, rank_of

_SYMPTOMS = frozenset({"GM301", "GM302", "GM401", "GM403", "GM204"})
#: Rules whose notes become faults by any harm, whatever has done it.
_HARM_ONLY = frozenset({"GM303", "GM304", "GM310", "GM311", "GM312", "GM505", "GM506", "GM507", "GM512"})
#: A loss scaler that skips a NaN leaves weights as they were: only what comes so soon after it is its aftermath.
_SOON = 50
#: Operations that make NaN or infinity of ordinary values, when these lie outside their domain.
DOMAIN_OPERATIONS = frozenset(
    "log log2 log10 log1p sqrt rsqrt div reciprocal acos asin acosh atanh logit norm".split()  # noqa: SIM905
)
#: A cause is seen at most so many steps after its consequence; rules look only every few steps.
SLACK = 10

#: Symptoms in a variant that is written in the script itself, and so follows from nothing else.
_CERTAIN = frozenset({("GM515", "broadcast")})

_Test = Callable[[Finding, Finding], bool]


def _always(_cause: Finding, _effect: Finding) -> bool:
    return True


def _not_later(cause: Finding, effect: Finding) -> bool:
    return cause.step <= effect.step + SLACK


def _names_rows(nonfinite: Finding, bad_input: Finding) -> bool:
    """Whether the origin of the NaN is the input itself, with its rows: then it says all that GM202 says, and more.

    GM202 sees the inputs of the first steps only; what a run is told must not depend on which step the row came in.
    """
    found = nonfinite.variant == "data" and "target" not in nonfinite.where and bool(nonfinite.params.get("rows"))
    return found and nonfinite.step <= bad_input.step


def _knows_better(bad_input: Finding, nonfinite: Finding) -> bool:
    return _not_later(bad_input, nonfinite) and not _names_rows(nonfinite, bad_input)


def _strictly_first(cause: Finding, effect: Finding) -> bool:
    return cause.step <= effect.step


def _earlier(cause: Finding, effect: Finding) -> bool:
    return cause.step < effect.step


def _overlap(cause: Finding, effect: Finding) -> bool:
    return bool(set(cause.where) & set(effect.where)) or not effect.where


def _explosion_first(cause: Finding, effect: Finding) -> bool:
    """The values grew before they overflowed, and nothing says that they were lost in another way."""
    return cause.step <= effect.step and effect.variant != "data" and not _only_harm(effect, cause)


def _broke_first(cause: Finding, effect: Finding) -> bool:
    """The run was seen to break because of it, and not merely to learn nothing."""
    return cause.params.get("harm") != "@harm_not_falling" and _explosion_first(cause, effect)


def _only_harm(cause: Finding, effect: Finding) -> bool:
    """The NaN has an origin of its own, and it is the only sign that what the symptom shows does any harm."""
    return effect.params.get("harm") == "@harm_nonfinite" and _is_own_fault(cause)


def _is_own_fault(nonfinite: Finding) -> bool:
    """Whether a NaN was made where it was found: by the data, or by an operation outside its domain."""
    if nonfinite.code != "GM201":
        return False
    nans = next((each.value for each in nonfinite.evidence if each.name == "NaN elements"), 0)
    if nonfinite.variant in ("loss", "forward"):
        return str(nonfinite.params.get("op", "")) in DOMAIN_OPERATIONS
    return nonfinite.variant == "data" or (nonfinite.variant == "backward" and bool(nans))


def _decay_alone(decay: Finding, _effect: Finding) -> bool:
    return not decay.params.get("by_rate")


def _rate_makes_decay(_cause: Finding, decay: Finding) -> bool:
    return bool(decay.params.get("by_rate"))


def _aftermath(nonfinite: Finding, effect: Finding) -> bool:
    """Whether this is seen of a run that has become NaN: for good, or just now."""
    after = effect.step - nonfinite.step
    return after > 0 and (nonfinite.severity == "critical" or after <= _SOON)


def _same_inputs(cause: Finding, _effect: Finding) -> bool:
    """All samples are the same to the model, and not only what it makes of them."""
    return cause.variant != "prediction"


@dataclass(frozen=True, slots=True)
class Edge:
    """`cause` explains `effect` when `test` holds and, where named, the effect is of that variant."""

    cause: frozenset[str]
    effect: frozenset[str]
    test: _Test = _always
    cause_variants: frozenset[str] = frozenset()
    effect_variants: frozenset[str] = frozenset()

    def holds(self, cause: Finding, effect: Finding) -> bool:
        """Whether this edge leads from one finding to the other."""
        return (
            cause.code in self.cause
            and effect.code in self.effect
            and (not self.cause_variants or cause.variant in self.cause_variants)
            and (not self.effect_variants or effect.variant in self.effect_variants)
            and self.test(cause, effect)
        )


def _edge(cause: str, effect: str | frozenset[str], test: _Test = _always, *, of: str = "", only: str = "") -> Edge:
    effects = frozenset(effect.split()) if isinstance(effect, str) else effect
    return Edge(frozenset(cause.split()), effects, test, frozenset(of.split()), frozenset(only.split()))


EDGES: tuple[Edge, ...] = (
    # Bad data explains the NaN, unless this names the rows; the NaN explains whatever went wrong at or after it.
    _edge("GM202", "GM201", _knows_better),
    _edge("GM201", "GM202", _names_rows, only="nonfinite"),
    _edge("GM202", _SYMPTOMS, _not_later, of="nonfinite"),
    _edge("GM201", _SYMPTOMS | {"GM106"}, _strictly_first, of="data parameter forward loss backward"),
    _edge("GM201", "GM204 GM106", _strictly_first),
    _edge("GM201", _SYMPTOMS, _only_harm),
    # Broken wiring explains what the gradients look like, and a loss that does not fall.
    _edge("GM105", "GM106 GM205 GM101 GM103 GM301 GM403", _always),
    _edge("GM102", "GM101", _overlap),
    # An optimizer of which nothing gets a gradient, beside gradients that no optimizer takes: it holds another network.
    _edge("GM103", "GM102", _always, of="all", only="nothing"),
    _edge("GM105", "GM102", _always, only="nothing"),
    _edge("GM101 GM102 GM103 GM104 GM105 GM111", "GM301 GM403", _not_later),
    _edge("GM111", "GM106 GM205", _always),
    _edge("GM106", "GM205", _always),
    _edge("GM107", "GM302 GM401 GM201 GM403", _explosion_first),
    _edge("GM108", "GM302 GM401 GM201 GM403", _explosion_first),
    # A network that explodes over depth makes any step too large; a step too large makes gradients explode over time.
    _edge("GM302", "GM401 GM201 GM403 GM204", _explosion_first, of="depth"),
    _edge("GM401", "GM302", _not_later, only="time"),
    _edge("GM401 GM302", "GM201 GM204", _broke_first),
    # Adam's second moment keeps the size of gradients that have exploded: its steps then round to nothing.
    _edge("GM401 GM302", "GM106 GM205", _earlier),
    # Gradients that reached the first layer at the start, and vanish after steps that are too large, do so for these.
    _edge("GM401", "GM301", _earlier),
    _edge("GM302", "GM403", _not_later),
    # Zero gradients far down are what vanishing ends in.
    _edge("GM301", "GM101", _not_later, only="zero"),
    _edge("GM301", "GM106", _always, only="partial"),
    _edge("GM301", "GM205", _always),
    _edge("GM401", "GM101", _not_later, only="zero"),
    # What keeps weights from moving explains steps that look too small, in all layers or in one.
    _edge("GM102 GM103 GM104 GM105 GM106 GM111 GM203 GM205 GM206 GM301 GM403", "GM402 GM409", _always),
    _edge("GM301", "GM203 GM206", _always),
    _edge("GM203 GM206", "GM106 GM205", _always),
    _edge("GM403", "GM206", _always),
    _edge("GM203", "GM101", _always, only="zero"),
    # Spikes come of steps that are too large; a stale second moment makes them so, and an embedding may lead.
    _edge("GM107 GM108 GM401", "GM404 GM405 GM406", _not_later),
    _edge("GM302", "GM404 GM405 GM406", _not_later, of="depth"),
    _edge("GM405 GM406", "GM404", _always),
    _edge("GM405", "GM406", _overlap),
    # A run that has diverged, or has become NaN, makes weights, gradients and losses of any size.
    _edge("GM201 GM302", "GM407 GM410", _strictly_first),
    _edge("GM401", "GM410", _strictly_first),
    # Of weights that are NaN, or were lost to an overflow, nothing is active, nothing moves, and nothing differs.
    _edge("GM201", _HARM_ONLY, _aftermath),
    _edge("GM201", "GM101 GM203 GM205 GM206 GM308 GM402 GM404 GM405 GM406 GM408 GM409 GM411", _aftermath),
    _edge("GM201", "GM509 GM510 GM514 GM515", _aftermath),
    # Any step is large beside weights that have been pulled to zero; they pass on no signal, and no gradient. A rate
    # that is far too high makes an ordinary decay, which it multiplies, as large.
    _edge("GM407", "GM401", _decay_alone),
    _edge("GM401", "GM407", _rate_makes_decay),
    _edge("GM407", "GM203 GM206 GM301 GM303 GM304 GM402 GM408 GM409 GM509 GM515", _not_later),
    _edge("GM401 GM407", "GM514", _not_later, only="prediction"),
    # Where nothing is active, or all samples are the same to the model, gradients are small for that reason.
    _edge("GM303 GM304", "GM203 GM206", _not_later),
    _edge("GM514", "GM203 GM206", _not_later, of="prediction"),
    # A loss that does not fit, and data out of scale, explain how gradients, steps and predictions look.
    _edge("GM501 GM502", "GM301 GM303 GM304 GM402 GM403 GM404 GM505 GM507 GM509 GM515", _always),
    _edge("GM503 GM506 GM507", "GM302 GM401 GM201", _explosion_first),
    _edge("GM503 GM506 GM507", "GM303 GM304 GM403 GM404 GM405 GM505 GM515", _always),
    _edge("GM515", "GM402 GM408 GM509 GM510 GM514", _always, of="broadcast"),
    _edge("GM202", "GM501 GM502 GM505 GM506 GM507 GM509 GM515", _not_later, of="nonfinite constant"),
    # What keeps a network from learning keeps it at a constant prediction.
    _edge("GM102 GM103 GM104 GM105 GM106 GM111 GM301 GM402 GM403", "GM509 GM515", _always),
    _edge("GM303 GM304 GM401 GM302", "GM509 GM515", _not_later),
    _edge("GM107 GM108", _HARM_ONLY, _always),
    # Units die, and attention hardens, in steps that are too large; dead and saturated units let no gradient through.
    _edge("GM401", "GM303 GM304 GM310 GM311 GM312", _not_later),
    _edge("GM302", "GM303 GM304 GM310 GM505", _not_later, of="depth"),
    _edge("GM303 GM304", "GM301", _always),
    _edge("GM303", "GM101 GM106", _always, only="zero partial"),
    _edge("GM310", "GM311", _always),
    _edge("GM310", "GM408 GM509 GM510 GM515", _always, of="initial multiplied undivided"),
    _edge("GM310 GM311", "GM404 GM405 GM302", _not_later),
    # A loss that is maximised grows, and all with it; inputs that say nothing, and a leak, explain what is learned.
    _edge("GM504", _SYMPTOMS | _HARM_ONLY | {"GM201", "GM404", "GM405", "GM406", "GM408", "GM411"}, _not_later),
    _edge("GM504", "GM509 GM510 GM514 GM515 GM505 GM507", _always),
    _edge("GM202", "GM514", _always, of="nonfinite"),
    _edge("GM514", "GM202 GM101 GM301 GM303 GM304 GM402 GM403 GM408 GM409 GM511", _same_inputs),
    _edge("GM514", "GM509 GM510 GM515", _always),
    _edge("GM510", "GM408 GM509 GM515", _always),
    _edge("GM513", "GM411", _always),
    # What is left over is explained by whatever else keeps a network from learning.
    _edge("GM102 GM103 GM104 GM105 GM106 GM107 GM109 GM111 GM113 GM203 GM205 GM206", "GM510", _always),
    _edge("GM301 GM302 GM303 GM304 GM305 GM306 GM307 GM401 GM402 GM403 GM407", "GM510", _always),
    _edge("GM501 GM502 GM503 GM506 GM507 GM511", "GM510", _always),
    _edge("GM102 GM104 GM106 GM301 GM303 GM304 GM305 GM306 GM402", "GM514", _always, only="prediction"),
    # In a recurrent net what happens over time explains what is seen of depth, of steps, and of what is not learned.
    _edge("GM307", "GM302 GM401 GM201 GM403 GM404 GM405 GM407 GM410 GM303 GM304", _explosion_first, of="exploding"),
    _edge("GM307", "GM505 GM509 GM510 GM515 GM408", _always, of="exploding"),
    _edge("GM401", "GM307", _earlier, only="exploding"),
    _edge("GM307", "GM301 GM402 GM203 GM205 GM206 GM304 GM408 GM509 GM510 GM515", _always, of="vanishing"),
    _edge("GM303", "GM307", _always, only="vanishing"),
    # One batch that is unlike the others explains the step that it makes, and what comes of it.
    _edge("GM508", "GM201 GM204 GM302 GM303 GM304 GM310 GM312 GM401 GM404 GM405 GM406 GM407", _strictly_first),
    _edge("GM309", "GM402 GM408 GM509 GM510 GM515", _always, of="collapsed"),
    # The first operations of a graph that is never let go are those of the first batch, in every step.
    _edge("GM112", "GM511", _always, only="repeated"),
    # Classes one after the other, or only one, explain losses that jump at their borders, and the constant answer.
    _edge("GM511", "GM401 GM404 GM405 GM408 GM509 GM510 GM515", _always),
    # Noise is what is left of a gradient that nothing useful is in.
    _edge("GM101 GM102 GM103 GM104 GM105 GM111 GM301 GM303 GM401 GM402 GM501 GM502 GM510 GM514", "GM408", _always),
    # Units that begin as copies, and a signal that grows or fades at the start, show in whatever comes of them.
    _edge("GM305", "GM301 GM302 GM303 GM304 GM306 GM308 GM312 GM401 GM402 GM403 GM404 GM408 GM409", _not_later),
    _edge("GM305", "GM101 GM106 GM203 GM505 GM509 GM514 GM515", _always),
    _edge("GM306", "GM203 GM301 GM304 GM402 GM403 GM404 GM405 GM408 GM409 GM505 GM509 GM514 GM515", _not_later),
    _edge("GM306", "GM302 GM401 GM201 GM204 GM312", _explosion_first),
    _edge("GM306", "GM303", _not_later),
    # A model whose normalisation and dropout are off, or whose normalisation has nothing to work with.
    _edge("GM109 GM113", "GM301 GM302 GM303 GM304 GM306 GM401 GM402 GM509 GM514 GM515", _not_later),
    # Where NaN is the only harm, what was merely odd before it is no cause.
    _edge("GM201", _HARM_ONLY, _only_harm),
)


def fold(listed: Sequence[Finding]) -> list[Finding]:
    """Fold consequences under their causes.

    Args:
        listed: findings in ranked order.

    Returns:
        Root causes in that order, each with all that follows from it, directly or not, in `folded`. A cause that is a
        mere note explains nothing that is more than a note. Where two findings explain each other, the better ranked
        one is the cause.
    """
    parent: list[int | None] = [None] * len(listed)
    for place, effect in enumerate(listed):
        for candidate, cause in enumerate(listed):
            if candidate != place and explains(cause, effect) and not _leads_to(parent, candidate, place):
                parent[place] = candidate
                break
    children: dict[int, list[Finding]] = {}
    for place, finding in enumerate(listed):
        root = _root(parent, place)
        if root != place:
            children.setdefault(root, []).append(finding)
    return [
        replace(finding, folded=tuple(children.get(place, ())))
        for place, finding in enumerate(listed)
        if parent[place] is None
    ]


def explains(cause: Finding, effect: Finding) -> bool:
    """Return whether one finding is the cause of another."""
    if rank_of(cause.severity) == 0 < rank_of(effect.severity):
        return False
    if (effect.code, effect.variant) in _CERTAIN:
        return False
    return any(edge.holds(cause, effect) for edge in EDGES)


def _root(parent: Sequence[int | None], place: int) -> int:
    while (above := parent[place]) is not None:
        place = above
    return place


def _leads_to(parent: Sequence[int | None], place: int, ancestor: int) -> bool:
    """Whether `ancestor` is above `place`: folding it under `place` would close a circle."""
    at: int | None = place
    while at is not None:
        if at == ancestor:
            return True
        at = parent[at]
    return False
