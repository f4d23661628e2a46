import numpy as np
import pytest
from views_runs import frame, run_of

from gradmedic.report.views import clip_rate, lr_norm_correlation, scalars_of


def scalar_frame(step, optimizer="adam", **scalars):
    return frame(step, optimizer=optimizer, scalars=scalars, time=scalars.pop("time", float(step)))


def test_unknown_not_finite_and_zero_are_three_things():
    run = run_of([scalar_frame(at, loss=loss) for at, loss in enumerate([None, np.nan, -np.inf, 0.0, 1.5])])
    np.testing.assert_array_equal(scalars_of(run)["adam"].columns["loss"], [np.nan, np.inf, -np.inf, 0.0, 1.5])


def test_each_optimizer_has_its_own_steps():
    frames = []
    for step in range(6):
        frames.append(scalar_frame(step, "D", loss=float(step), time=2.0 * step))
        if step % 2:
            frames.append(
                scalar_frame(step // 2, "G", lr=0.1 * step, skipped=step == 3, skip_reason="r", time=2.0 * step + 1)
            )
    found = scalars_of(run_of(frames))
    assert list(found) == ["D", "G"]
    assert found["D"].steps.tolist() == list(range(6))
    assert found["D"].columns["loss"].tolist() == [0, 1, 2, 3, 4, 5]
    np.testing.assert_allclose(found["G"].columns["lr"], [0.1, 0.3, 0.5])
    assert found["G"].skipped.tolist() == [False, True, False]
    assert found["G"].reasons == {1: "r"}
    assert found["D"].reasons == {}


def test_logged_numbers():
    logged = [{"acc": 0.5}, {}, {"acc": np.nan, "<b>\n名": 2.0}, {"acc": 1.0}]
    run = run_of([scalar_frame(at, logged=entry) for at, entry in enumerate(logged)])
    found = scalars_of(run)["adam"].logged
    np.testing.assert_array_equal(found["acc"], [0.5, np.nan, np.inf, 1.0])
    np.testing.assert_array_equal(found["<b>\n名"], [np.nan, np.nan, 2.0, np.nan])


def test_logged_numbers_of_two_optimizers():
    frames = [scalar_frame(at // 2, "DG"[at % 2], logged={"at": float(at)}, time=float(at)) for at in range(8)]
    found = scalars_of(run_of(frames))
    assert found["D"].logged["at"].tolist() == [0, 2, 4, 6]
    assert found["G"].logged["at"].tolist() == [1, 3, 5, 7]


def test_the_clip_rate_is_that_of_the_window():
    flags = np.random.default_rng(0).random(200) < 0.3
    expected = [flags[max(0, at - 49) : at + 1].mean() for at in range(200)]
    np.testing.assert_allclose(clip_rate(flags), expected)
    assert clip_rate([]).shape == (0,)


def test_correlation_is_pearsons_with_the_logarithm():
    rng = np.random.default_rng(1)
    lr = rng.random(100)
    norm = np.exp(lr + rng.normal(0, 0.3, 100))
    value, n = lr_norm_correlation(lr, norm)
    assert n == 100
    assert value == pytest.approx(np.corrcoef(lr, np.log10(norm))[0, 1], abs=1e-9)


@pytest.mark.parametrize(
    ("lr", "norm", "n"),
    [
        ([0.1] * 5, [1, 2, 3, 4, 5], 5),
        ([1, 2, 3], [7.0, 7.0, 7.0], 3),
        ([1, 2], [1, 2], 2),
        ([1, 2, 3, np.nan], [0.0, np.inf, 2, 3], 1),
        ([], [], 0),
    ],
)
def test_no_correlation_where_one_stands_still(lr, norm, n):
    assert lr_norm_correlation(lr, norm) == (None, n)


def test_correlation_of_numbers_of_any_size():
    value, _ = lr_norm_correlation(np.array([1e-300, 2e-300, 3e-300]), np.array([1e-9, 1e-8, 1e-7]))
    assert value == pytest.approx(1.0)


def test_an_empty_run():
    assert scalars_of(run_of([])) == {}
