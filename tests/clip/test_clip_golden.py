"""The same eleven norms through every method, against figures worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from clip_loop import GOLDEN, Treated, drive, steps, treated

import gradmedic as gm
from gradmedic.clip.methods.zclip import ZClipThreshold
from gradmedic.clip.norm import NormClip

clip, guard = gm.clip, gm.guard


def guarded(transform):
    return clip.chain(guard.skip_nonfinite(), transform)


def check(found, expected):
    assert [each is None for each in found] == [each is None for each in expected]
    for at, (one, two) in enumerate(zip(found, expected, strict=True)):
        if two is not None:
            assert one == pytest.approx(two, abs=2e-6), f"step {at}"


def test_a_fixed_threshold():
    expected = [0.999999, 0.833333, 1, 0.999999, 0.1, 0.999999, None, 0.999999, None, 0.5, 1]
    check(drive(guarded(clip.norm(1.0)), GOLDEN), expected)


def test_exactly_at_the_threshold_is_not_counted_as_clipped():
    """torch's 1e-6 makes the factor a little less than 1 there; what is counted is N > threshold."""
    flags = [bool(step.decision.clipped) for step in steps(guarded(clip.norm(1.0)), GOLDEN)]
    assert flags == [False, True, False, False, True, False, False, False, False, True, False]


def test_autoclip_at_the_median_with_the_current_norm_counted_in():
    found = drive(guarded(clip.autoclip(50, window=1000)), GOLDEN)
    check(found, [0.999999, 0.916666, 1, 0.999999, 0.1, 0.999999, None, 0.999999, None, 0.5, 1])


def test_twice_the_median_of_the_last_four():
    found = drive(guarded(clip.median_clip(2.0, 4, min_samples=3, fallback=math.inf)), GOLDEN)
    check(found, [1, 1, 1, 1, 0.2, 1, None, 1, None, 1, 1])
    # 2 is exactly twice the median, where torch's formula takes its 1e-6; it is not clipped.
    assert found[9] == pytest.approx(2 / (2 + 1e-6), rel=1e-12)


def test_zclip():
    """After a warm-up of four: mean 1, population variance .02; the variance follows the mean that is updated first."""
    transform = NormClip(ZClipThreshold(2.5, 0.97, 4, math.inf))
    found = steps(transform, GOLDEN[:4])
    held = found[-1].state.parts["threshold"].shared
    assert held["mean"].item() == pytest.approx(1.0)
    assert held["variance"].item() == pytest.approx(0.02)
    found = steps(guarded(transform), GOLDEN)
    held = [step.state.parts["1"].parts["threshold"].shared for step in found]
    assert found[4].factor == pytest.approx(0.101389, abs=1e-6)
    assert held[4]["mean"].item() == pytest.approx(1.000417, abs=1e-6)
    assert held[4]["variance"].item() == pytest.approx(0.019405, abs=1e-6)
    assert found[9].factor == pytest.approx(0.557277, abs=2e-6)
    assert found[10].factor == 1
    assert held[10]["mean"].item() == pytest.approx(0.973702, abs=2e-6)
    assert held[10]["variance"].item() == pytest.approx(0.045979, abs=2e-6)
    assert [step.skipped for step in found] == [norm != norm or norm == math.inf for norm in GOLDEN]


def test_adagc():
    """A norm of 0 is not counted: the last reference is .787928 / .98, that of the step before."""
    found = steps(guarded(clip.adagc(1.05, 0.98, 3)), GOLDEN)
    expected = [1, 0.833333, 1, 0.84, 0.084084, 0.841681, None, 0.842523, None, 0.421683, 1]
    check([step.factor for step in found], expected)
    gamma = found[-1].state.parts["1"].by_tensor["gamma"].item()
    assert gamma == pytest.approx(0.787928 / 0.98, abs=1e-6)


def test_the_z_gate_of_olmo():
    """Mean and unbiased standard deviation of the last four that were not skipped, three of them needed."""
    gate = guard.skip_spikes("grad_norm", 3.0, 4, 3, robust=False)
    skips = [step.skipped for step in steps(gate, GOLDEN)]
    assert skips == [False, False, False, False, True, False, True, False, True, True, False]


def test_spam():
    """theta 5000, v 1e-4: the limit is .70711."""
    loop = Treated(clip.spike_clip(5000.0, grace=0), [torch.zeros(3)], second_moment=lambda p: torch.full_like(p, 1e-4))
    (after,) = loop.step([torch.tensor([0.5, 1.0, -2.0])])
    assert after.tolist() == pytest.approx([0.5, math.sqrt(0.5), -math.sqrt(0.5)], rel=1e-6)


def test_a_norm_that_fp32_cannot_square():
    """A hundred elements of 1e20: the norm is 1e21, and the clip scales to the threshold (torch erases them all)."""
    (after,) = treated(clip.norm(1.0), [torch.full((100,), 1e20)])
    assert after.double().norm().item() == pytest.approx(1.0, rel=1e-6)
