"""What is advised for which run, and what is said where nothing can be."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from clip_runs import Norms, facts, finding, frame, noise, run_of

import gradmedic as gm
from gradmedic.clip.advice import advise
from gradmedic.report.clip_text import render_clip_advice
from gradmedic.report.clip_words import SENTENCES


def spiky(count=160, every=70, **values):
    norms = noise(count)
    norms[every::every] = 30.0
    return run_of(norms, **values)


def keys(advice):
    return [note.key for note in (*advice.reasons, *advice.notes)]


def only(run, **options):
    (advice,) = advise(run, **options).optimizers
    return advice


def test_a_steady_run_with_spikes_gets_the_95th_percentile():
    advice = only(spiky())
    chosen = advice.recommended
    assert chosen.note == "p95"
    calm = [each.grad_norm for each in spiky().frames() if each.grad_norm != 30.0]
    assert advice.percentiles["p95"] == pytest.approx(np.percentile(calm, 95))
    assert chosen.transform == gm.clip.norm(float(f"{np.percentile(calm, 95):.3g}"))
    assert advice.spikes == (70, 140)
    assert (chosen.caught, chosen.spikes) == (2, 2)
    assert chosen.calm_share == pytest.approx(0.05, abs=0.02)
    assert keys(advice)[:5] == ["percentiles", "fixed", "rate_constant", "spikes", "adaptive"]
    assert advice.kind == "AdamW"


def test_shares_and_scales_are_those_of_the_norms():
    advice = only(spiky(kind="SGD"))
    norms = np.array([each.grad_norm for each in spiky().frames()])
    for outcome in advice.outcomes:
        if outcome.adapts:
            continue
        limit = outcome.transform.threshold.number
        scale = np.minimum(1.0, limit / (norms + 1e-6))
        assert outcome.clipped_share == pytest.approx((norms > limit).mean())
        assert outcome.mean_scale == pytest.approx(scale.mean())
        assert outcome.step_ratio == pytest.approx(scale[norms < 30].mean())


def test_under_adam_constant_clipping_barely_changes_the_step():
    norms = noise(100, level=50.0, spread=0.05)
    outcomes = {kind: only(run_of(norms, kind=kind)).outcomes for kind in ("AdamW", "SGD", "Lion")}
    by_kind = {kind: next(o for o in found if o.note == "usual") for kind, found in outcomes.items()}
    assert by_kind["AdamW"].mean_scale == pytest.approx(0.02, rel=0.05)
    assert by_kind["AdamW"].step_ratio == pytest.approx(1.0, abs=0.01)
    assert by_kind["SGD"].step_ratio == pytest.approx(0.02, rel=0.05)
    assert by_kind["Lion"].step_ratio == 1.0


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_a_norm_that_moves_with_the_learning_rate_gets_a_threshold_that_follows(kind):
    rates = np.geomspace(1e-4, 1e-2, 150)
    norms = noise(150, spread=0.1) * rates**0.5
    norms[[60, 120]] *= 40
    advice = only(run_of(norms, kind=kind, rates=rates))
    assert advice.recommended.adapts
    assert advice.recommended.caught == 2
    assert "rate_moves" in keys(advice)
    assert advice.rate.whole > 0.9
    assert advice.rate.level > 2


def test_a_norm_that_drifts_gets_a_threshold_that_follows():
    norms = noise(150, spread=0.1) * np.geomspace(1, 8, 150)
    advice = only(run_of(norms))
    assert advice.recommended.adapts
    assert "drift" in keys(advice)
    assert advice.drift > 2


def test_a_rate_that_the_norm_does_not_follow_leaves_the_threshold_fixed():
    advice = only(run_of(noise(150), rates=np.geomspace(1e-4, 1e-2, 150)))
    assert advice.recommended.note == "p95"
    assert "rate_apart" in keys(advice)


def test_optimizers_that_keep_signs_get_a_guard():
    advice = only(spiky(kind="Lion"))
    assert advice.recommended.expression == "gm.guard.skip_spikes()"
    assert "sign" in keys(advice)
    assert advice.recommended.caught == 2


def test_a_calm_run_is_told_that_it_needs_no_clipping():
    advice = only(run_of(noise(100, spread=0.05)))
    assert "calm" in keys(advice)
    assert advice.recommended.note == "p95"


def test_the_runs_own_clip_is_tried_too():
    run = spiky(clip_threshold=0.5, clip_scale=0.4, clipped=True, grad_norm_post=0.5)
    advice = only(run)
    (own,) = [outcome for outcome in advice.outcomes if outcome.note == "own"]
    assert own.method == "norm(0.5)"
    (said,) = [note for note in advice.reasons if note.key == "own"]
    assert said.params == {"threshold": 0.5, "clipped_share": 1.0, "scale": pytest.approx(0.4)}


def test_tables_bring_methods_by_tensor_and_layers():
    with_tables, without = only(spiky(tables=True)), only(spiky())
    assert {o.method.partition("(")[0] for o in with_tables.outcomes} == {
        *("norm", "autoclip", "median_clip", "zclip", "adagc", "skip_spikes")
    }
    assert [layer.name for layer in with_tables.layers] == ["layers.1", "layers.0"]
    assert not without.layers
    assert "no_tables" in keys(without)
    assert not any(o.method.startswith("adagc") for o in without.outcomes)
    # The joint methods do not care where the norm comes from.
    pairs = [(o, p) for o in without.outcomes for p in with_tables.outcomes if o.method == p.method]
    assert len(pairs) == len(without.outcomes)
    for one, other in pairs:
        assert (one.clipped_share, one.mean_scale, one.caught) == (other.clipped_share, other.mean_scale, other.caught)


def test_few_tables_are_said():
    frames = [frame(at, 1.0 + at % 3, tensors=(1.0 + at % 3,) if at % 4 == 0 else None) for at in range(120)]
    advice = only(Norms(frames, [facts(optimizer="SGD")]))
    (note,) = [note for note in advice.notes if note.key == "few_tables"]
    assert note.params == {"n": 30, "all": 120}


def test_several_optimizers_are_advised_on_by_themselves():
    frames = [each for at in range(60) for each in (frame(at, 1.0 + at % 5, "G"), frame(at, 100.0 + at % 5, "D"))]
    advice = advise(Norms(frames, [facts(G="Adam", D="SGD")]))
    assert [(each.optimizer, each.family) for each in advice.optimizers] == [("G", "adaptive"), ("D", "plain")]
    assert advice["G"].percentiles["p50"] == 3.0
    assert advice["D"].percentiles["p50"] == 102.0
    assert str(advice) == "G: gm.clip.norm(5.0)\nD: gm.clip.norm(104.0)"
    with pytest.raises(KeyError, match="G, D"):
        advice["E"]


def test_only_the_latest_steps_are_tried():
    advice = only(run_of(np.concatenate([noise(100, 50.0), noise(50)])), steps=50)
    assert (advice.tried, advice.first, advice.last, advice.steps) == (50, 100, 149, 150)
    assert advice.percentiles["max"] < 10
    assert "latest" in keys(advice)
    with pytest.raises(gm.InputError, match="at least 20"):
        advise(run_of(noise(50)), steps=3)


def test_steps_that_say_nothing_are_left_out():
    norms = [*noise(40), math.nan, 0.0, math.inf, *noise(40)]
    advice = only(run_of(norms))
    assert advice.tried == 80
    (note,) = [note for note in advice.notes if note.key == "unusable"]
    assert note.params == {"n": 3}
    assert all(math.isfinite(o.mean_scale) for o in advice.outcomes)


def test_what_comes_after_a_divergence_is_left_out():
    advice = only(run_of([*noise(60), *noise(60, 1e6)], events=[finding("GM401", 60)]))
    assert advice.tried == 60
    assert "bound_finding" in keys(advice)
    assert advice.percentiles["max"] < 10
    assert "bound_norm" in keys(only(run_of([*noise(80), *noise(20, 1e6)])))


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        (run_of([1.0] * 5), "too_short"),
        (run_of([None] * 50), "no_gradients"),
        (run_of([1.0] * 50, skipped=True), "all_skipped"),
        (run_of([math.nan] * 50), "all_nonfinite"),
        (run_of([math.inf] * 50), "all_nonfinite"),
        (run_of([0.0] * 50), "all_zero"),
        (run_of([math.nan, 0.0] * 25), "none_usable"),
        (run_of([1.0] * 50, kind="LBFGS"), "lbfgs"),
        (run_of(noise(50), events=[finding("GM401", 5)]), "fault_first"),
        (run_of([*noise(15), *[math.nan] * 30]), "departs_first"),
    ],
)
def test_a_run_of_which_nothing_can_be_said(run, problem):
    advice = only(run)
    assert advice.problem.key == problem
    assert advice.recommended is None
    assert not advice.outcomes
    assert problem in SENTENCES["en"]
    assert "no advice" in str(advise(run))


def test_an_empty_run():
    assert advise(Norms([])).optimizers == ()
    assert "no optimizer step" in str(advise(Norms([])))


@pytest.mark.parametrize("chunk", ["AdamW", "SGD"])
def test_a_trained_run_advises_itself(tmp_path, chunk):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = getattr(torch.optim, chunk)(model.parameters(), lr=1e-3)
    with gm.watch(model, {"main": optimizer}, record=tmp_path / "run") as monitor:
        for _ in range(40):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    in_memory, on_disk = monitor.run.clip_advice(), gm.open_run(tmp_path / "run").clip_advice()
    assert str(in_memory) == str(on_disk)
    assert on_disk["main"].kind == chunk
    assert {layer.name for layer in on_disk["main"].layers} == {"0", "1"}
    # What is recommended can be used as it is.
    gm.Clipper(model, on_disk["main"].recommended.transform)


@pytest.mark.parametrize(("count", "short"), [(40, True), (160, False)])
def test_a_short_basis_is_called_short(count, short):
    advice = only(run_of([1.0 + 0.01 * (at % 7) for at in range(count)]))
    said = keys(advice)
    assert ("short" in said, "fixed_short" in said, "fixed" in said) == (short, short, not short)
    for lang in ("en", "zh"):
        text = render_clip_advice(advise(run_of([1.0 + 0.01 * (at % 7) for at in range(count)])), lang=lang)
        assert ("zclip()" in text.partition("recommended" if lang == "en" else "建议")[2]) or not short
        assert "{" not in text
