"""States: saved by name, taken up at any step, on other tensors, and never by another transform."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from clip_loop import Treated, bits, same_state, steps

import gradmedic as gm
from gradmedic.clip import (
    adagc,
    autoclip,
    chain,
    dry_run,
    ema_ratio,
    layers,
    median,
    norm,
    percentile,
    spike_clip,
    value,
    warmup,
    zclip,
    zscore,
)
from gradmedic.clip.state import State, export_state, import_state, select

TRANSFORMS = {
    "norm": lambda: norm(1.0),
    "schedule": lambda: norm(lambda step: 1.0 + step),
    "value": lambda: value(0.5),
    "percentile": lambda: norm(percentile(60, 6, min_samples=3)),
    "median by tensor": lambda: norm(median(1.1, 6, min_samples=3), per="tensor"),
    "zscore": lambda: norm(zscore(1.0, 6, min_samples=3)),
    "robust by tensor": lambda: norm(zscore(1.0, 6, min_samples=3, robust=True), per="tensor"),
    "ema by tensor": lambda: norm(ema_ratio(1.1, min_samples=3), per="tensor"),
    "autoclip": lambda: autoclip(30, 6),
    "zclip": lambda: zclip(1.0, warmup=4),
    "adagc": lambda: adagc(warmup=4),
    "warmup": lambda: norm(warmup(0.5, ema_ratio(1.1, min_samples=2), 5), per="tensor"),
    "warmup of transforms": lambda: warmup(zclip(1.0, warmup=3), adagc(warmup=3), 5),
    "layers": lambda: layers({"p0": zclip(1.0, warmup=3), "p1": 0.5}, default=norm(median(1.1, 5, min_samples=2))),
    "dry run": lambda: dry_run(adagc(warmup=3)),
    "guards": lambda: chain(
        gm.guard.skip_nonfinite(5),
        gm.guard.skip_spikes(z=2.0, window=6, min_samples=3),
        gm.guard.breaker(1e4, patience=3),
        zclip(1.0, warmup=3),
    ),
}


def gradients(step):
    generator = torch.Generator().manual_seed(step)
    size = float(np.exp(np.random.default_rng(step).normal()))
    found = [torch.randn(shape, generator=generator) * size for shape in [(3, 4), (5,), ()]]
    if step in (6, 7):
        found[step % 2].view(-1)[0] = float("nan")
    return found


def loop_of(name):
    return Treated(TRANSFORMS[name](), [torch.ones_like(g) for g in gradients(0)])


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_run_that_is_taken_up_at_any_step_goes_on_identically(name):
    """Through `torch.save` and a safe load, as part of a checkpoint."""
    whole, length = loop_of(name), 14
    saved, outputs = [], []
    for step in range(length):
        file = io.BytesIO()
        torch.save(export_state(whole.state, whole.spec.names), file)
        saved.append(file.getvalue())
        outputs.append([bits(g) for g in whole.step(gradients(step))])
    for start in range(length):
        again = loop_of(name)
        data = torch.load(io.BytesIO(saved[start]), weights_only=True)
        again.state, again.count = import_state(again.state, data, again.spec.names), start
        for step in range(start, min(length, start + 5)):
            assert [bits(g) for g in again.step(gradients(step))] == outputs[step]


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_step_does_not_change_the_state_it_began_with(name):
    """`update` is a pure function: a step that is decided about twice is decided the same."""
    loop = loop_of(name)
    for step in range(8):
        before = loop.state
        copy = import_state(before, export_state(before, loop.spec.names), loop.spec.names)
        one = [bits(g) for g in loop.step(gradients(step))]
        assert same_state(before, copy)
        after, loop.state, loop.count = loop.state, before, step
        assert [bits(g) for g in loop.step(gradients(step))] == one
        assert same_state(loop.state, after)


def test_what_is_saved_is_small_keyed_by_name_and_a_copy():
    transform = norm(ema_ratio(2.0, fallback=math.inf), per="tensor")
    state = steps(transform, [[1.0, 2.0]])[0].state
    data = export_state(state, ["a", "b"])
    assert set(data) == {"shared", "by_tensor", "parts"}
    assert {key: value.item() for key, value in data["parts"]["threshold"]["by_tensor"]["mean"].items()} == {
        "a": 1.0,
        "b": 2.0,
    }
    data["parts"]["threshold"]["by_tensor"]["mean"]["a"].fill_(9.0)
    assert state.parts["threshold"].by_tensor["mean"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("make", [lambda: norm(median(1.0, 4, min_samples=1), per="tensor"), lambda: adagc(warmup=1)])
def test_tensors_that_come_go_and_change_places_keep_their_histories_by_name(make):
    state = steps(make(), [[1.0, 2.0, 3.0]] * 3)[-1].state
    data = export_state(state, ["a", "b", "c"])
    names = ["c", "new", "a"]
    fresh = make().init(gm.clip.Spec.of_names(names))
    taken = import_state(fresh, data, names)
    back = export_state(taken, names)

    def columns(each):
        found = dict(each["by_tensor"])
        for part in each["parts"].values():
            found.update(columns(part))
        return found

    for key, column in columns(back).items():
        for name in ("a", "c"):
            assert torch.equal(column[name], columns(data)[key][name])
        assert torch.equal(column["new"], columns(export_state(fresh, names))[key]["new"])


def test_a_joint_history_survives_a_change_of_tensors():
    state = steps(zclip(warmup=2), [[3.0, 4.0]] * 3)[-1].state
    taken = import_state(zclip(warmup=2).init(gm.clip.Spec.of_names(["x"])), export_state(state, ["a", "b"]), ["x"])
    assert taken.parts["threshold"].shared["mean"].item() == pytest.approx(5.0)


def test_other_dtypes_are_taken_over_in_the_transforms_own():
    data = export_state(steps(adagc(warmup=1), [[1.0]])[0].state, ["a"])
    data["by_tensor"]["gamma"]["a"] = data["by_tensor"]["gamma"]["a"].to(torch.float32)
    data["shared"]["count"] = 1
    taken = import_state(adagc().init(gm.clip.Spec.of_names(["a"])), data, ["a"])
    assert taken.by_tensor["gamma"].dtype == torch.float64
    assert taken.shared["count"].dtype == torch.int64


@pytest.mark.parametrize(
    ("saved", "fresh", "words"),
    [
        (adagc(), zclip(), r"x\.shared: expected the state of this transform, with \[\], got \['count'\]"),
        (autoclip(window=5), autoclip(window=6), "with the window it had"),
        (chain(1.0), norm(1.0), r"x\.parts"),
        (norm(zscore()), norm(zscore(), per="tensor"), "expected the state of this transform"),
    ],
)
def test_another_transforms_state_is_refused(saved, fresh, words):
    spec = gm.clip.Spec.of_names(["a"])
    with pytest.raises(gm.InputError, match=words):
        import_state(fresh.init(spec), export_state(saved.init(spec), ["a"]), ["a"], "x")


@pytest.mark.parametrize("junk", [None, {}, {"shared": {}}, [1]])
def test_junk_is_refused(junk):
    with pytest.raises(gm.InputError, match=r"x: expected what state_dict\(\) returned"):
        import_state(State(), junk, [], "x")


@pytest.mark.parametrize("flag", [True, False])
def test_select(flag):
    one = State({"a": torch.tensor(1)}, {"b": torch.tensor([1, 2])}, {"c": State({"d": torch.tensor(3)})})
    two = State({"a": torch.tensor(4)}, {"b": torch.tensor([5, 6])}, {"c": State({"d": torch.tensor(7)})})
    assert same_state(select(torch.tensor(flag), one, two), one if flag else two)


def test_stateless_transforms_save_nothing_of_their_own():
    for make in (lambda: norm(1.0), lambda: value(1.0), lambda: gm.clip.agc(), lambda: spike_clip()):
        data = export_state(make().init(gm.clip.Spec.of_names(["a"])), ["a"])
        assert not data["shared"]
        assert not data["by_tensor"]
