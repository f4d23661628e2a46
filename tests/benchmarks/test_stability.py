"""The stability benchmark: what its figures rest on."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gradmedic

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import stability
import stability_outcome as measure
import stability_report as report
import stability_tasks as tasks
from stability_methods import GUARD, GUARDED, PUBLISHED, TRAINED, default_name
from stability_model import PostNorm, Shape, Stack
from stability_outcome import outcome, published
from stability_settings import LOOK, SETTINGS, STEPS
from stability_statistics import Interval, bootstrap, mean, ratio, wilson
from stability_store import Key, Run, append, load
from stability_training import Setting, heat

CAUSAL = Shape(features=5, tokens=4, classes=5, causal=True, position=0.3, width=8, hidden=8, layers=1)
POOLED = dataclasses.replace(CAUSAL, causal=False)


@pytest.fixture
def small() -> tasks.Task:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 4, 5, generator=generator)
    targets = torch.randint(5, (64, 1), generator=generator)
    return tasks.Task("small", POOLED, inputs, targets, inputs[:16], targets[:16], batch=8)


def different_copies(shape: Shape, copies: int) -> Stack:
    torch.manual_seed(1)
    stack = Stack(PostNorm(shape), copies)
    with torch.no_grad():
        for weight in stack.weights.values():
            weight += 0.1 * torch.randn_like(weight)
    return stack


@pytest.mark.parametrize("shape", [CAUSAL, POOLED])
def test_a_copy_computes_what_torchs_own_layers_compute(shape):
    stack = different_copies(shape, 3)
    inputs = torch.randn(6, 4, 5)
    targets = torch.randint(5, (6, 4 if shape.causal else 1))
    losses = stack.backward(inputs[None], targets)
    gradients = [[p.grad.clone() for p in model.parameters()] for model in stack.models]
    for model, loss, found in zip(stack.models, losses, gradients, strict=True):
        logits = model(inputs).reshape(6, -1, 5)
        torch.testing.assert_close(stack.logits(inputs[None])[stack.models.index(model)], logits)
        model.zero_grad()
        wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / 6
        wanted.backward()
        torch.testing.assert_close(loss, wanted)
        torch.testing.assert_close(found, [p.grad for p in model.parameters()], rtol=1e-4, atol=1e-6)


def test_what_an_optimizer_does_to_a_copy_happens_in_the_stack():
    stack = different_copies(POOLED, 2)
    before = {name: weight.detach().clone() for name, weight in stack.weights.items()}
    stack.backward(torch.randn(1, 6, 4, 5), torch.randint(5, (6, 1)))
    torch.optim.SGD(stack.models[1].parameters(), lr=0.1, fused=True).step()
    for name, weight in stack.weights.items():
        assert torch.equal(weight[0], before[name][0])
        assert not torch.equal(weight[1], before[name][1])


def test_a_nan_stays_in_its_copy():
    stack = different_copies(POOLED, 2)
    inputs, targets = torch.randn(6, 4, 5), torch.randint(5, (6, 1))
    stack.backward(inputs[None], targets)
    clean = [p.grad.clone() for p in stack.models[0].parameters()]
    sick = torch.stack([inputs, torch.full_like(inputs, torch.nan)])
    losses = stack.backward(sick, targets)
    torch.testing.assert_close([p.grad for p in stack.models[0].parameters()], clean)
    assert torch.isfinite(losses).tolist() == [True, False]


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_a_published_run_is_the_guarded_one_until_its_first_nan(small, monkeypatch, optimizer):
    steps, nan_at = 5, 3
    drawn = tasks.batches(small, 0, steps)
    drawn = [dataclasses.replace(b, spoiled={1: "scale", nan_at: "nan"}.get(at, "")) for at, b in enumerate(drawn)]
    monkeypatch.setattr("stability_training.batches", lambda *_: drawn)
    setting = Setting("any", optimizer, 0.02, 1)
    entries = [(setting, name) for name in (*PUBLISHED, *GUARDED)]
    found = {run.key.method: run for run in heat(small, entries, {**PUBLISHED, **GUARDED}, 0, steps, 1)}
    for name in PUBLISHED:
        assert found[name].accuracies == published(found[GUARD + name], 1).accuracies, name
        assert found[GUARD + name].skipped == 1
        assert found[GUARD + name].nan_at == nan_at
        assert found[name].accuracies[nan_at:] == (0.0,) * (steps - nan_at)


def test_a_healthy_setting_never_sees_a_spoiled_batch(small, monkeypatch):
    drawn = [dataclasses.replace(b, spoiled="nan") for b in tasks.batches(small, 0, 4)]
    monkeypatch.setattr("stability_training.batches", lambda *_: drawn)
    entries = [(Setting("healthy", "SGD", 0.01, spoil=False), GUARD + "none")]
    [run] = heat(small, entries, TRAINED, 0, 4, 2)
    assert (run.skipped, run.nan_at) == (0, -1)


def test_batches_depend_on_task_and_seed_only(small):
    for one, other in zip(tasks.batches(small, 3, 20), tasks.batches(small, 3, 20), strict=True):
        assert torch.equal(one.clean, other.clean)
        assert one.spoiled == other.spoiled
    assert not torch.equal(tasks.batches(small, 3, 1)[0].clean, tasks.batches(small, 4, 1)[0].clean)


def test_the_announced_share_of_batches_is_spoiled(small):
    kinds = [batch.spoiled for seed in range(20) for batch in tasks.batches(small, seed, 1000)]
    share = sum(map(bool, kinds)) / len(kinds)
    assert share == pytest.approx(tasks.SPOILED, abs=0.003)
    assert kinds.count("nan") / sum(map(bool, kinds)) == pytest.approx(tasks.SPOILED_BY_NAN, abs=0.15)


def test_an_epoch_shows_every_example_once(small):
    seen = torch.cat([batch.clean for batch in tasks.batches(small, 0, 8)])
    wanted = small.inputs.flatten(1).sum(1).sort().values
    torch.testing.assert_close(seen.flatten(1).sum(1).sort().values, wanted)


@pytest.mark.parametrize("kind", ["scale", "nan"])
def test_spoiling_leaves_the_data_as_they_were(kind):
    inputs = torch.ones(2, 3, 4)
    spoiled = tasks.spoil_inputs(inputs, kind)
    assert torch.equal(inputs, torch.ones(2, 3, 4))
    assert torch.isnan(spoiled).sum() == (kind == "nan")


@pytest.mark.parametrize("setting", [s for each in SETTINGS.values() for s in each])
def test_the_learning_rate_rises_in_the_warm_up_and_falls_to_the_end(setting):
    rates = [setting.rate(step, STEPS) for step in range(STEPS)]
    peak = rates.index(max(rates))
    assert peak == setting.warmup
    assert max(rates) <= setting.lr
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert 0 < rates[-1] < 0.02 * setting.lr


def test_wilson_known_values():
    # From the formula by hand, to four places.
    assert wilson(5, 10) == pytest.approx((0.5, 0.2366, 0.7634), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.0, 0.2775), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((1.0, 0.7225, 1.0), abs=1e-4)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_symmetric_and_holds_the_share(counts):
    successes, trials = counts
    value, low, high = wilson(successes, trials)
    assert 0 <= low <= value + 1e-12
    assert value <= high + 1e-12 <= 1 + 1e-12
    mirrored = wilson(trials - successes, trials)
    assert (1 - mirrored.high, 1 - mirrored.low) == pytest.approx((low, high))


def test_bootstrap_of_equal_rows_has_no_width_and_of_normal_rows_the_known_one():
    same = [np.full((3, 1), 2.0)] * 5
    assert bootstrap(same, mean) == (2.0, 2.0, 2.0)
    rows = [np.array([[x]]) for x in np.random.default_rng(1).normal(size=400)]
    value, low, high = bootstrap(rows, mean)
    assert high - low == pytest.approx(2 * 1.96 / 20, rel=0.15)
    assert low < value < high


def test_bootstrap_draws_groups_not_rows():
    # Rows that repeat within a group tell nothing new: as wide as one row a group.
    single = [np.array([[float(x)]]) for x in range(10)]
    repeated = [np.repeat(group, 50, axis=0) for group in single]
    assert bootstrap(repeated, mean) == pytest.approx(bootstrap(single, mean))


def test_ratio_is_of_sums():
    assert ratio(np.array([[1.0, 2.0], [3.0, 2.0]])) == 1.0


def a_run(method: str, accuracies: tuple[float, ...], seed: int = 0, nan_at: int = -1, **key: str) -> Run:
    return Run(Key(key.get("task", "digits"), key.get("setting", "s"), method, seed), accuracies, nan_at, 0, 0)


def test_outcome_known_values():
    judged = outcome(a_run("m", (0.1, 0.5, 0.3, 0.6)), target=0.4, look=10)
    assert (judged.final, judged.reached_at, judged.stable) == (0.6, 20.0, True)
    fallen = outcome(a_run("m", (0.1, 0.5, 0.3)), target=0.4, look=10)
    assert (fallen.reached_at, fallen.stable) == (20.0, False)
    assert outcome(a_run("m", (0.1,)), target=0.4, look=10).reached_at == math.inf


@pytest.mark.parametrize(("nan_at", "wanted"), [(-1, (1, 2, 3)), (9, (0, 0, 0)), (10, (1, 0, 0)), (29, (1, 2, 0))])
def test_a_look_counts_until_the_step_before_it_holds_a_nan(nan_at, wanted):
    assert published(a_run("m", (1.0, 2.0, 3.0), nan_at=nan_at), 10).accuracies == wanted


def test_epochs_are_compared_only_where_both_are_stable():
    ours = [outcome(a_run("a", (0.5, 0.5), seed), 0.4, 10) for seed in range(3)]
    theirs = [
        outcome(a_run("b", (0.1, 0.5), 0), 0.4, 10),
        outcome(a_run("b", (0.1, 0.1), 1), 0.4, 10),
        outcome(a_run("b", (0.5, 0.5), 7), 0.4, 10),
    ]
    assert measure.epochs_ratio(ours, theirs).value == 0.5
    assert measure.stable_difference(ours, theirs).value == 0.5
    assert measure.epochs(ours, {"digits": 5.0}).value == 2.0


def test_a_method_is_ahead_only_where_the_whole_interval_is():
    ours = [outcome(a_run("a", (0.1, 0.5), seed), 0.4, 10) for seed in range(9)]
    same = [outcome(a_run("b", (0.1, 0.5), seed), 0.4, 10) for seed in range(9)]
    better = [outcome(a_run("c", (0.5, 0.6), seed), 0.4, 10) for seed in range(9)]
    noisy = [outcome(a_run("d", (0.1, 0.5 + 0.1 * (-1) ** seed), seed), 0.4, 10) for seed in range(9)]
    found = report.ahead({"ours": ours, "same": same, "noisy": noisy, "better": better}, "ours")
    assert found == [
        "better: epochs to target 0.50 [0.50, 0.50]",
        "better: final accuracy, digits, +10.0 [+10.0, +10.0] points",
    ]


def test_results_survive_a_torn_line(tmp_path):
    path = tmp_path / "results" / "runs.jsonl"
    runs = [a_run("a", (0.25, 0.5), seed) for seed in range(3)]
    append(path, runs[:2])
    with path.open("ab") as file:
        file.write(b'["digits","s","a",9,[0.')
    append(path, runs[2:])
    assert list(load(path).values()) == runs
    assert load(tmp_path / "none.jsonl") == {}


def test_only_what_is_not_on_file_is_done():
    everything = list(stability.jobs(2, {}))
    assert [(job.seed, job.task) for job in everything] == [(0, "digits"), (0, "text"), (1, "digits"), (1, "text")]
    first = everything[0]
    done = {Key("digits", s.name, name, 0): a_run(name, ()) for s, name in first.entries[1:]}
    rest = list(stability.jobs(2, done))
    assert rest[0].entries == first.entries[:1]
    assert rest[1:] == everything[1:]
    assert not list(
        stability.jobs(1, {Key(j.task, s.name, n, j.seed): a_run(n, ()) for j in everything for s, n in j.entries})
    )


def test_the_default_is_among_what_is_trained():
    assert TRAINED[default_name()]() == gradmedic.guard.default()


def test_the_report_takes_complete_seeds_only_and_fills_its_page(tmp_path, monkeypatch, capsys):
    page = "".join(f"<!-- {name} -->\nold\n<!-- /{name} -->\n" for name in MARKERS)
    (tmp_path / "stability.md").write_text(page)
    monkeypatch.setattr("stability_plot.draw", lambda *_: "drawn")
    monkeypatch.setattr("stability_statistics.ROUNDS", 50)
    runs = {}
    for job in stability.jobs(3, {}):
        for at, (setting, name) in enumerate(job.entries[: 5 if job.seed == 2 else None]):
            accuracies = (0.1 + 0.01 * at, *(0.3 + 0.01 * at,) * (STEPS // LOOK - 1))
            run = a_run(name, accuracies, job.seed, 50, task=job.task, setting=setting.name)
            runs[run.key] = run
    report.write_report(runs, tmp_path)
    written = (tmp_path / "stability.md").read_text()
    assert "old" not in written
    assert "2 seeds of digits, 2 seeds of text" in written
    assert "| none | 0 % [0, 24] |" in written  # every published run meets its NaN
    assert written.count(f"**{default_name()}** (default)") >= 1
    assert capsys.readouterr().out.strip().endswith("drawn")


MARKERS = ("seeds", "bars", "published", "guarded", "differences", "cells", "healthy")


def test_a_ratio_of_epochs_is_told_as_a_saving():
    assert report.saving(Interval(0.7, 0.6, 0.75)) == "30 % [25, 40] fewer"


def test_a_page_without_markers_is_an_error():
    with pytest.raises(LookupError, match="expected the markers"):
        report.fill("nothing", {"cells": "x"})


def test_the_page_has_every_marker():
    page = (Path(__file__).parents[2] / "docs" / "stability.md").read_text(encoding="utf-8")
    for name in MARKERS:
        assert f"<!-- {name} -->" in page
        assert f"<!-- /{name} -->" in page
