"""The crash-rate benchmark: what its figures rest on. Nothing here needs `transformers`."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import gradmedic as gm

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import crash_report as report
import crash_text as text
import crash_training as training
from crash_arms import GUARDED, USUAL
from crash_faults import EXPONENT, RATES, Fault, Kind, draw, flip_exponent_bit, locate, set_one
from crash_statistics import per_10_000, poisson_mean, rate_ratio
from crash_store import Crash, Key, Run, append, load
from crash_verdict import FACTOR, WINDOW, LossLevel


def make_run(arm: str, seed: int = 0, crashes: int = 0, *, faulty: bool = True, steps: int = 1000) -> Run:
    each = Crash(5, "weights not finite", Kind.NAN.value)
    return Run(Key(arm, seed, faulty), steps, (each,) * crashes, {Kind.NAN.value: 30}, 7, 3.25, 1, 2, 3)


def test_faults_come_as_often_as_stated_and_do_not_depend_on_the_number_of_steps() -> None:
    steps = 200_000
    faults = draw(3, steps)
    found = Counter(fault.kind for fault in faults.values())
    for kind, rate in RATES.items():
        mean = rate * steps / 10_000
        assert abs(found[kind] - mean) < 5 * math.sqrt(mean), kind
    first = draw(3, 5000)
    assert first == {step: fault for step, fault in faults.items() if step < 5000}
    assert draw(4, 5000) != first


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("value", [1.5, -0.0078125])
def test_a_flipped_exponent_bit_is_a_power_of_two_and_flips_back(dtype: torch.dtype, value: float) -> None:
    count = EXPONENT[dtype][1]
    bias = 2 ** (count - 1) - 1
    stored = bias + math.frexp(value)[1] - 1
    for bit in range(count):
        values = torch.full((3, 2), value, dtype=dtype)
        flip_exponent_bit(values, 4, (bit + 0.5) / count)
        other = stored ^ (1 << bit)
        changed = float(values.flatten()[4])
        if other == 2 * bias + 1:
            assert not math.isfinite(changed)
        elif other > 0:
            assert changed == math.ldexp(value, other - stored)
        assert values.flatten()[[0, 1, 2, 3, 5]].eq(value).all()
        flip_exponent_bit(values, 4, (bit + 0.5) / count)
        assert values.eq(value).all()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.floats(0, 1, exclude_max=True))
@settings(deadline=None, max_examples=50)
def test_a_place_is_an_element_of_all_tensors_in_turn(sizes: list[int], share: float) -> None:
    tensors = [torch.zeros(size) for size in sizes]
    position, at = locate(tensors, share)
    assert sum(sizes[:position]) + at == min(int(share * sum(sizes)), sum(sizes) - 1)
    set_one(tensors, Fault(Kind.INF, share, 0.0, 0.0), math.inf)
    assert torch.cat(tensors).isinf().sum() == 1
    assert tensors[position][at] == math.inf


@pytest.mark.parametrize("count", [0, 1, 3, 57])
def test_the_interval_of_a_count_is_garwoods(count: int) -> None:
    found = poisson_mean(count)
    low = stats.chi2.ppf(0.025, 2 * count) / 2 if count else 0.0
    assert found == pytest.approx((count, low, stats.chi2.ppf(0.975, 2 * count + 2) / 2), rel=1e-9)
    assert per_10_000(count, 5000).high == pytest.approx(2 * found.high)


@pytest.mark.parametrize(("count", "other"), [(40, 0), (40, 2), (3, 5), (0, 4)])
def test_the_interval_of_a_ratio_is_clopper_and_pearsons(count: int, other: int) -> None:
    total = count + other
    low = stats.beta.ppf(0.025, count, other + 1) if count else 0.0
    high = stats.beta.ppf(0.975, count + 1, other) if other else 1.0
    found = rate_ratio(count, 1000, other, 3000)
    assert found.low == pytest.approx(3 * low / (1 - low), rel=1e-9)
    assert found.high == (math.inf if high == 1 else pytest.approx(3 * high / (1 - high), rel=1e-9))
    assert found.value == (math.inf if other == 0 else pytest.approx(3 * count / other))
    assert math.isnan(rate_ratio(0, total, 0, total).value)


def test_bad_batches_spoil_what_they_say() -> None:
    ids = torch.arange(2, 402)
    batch = text.draw_batch(ids, 5)
    shown = batch.ids.scatter(1, batch.positions, batch.labels)
    assert (shown.diff(dim=1) == 1).all(), "the labels are the words that were masked"
    assert (batch.ids == text.MASK).sum(1).eq(text.MASKED).all()
    assert torch.equal(text.draw_batch(ids, 5).ids, batch.ids)
    same = text.alike(batch)
    assert set(same.ids.flatten().tolist()) == {text.MASK, int(same.labels[0, 0])}
    assert same.labels.eq(same.labels[0, 0]).all()
    wrong = text.mislabelled(batch, 5)
    assert torch.equal(wrong.ids, batch.ids)
    assert wrong.labels.ne(batch.labels).float().mean() > 0.9


def test_the_text_is_long_and_mostly_of_known_words() -> None:
    found = text.read_text()
    assert len(found.train) > 50_000
    assert int(found.train.max()) == text.VOCABULARY - 1
    assert (found.train == text.UNKNOWN).float().mean() < 0.25
    assert not (found.train == text.MASK).any()


def test_only_a_loss_that_stays_high_is_a_crash() -> None:
    level = LossLevel()
    falling = [3.0 - at / 500 for at in range(500)]
    assert not any(level.add(loss) for loss in falling)
    best = level.best
    assert best == pytest.approx(sum(falling[-51:-49]) / 2)
    spikes = [level.add(1e9 if at % 4 == 0 else best) for at in range(300)]
    assert not any(spikes), "one step in four is not the level"
    verdicts = [level.add(FACTOR * best * 1.01) for _ in range(WINDOW)]
    assert verdicts[-1]
    assert verdicts.index(True) > WINDOW // 4
    again = LossLevel(best)
    assert [again.add(math.nan) for _ in range(WINDOW)] == [False] * (WINDOW - 1) + [True]


def test_results_survive_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    one, two = make_run("a", crashes=2), make_run("b")
    append(path, one)
    with path.open("a") as file:
        file.write('{"key":["c",0')
    append(path, two)
    assert load(path, 1000) == {one.key: one, two.key: two}
    assert load(path, 999) == {}
    assert load(tmp_path / "none", 1) == {}


def test_the_reduction_is_over_seeds_that_both_arms_have() -> None:
    runs = [make_run(USUAL.name, 0, 30), make_run(USUAL.name, 1, 99), make_run(GUARDED.name, 0, 2)]
    assert report.reduction(runs) == rate_ratio(30, 1000, 2, 1000)
    assert math.isnan(report.reduction(runs[:2]).value)
    assert "missed" in report.verdict([make_run(USUAL.name, 0, 11), make_run(GUARDED.name, 0, 1)])
    assert "reached, its interval not" in report.verdict(runs)
    assert "Bar: 12 times; reached." in report.verdict([make_run(USUAL.name, 0, 90), make_run(GUARDED.name, 0)])


def test_the_page_gets_its_tables_and_keeps_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- crash -->\nold\n<!-- /crash -->\nafter\n")
    runs = [make_run(USUAL.name, 0, 30), make_run(GUARDED.name), make_run(GUARDED.name, faulty=False)]
    tables = report.write_section(runs, page)
    assert page.read_text() == f"before\n<!-- crash -->\n{tables}\n<!-- /crash -->\nafter\n"
    assert f"| {Kind.NAN.value} | 20 | 30 of 30 | 0 of 30 |" in tables
    assert f"{GUARDED.name}, no faults" in tables
    report.write_section(runs, page)
    assert page.read_text().count("| arm |") == 1


class TinyWords(torch.nn.Module):
    """A stand-in for BERT: each masked word is guessed from the mean of its passage."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words = torch.nn.Embedding(text.VOCABULARY, 4)
        self.head = torch.nn.Linear(4, text.VOCABULARY)

    def loss(self, batch: text.Batch) -> torch.Tensor:
        guess = self.head(self.words(batch.ids).mean(1))[:, None].expand(-1, text.MASKED, -1)
        return torch.nn.functional.cross_entropy(guess.flatten(0, 1), batch.labels.flatten())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[text.Text]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(training, "make_bert", TinyWords)
    monkeypatch.setattr(training, "masked_loss", TinyWords.loss)
    monkeypatch.setattr(training, "held_out_loss", lambda model, batches: TinyWords.loss(model, batches[0]).item())
    monkeypatch.setattr(training, "CHECKPOINT_EVERY", 10)
    ids = torch.randint(2, text.VOCABULARY, (400,), generator=torch.Generator().manual_seed(0))
    yield text.Text(ids, ids)
    torch.set_num_threads(threads)


def fail(monkeypatch: pytest.MonkeyPatch, *steps: int, kind: Kind = Kind.NAN) -> None:
    monkeypatch.setattr(training, "draw", lambda seed, count: {step: Fault(kind, 0.999, 0.5, 0.0) for step in steps})


@pytest.mark.parametrize("kind", [Kind.NAN, Kind.INF])
def test_the_usual_practice_crashes_and_goes_back_to_its_checkpoint(
    small: text.Text, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    fail(monkeypatch, 14, 40, kind=kind)
    run = training.train(USUAL, 0, 60, True, small, lambda: None)
    sign = "weights not finite"
    assert run.crashes == (Crash(14, sign, kind.value), Crash(40, sign, kind.value))
    # 15 steps done, 10 kept; from step 15 on the next checkpoint is after step 24, the last before step 40 after 34.
    assert run.lost == 5 + 6
    assert math.isfinite(run.held_out)
    assert run.faults == {kind.value: 2}


def test_the_guard_skips_what_would_crash_and_loses_nothing(small: text.Text, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, 14, 40)
    run = training.train(GUARDED, 0, 60, True, small, lambda: None)
    assert (run.crashes, run.lost, run.skipped) == ((), 0, 2)
    assert math.isfinite(run.held_out)


def test_a_run_that_its_guard_ends_has_crashed_and_goes_on(small: text.Text, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, 12, 13, 14)
    arm = training.Arm("impatient", None, lambda: gm.guard.skip_nonfinite(1))
    run = training.train(arm, 0, 30, True, small, lambda: None)
    assert [(crash.step, crash.sign) for crash in run.crashes] == [(13, "halted")]
    assert run.skipped >= 2
    assert math.isfinite(run.held_out)


def test_a_restart_trains_on_as_if_the_lost_steps_had_not_been(small: text.Text) -> None:
    with ExitStack() as stack:
        one = training.Training(USUAL, 0, small, stack)
        one.save()
        first = {name: value.clone() for name, value in one.model.state_dict().items()}
        after_one = one.step(None)
        moved = {name: value.clone() for name, value in one.model.state_dict().items()}
        one.restart(one.executed)
        assert all(torch.equal(value, first[name]) for name, value in one.model.state_dict().items())
        assert (one.useful, one.lost) == (0, 1)
        one.executed = 0
        assert one.step(None) == after_one
        assert all(torch.equal(value, moved[name]) for name, value in one.model.state_dict().items())
