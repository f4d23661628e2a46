"""Chains, boosts, dry runs: the same as doing it by hand, one after the other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from clip_loop import NAN, Treated, bits, drive, same_state, steps
from clip_reference import assert_close, dense64
from hypothesis import given, settings
from hypothesis import strategies as st

import gradmedic as gm
from gradmedic.clip import agc, boost, chain, dry_run, ema_ratio, layers, median, norm, value

PARTS = {
    "value": lambda: value(0.7),
    "norm": lambda: norm(1.3),
    "tensor": lambda: norm(0.6, per="tensor"),
    "unit": lambda: norm(0.5, per="unit"),
    "l1": lambda: norm(2.0, norm_type=1.0),
    "max": lambda: norm(0.4, norm_type=math.inf),
    "agc": lambda: agc(0.05, exclude=[]),
    "boost": lambda: boost(2.0, 3.0),
    "layers": lambda: layers({"p0": value(0.2)}, default=0.9),
    "median": lambda: norm(median(1.1, 5, min_samples=1)),
}


def gradients(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) * 2 for shape in [(3, 4), (5,), ()]]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=4), st.integers(0, 99))
def test_a_chain_is_its_parts_one_after_the_other(names, seed):
    """The whole from one measurement equals each part measured anew on what the one before it has left."""
    weights = [torch.ones_like(g) for g in gradients(0)]
    whole = Treated(chain(*(PARTS[name]() for name in names)), weights)
    alone = [Treated(PARTS[name](), weights) for name in names]
    for step in range(3):
        found = whole.step(gradients(seed + step))
        expected = gradients(seed + step)
        flags = []
        for part in alone:
            expected = part.step(expected)
            flags.append(bool(part.decision.clipped))
        assert_close([dense64(g) for g in found], [dense64(g) for g in expected], rtol=1e-9, atol=1e-12)
        assert bool(whole.decision.clipped) == any(flags)


def test_the_order_matters():
    given = [torch.tensor([3.0, 4.0])]
    one = Treated(chain(value(1.0), norm(1.0)), [torch.zeros(2)]).step(given)[0]
    two = Treated(chain(norm(1.0), value(1.0)), [torch.zeros(2)]).step(given)[0]
    assert one.tolist() == pytest.approx([math.sqrt(0.5)] * 2, rel=1e-5)
    assert two.tolist() == pytest.approx([0.6, 0.8], rel=1e-5)


def test_a_history_in_a_chain_is_of_what_the_parts_before_have_left():
    found = steps(chain(norm(2.0), norm(ema_ratio(10.0, min_samples=1, fallback=9.0))), [5.0])
    assert found[0].state.parts["1"].parts["threshold"].shared["mean"].item() == pytest.approx(2.0, rel=1e-5)


@pytest.mark.parametrize("place", ["0", "1"])
def test_a_skipped_step_enters_no_history_of_the_chain(place):
    """Whether the guard comes before or after."""
    parts = [gm.guard.skip_nonfinite(), gm.guard.skip_nonfinite()]
    parts[int(place)] = gm.clip.zclip()
    with_bad, without = (steps(chain(*parts), norms) for norms in ([1.0, 2.0, NAN, 3.0], [1.0, 2.0, 3.0]))
    assert same_state(with_bad[-1].state.parts[place], without[-1].state.parts[place])
    assert [step.skipped for step in with_bad] == [False, False, True, False]


def test_the_last_threshold_is_the_one_that_is_reported():
    assert steps(chain(norm(4.0), norm(2.0)), [1.0])[0].threshold == 2.0


def test_scope_skips_and_needs_of_a_chain():
    assert chain(value(1.0), agc()).scope == "tensor"
    assert chain(value(1.0), norm(1.0)).scope == "model"
    assert not chain(1.0).may_skip
    assert chain(1.0, gm.guard.breaker()).may_skip
    assert chain(gm.clip.spike_clip(), gm.guard.skip_spikes("loss")).needs == {"second_moment", "loss"}


def test_numbers_stand_for_a_norm_and_other_things_are_refused():
    assert drive(chain(1.0), [5.0]) == drive(norm(1.0), [5.0])
    for wrong in ((), ("1.0",), (True,), (None,), (median(1.0),)):
        with pytest.raises(gm.InputError, match="chain: expected"):
            chain(*wrong)


def test_boost():
    """Raised to the least norm, by no more than the factor; zero and non-finite gradients are left alone."""
    rows = [[0.5, 0.1, 0.0, 1.0, NAN, 1e-30]]
    assert drive(boost(1.0, 4.0), rows)[0] == pytest.approx([2.0, 4.0, 1.0, 1.0, 1.0, 4.0])
    assert drive(boost(1.0, 4.0, per="model"), [[0.3, 0.4]]) == [pytest.approx(2.0)]
    assert drive(boost(1.0, 4.0, per="model"), [[0.3, NAN]]) == [1.0]
    assert boost(1.0).scope == "tensor"
    assert boost(1.0, per="model").scope == "model"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((0.0,), "min_norm"), ((-1.0,), "min_norm"), ((1.0, 0.5), "max_factor.*>= 1"), ((1.0, 2.0, "unit"), "per")],
)
def test_boosts_that_make_no_sense(arguments, words):
    with pytest.raises(gm.InputError, match=words):
        boost(*arguments[:2], **({"per": arguments[2]} if len(arguments) > 2 else {}))


def test_a_dry_run_notes_what_would_have_been_done_and_does_nothing():
    weights = [torch.ones(3, 4), torch.ones(5), torch.ones(())]
    inner = chain(value(0.7), norm(0.5))
    dry, wet = Treated(dry_run(inner), weights), Treated(inner, weights)
    given_ = [g.float() for g in gradients(0)]
    found, real = dry.step(given_), wet.step(given_)
    assert [bits(g) for g in found] == [bits(g) for g in given_]
    assert dry.decision.operations == ()
    assert dry.decision.skip is None
    notes = {key: value.item() for key, value in dry.decision.notes.items()}
    before, after = (math.sqrt(sum((dense64(g) ** 2).sum() for g in each)) for each in (given_, real))
    assert notes["dry_run.scale"] == pytest.approx(after / before, rel=1e-6)
    assert (notes["dry_run.clipped"], notes["dry_run.skipped"], notes["dry_run.threshold"]) == (1.0, 0.0, 0.5)


def test_a_dry_run_of_a_guard_goes_on_as_the_guard_would():
    """It would have skipped the step, so its history does not hold it; but the step is made."""
    inner = chain(gm.guard.skip_nonfinite(), norm(median(1.0, 9, min_samples=1)))
    dry, wet = steps(dry_run(inner), [1.0, NAN, 3.0, 2.0]), steps(inner, [1.0, NAN, 3.0, 2.0])
    assert not any(step.skipped for step in dry)
    assert [step.decision.notes["dry_run.skipped"].item() for step in dry] == [0, 1, 0, 0]
    assert all(same_state(a.state, b.state) for a, b in zip(dry, wet, strict=True))
    assert dry[3].decision.notes["dry_run.threshold"].item() == 2.0
    assert not dry_run(inner).may_skip
    assert dry_run(inner).scope == "model"


def test_a_dry_run_on_a_zero_gradient():
    assert steps(dry_run(norm(1.0)), [0.0])[0].decision.notes["dry_run.scale"].item() == 1.0


def test_a_dry_run_within_a_real_guard():
    """A step that the real guard skips enters the dry run's history neither."""
    transform = chain(gm.guard.skip_nonfinite(), dry_run(norm(median(1.0, 9, min_samples=1))))
    assert same_state(steps(transform, [1.0, NAN])[-1].state.parts["1"], steps(transform, [1.0])[-1].state.parts["1"])


def test_the_joint_factor_of_a_decision_is_the_product():
    step = steps(chain(norm(5.0), norm(2.0, per="tensor"), boost(1.0, 2.0)), [[6.0, 8.0, 0.5]])[0]
    kept = 5 / (math.hypot(6, 8, 0.5) + 1e-6)
    each = np.minimum(1.0, 2 / np.array([6, 8, 0.5]) / kept)
    low = min(2.0, 1 / (0.5 * kept))
    assert step.factor == pytest.approx(kept * each * np.array([1, 1, low]), rel=1e-5)
