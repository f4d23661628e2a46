"""The engine: feeds frames and events to the rules, online and offline alike, and keeps what they say."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gradmedic.diagnosis import wording
from gradmedic.diagnosis.draft import Draft, Rule
from gradmedic.diagnosis.finding import Finding, rank_of
from gradmedic.diagnosis.harm import CALM, WORSE, at_the_end, quotes
from gradmedic.diagnosis.history import History
from gradmedic.diagnosis.layout import Layout, layout_of
from gradmedic.diagnosis.limits import Limits, checked_limits
from gradmedic.diagnosis.ranking import ranked
from gradmedic.diagnosis.rules import select
from gradmedic.diagnosis.suppression import explains, fold
from gradmedic.diagnosis.view import View
from gradmedic.facts import Facts
from gradmedic.frame import Frame
from gradmedic.types import Event
from gradmedic.user_errors import trouble_of

_logger = logging.getLogger(__name__)
_Key = tuple[str, str, str]
#: Rank of a finding that is a fault for certain, and no warning.
_FAULT = rank_of("error")


class Engine:
    """Judges a run as it goes.

    Hand it every event and every frame in order; each `on_frame` returns the findings that this frame brought. Memory
    is bounded: scalars of 512 steps, tensor columns of 64. Once the run has ended, `revised` holds the earlier findings
    that say something else now: how often it was so, or how the run went on.

    Args:
        rules: "default", or a sequence of codes and rule objects.
        limits: the user's own alarm: a pre-clip norm for the whole model, or a mapping from pattern to norm.
        lang: language of the messages, "en" or "zh".
        strict: raise what a rule raises, instead of switching that rule off.

    Raises:
        InputError: unknown code or language, or limits that are not positive numbers.

    Example:
        >>> engine = Engine()
        >>> engine.on_frame(Frame(step=0, optimizer="SGD", loss=2.3, grad_norm=1.0))
        []
        >>> engine.finish()
        []
    """

    def __init__(
        self,
        *,
        rules: str | Sequence[str | Rule] = "default",
        limits: Limits = None,
        lang: str = "en",
        strict: bool = False,
    ) -> None:
        wording.messages(lang)
        self.lang = lang
        self.strict = strict
        self.errors: list[str] = []
        self.revised: list[Finding] = []
        self.facts: Facts | None = None
        self._limits = checked_limits(limits)
        self._rules = select(rules)
        self._sampled = frozenset(id(rule) for rule in self._rules if getattr(rule, "sampled", False))
        self._columns = sorted(frozenset().union(*(rule.needs for rule in self._rules)) | {"norm"})
        self._histories: dict[str, History] = {}
        self._layouts: dict[str, Layout] = {}
        self._last: dict[str, Frame] = {}
        self._events: list[Event] = []
        self._found: dict[_Key, Finding] = {}
        self._finished = False

    def on_event(self, event: Event) -> None:
        """Take one event; it is seen by the rules at the next frame."""
        if event.get("kind") == "facts":
            self.facts = Facts.from_json(event["facts"])
            self._layouts.clear()
        else:
            self._events.append(event)

    def on_frame(self, frame: Frame) -> list[Finding]:
        """Take one frame.

        Returns:
            The findings that are new with it, or have become more severe, in the order in which they were made.
        """
        history = self._histories.get(frame.optimizer)
        if history is None:
            history = self._histories[frame.optimizer] = History(frame.optimizer, self._columns)
        table = history.push(frame)
        self._last[frame.optimizer] = frame
        events, self._events = self._events, []
        return self._judge(self._view(frame, history, events, table=table, final=False))

    def finish(self) -> list[Finding]:
        """End the run: evaluate every rule once more for each optimizer. Idempotent.

        Returns:
            The findings that are new with it.
        """
        if self._finished:
            return []
        self._finished = True
        before = dict(self._found)
        made: list[Finding] = []
        for name, history in self._histories.items():
            events, self._events = self._events, []
            view = self._view(self._last[name], history, events, table=False, final=True)
            made += self._judge(view)
            for rule in tuple(self._rules):
                self._guarded(rule, view, self._withdraw)  # what stood for the sake of one that is taken back too
            self._say_how_it_ended(view)
        kept = {id(finding) for finding in [*before.values(), *made]}
        self.revised = [finding for finding in self._found.values() if id(finding) not in kept]
        return made

    def _say_how_it_ended(self, view: View) -> None:
        """Word findings anew that were made before it was known how the run goes on.

        These are all that were made before the loss could tell anything, or before it told of harm; those that quote a
        loss which does not fall, to the end; and in a run that became NaN those that quote one which was finite still.
        """
        for key, finding in self._found.items():
            said = finding.params.get("harm")
            if finding.optimizer not in ("", view.frame.optimizer):
                continue
            if said in CALM:
                now = {**quotes(view.loss, view.harm), "harm": at_the_end(view.harm, note=finding.severity == "info")}
            elif view.harm.reason == "not_falling" and said == view.harm.phrase and "recent_to" in finding.params:
                now = quotes(view.loss, view.harm)
            elif view.harm.reason == "nonfinite" and said in WORSE:
                now = {"harm": WORSE[said], "harm_step": view.harm.step}
            else:
                continue
            self._found[key] = in_language(replace(finding, params={**finding.params, **now}), self.lang)

    def findings(self, lang: str | None = None) -> list[Finding]:
        """Return all findings, the most likely root cause first, consequences folded under their cause."""
        wanted = lang or self.lang
        listed = fold(ranked(self._found.values()))
        return listed if wanted == self.lang else [in_language(finding, wanted) for finding in listed]

    def _view(self, frame: Frame, history: History, events: list[Event], *, table: bool, final: bool) -> View:
        layout = self._layouts.get(frame.optimizer)
        if layout is None or layout.names != history.names:
            layout = self._layouts[frame.optimizer] = layout_of(history.names, self.facts)
        return View(frame, history, layout, self.facts, events, self._histories, table, self._limits, final)

    def _judge(self, view: View) -> list[Finding]:
        made: list[Finding] = []
        quiet = not (view.frame.modules or view.events or view.final)
        found = {code for code, _, _ in self._found}
        for rule in tuple(self._rules):
            try:  # written out: this loop runs at every step, and a call costs as much as most rules
                if not quiet or id(rule) not in self._sampled:
                    for draft in rule.evaluate(view):
                        finding = self._keep(rule, draft, view)
                        if finding is not None:
                            made.append(finding)
                            found.add(rule.code)
                if rule.code in found:
                    self._withdraw(rule, view)
            except Exception as error:
                self._failed(rule, error)
        return made

    def _guarded(self, rule: Rule, view: View, act: Callable[[Rule, View], None]) -> None:
        """Let a rule act; one that raises is switched off."""
        try:
            act(rule, view)
        except Exception as error:
            self._failed(rule, error)

    def _keep(self, rule: Rule, draft: Draft, view: View) -> Finding | None:
        optimizer = view.frame.optimizer if draft.optimizer is None else draft.optimizer
        key = (rule.code, optimizer, draft.key)
        old = self._found.get(key)
        if old is not None and rank_of(old.severity) >= rank_of(draft.severity):
            if view.final and getattr(rule, "lasting", False):
                self._bring_up_to_date(key, draft)
            return None
        finding = self._found[key] = _worded(rule, draft, view, optimizer, self.lang)
        return finding

    def _bring_up_to_date(self, key: _Key, draft: Draft) -> None:
        """Let a finding say how often, or how long, it was so in the whole run; what it is and since when stays."""
        old = self._found[key]
        if old.variant == draft.variant and old.where == draft.where:
            params = {**old.params, **draft.params, "step": old.step}
            now = replace(old, params=params, evidence=draft.evidence)
            self._found[key] = in_language(now, self.lang)

    def _withdraw(self, rule: Rule, view: View) -> None:
        holds = getattr(rule, "holds", None)
        if holds is None or not self._found:
            return
        for key, finding in tuple(self._found.items()):
            if key[0] == rule.code and not holds(finding, view) and not self._has_done_damage(finding):
                del self._found[key]

    def _has_done_damage(self, cause: Finding) -> bool:
        """Whether a fault that stands follows from this one: what has led to it is not forgiven when the loss falls."""
        return any(
            rank_of(effect.severity) >= _FAULT and effect.code != cause.code and explains(cause, effect)
            for effect in self._found.values()
        )

    def _failed(self, rule: Rule, error: Exception) -> None:
        if self.strict:
            raise error
        self._rules.remove(rule)
        what = trouble_of(error) or f"{type(error).__name__}: {error}"
        message = f"rule {rule.code} {rule.name} is switched off: {what}"
        self.errors.append(message)
        _logger.warning("gradmedic: %s", message)


def in_language(finding: Finding, lang: str) -> Finding:
    """Return the finding, and all that is folded under it, worded in another language."""
    words = wording.render(finding.code, finding.variant, finding.params, lang)
    return replace(
        finding,
        title=words.title,
        message=words.message,
        remedies=words.remedies,
        lang=lang,
        folded=tuple(in_language(entry, lang) for entry in finding.folded),
    )


def _worded(rule: Rule, draft: Draft, view: View, optimizer: str, lang: str) -> Finding:
    said = quotes(view.loss, view.harm) if "loss_first" in draft.params else {}
    params: Mapping[str, object] = {
        "step": draft.step,
        "where": draft.where,
        "optimizer": optimizer,
        **said,
        **draft.params,
    }
    words = wording.render(rule.code, draft.variant, params, lang)
    return Finding(
        code=rule.code,
        name=rule.name,
        severity=draft.severity,
        confidence=min(1.0, max(0.0, draft.confidence)),
        step=draft.step,
        optimizer=optimizer,
        where=draft.where,
        evidence=draft.evidence,
        message=words.message,
        remedies=words.remedies,
        title=words.title,
        variant=draft.variant,
        params=params,
        lang=lang,
    )
