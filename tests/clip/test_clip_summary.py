"""What a transform may know: norms, parts of them, and what will be after an operation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from clip_loop import INF, NAN, drive, summarise
from clip_reference import dense64, p_norm
from hypothesis import given, settings
from hypothesis import strategies as st

import gradmedic as gm
from gradmedic.clip.apply import apply_operations
from gradmedic.clip.operations import Limit, MomentLimit, Scale, UnitScale
from gradmedic.clip.spec import describe_tensors
from gradmedic.clip.summary import GradientSummary, joint_norm

POWERS = [1.0, 1.5, 2.0, 4.0, INF]


def gradients():
    generator = torch.Generator().manual_seed(0)
    dense = [torch.randn(s, generator=generator) for s in [(3, 4), (5,), (), (0,)]]
    sparse = torch.sparse_coo_tensor([[1, 1, 3]], torch.randn(3, 2, generator=generator), (5, 2), check_invariants=True)
    complexes = torch.randn(4, generator=generator, dtype=torch.complex64)
    return [*dense, sparse, complexes, None]


def summary_of(given, **options):
    weights = [torch.ones(2) if g is None else torch.ones(g.shape, dtype=g.dtype) for g in given]
    spec = describe_tensors(weights, [f"p{at}" for at in range(len(given))], {})
    return summarise(spec, weights, given, **options)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0, 1e150), max_size=6), st.sampled_from(POWERS))
def test_joint_norms(norms, power):
    """R63: the p-norm of p-norms; no second root, no overflow."""
    found = joint_norm(torch.tensor(norms, dtype=torch.float64), power).item()
    assert found == pytest.approx(p_norm([np.array(norms)], power), rel=1e-9)


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("measured", [True, False])
def test_norms_for_every_p(power, measured):
    """R61, R63: sparse ones by their sums, complex ones by magnitude; total^p is the sum of the tensors'."""
    given_ = gradients()
    found = summary_of(given_, measured=measured).norms(power).tolist()
    expected = [0.0 if g is None else p_norm([dense64(g)], power) for g in given_]
    assert found == pytest.approx(expected, rel=1e-9)
    whole = p_norm([dense64(g) for g in given_ if g is not None], power)
    assert joint_norm(torch.tensor(found, dtype=torch.float64), power).item() == pytest.approx(whole, rel=1e-9)


OPERATIONS = {
    "one factor": Scale(torch.tensor(0.3, dtype=torch.float64)),
    "a factor each": Scale(torch.linspace(0.1, 2.0, 7, dtype=torch.float64)),
    "units": UnitScale({0: torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64), 1: torch.tensor(0.1)}, {0: 0, 1: None}),
    "limits": Limit({0: 0.5, 4: 0.4, 5: 0.3}),
    "moments": MomentLimit(4.0, {0: torch.full((3, 4), 0.01), 5: torch.full((4,), 0.01 + 0.02j)}),
}


@pytest.mark.parametrize("power", [1.0, 2.0, INF])
@pytest.mark.parametrize("scaled", [None, 16.0])
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_will_be_is_what_is_afterwards(name, scaled, power):
    """The summary after an operation equals that of the gradients to which it was applied."""
    operation = OPERATIONS[name]
    given_ = [None if g is None else g * (scaled or 1.0) for g in gradients()]
    if isinstance(operation, UnitScale):
        scale = scaled or 1.0
        units = dense64(given_[0]) / scale * operation.factors[0].numpy()[:, None]
        norms = {0: torch.tensor(np.linalg.norm(units)), 1: given_[1].double().norm() / scale * 0.1}
        operation = UnitScale(operation.factors, operation.dims, norms)
    looked_at = [None if g is None else g.clone() for g in given_]
    foreseen = summary_of(looked_at, loss_scale=scaled).after([operation])
    after = [None if g is None else g.clone() for g in given_]
    apply_operations(after, [operation], loss_scale=None if scaled is None else torch.tensor(scaled))
    found = summary_of(after, loss_scale=scaled)
    assert foreseen.norms(power).tolist() == pytest.approx(found.norms(power).tolist(), rel=1e-5)
    for g, untouched in zip(given_, looked_at, strict=True):
        assert g is None or torch.equal(g.to_dense(), untouched.to_dense())


def test_some_of_the_tensors():
    given_ = gradients()
    given_[1][2] = NAN
    whole = summary_of(given_)
    mask = torch.tensor([True, False, True, False, True, False, True])
    part = whole.among(mask, {0, 2, 4, 6})
    assert part.total.item() == pytest.approx(p_norm([dense64(given_[at]) for at in (0, 2, 4)], 2.0))
    assert bool(part.finite)
    assert not bool(whole.finite)
    assert part.gradients.positions == [0, 2, 4]
    assert part.seen.tolist() == [True, False, True, False, True, False, False]
    less = part.among(torch.tensor([False, True, True, False, False, False, True]), {1, 2, 6})
    assert less.gradients.positions == [2]
    for power in POWERS:
        assert less.norms(power).tolist() == pytest.approx([0, 0, abs(given_[2].item()), 0, 0, 0, 0])


def test_of_norms():
    summary = GradientSummary.of_norms([3.0, NAN, 4.0, INF], step=5, loss=2.0)
    assert summary.total.item() == 5.0
    assert summary.nonfinite.tolist() == [0, 1, 0, 1]
    assert (summary.step, summary.loss.item(), summary.spec.names) == (5, 2.0, ("0", "1", "2", "3"))
    with pytest.raises(ValueError, match="not at hand"):
        summary.norms(3.0)


def test_a_transform_of_ones_own():
    """The protocol is two functions; the rest has defaults."""

    class Halve:
        def init(self, spec):
            return gm.clip.State()

        def update(self, summary, state):
            return gm.clip.Decision((Scale(torch.full((), 0.5, dtype=torch.float64)),)), state

    mine = Halve()
    assert isinstance(mine, gm.clip.Transform)
    assert drive(gm.clip.chain(mine, gm.clip.norm(1.0)), [4.0]) == [pytest.approx(0.25, rel=1e-5)]
    assert gm.clip.chain(mine).scope == "model"
    assert gm.clip.chain(mine).may_skip


def test_the_public_names_are_all_there_and_sorted():
    for module in (gm.clip, gm.guard):
        assert module.__all__ == sorted(module.__all__)
        assert all(hasattr(module, name) for name in module.__all__)
