import numpy as np
import pytest
from views_runs import fact, frame, run_of

from gradmedic.errors import InputError
from gradmedic.report.views import Source, module_grid, tensor_grid

NAN, INF = np.nan, np.inf


def test_values_of_the_record_in_execution_order():
    rng = np.random.default_rng(0)
    norms = rng.random((7, 3))
    names = ["c.w", "a.w", "b.w"]
    run = run_of(
        [frame(step, names, norm=row) for step, row in enumerate(norms)],
        facts=[fact(name, order=at) for at, name in enumerate(sorted(names))],
    )
    grid = tensor_grid(run, "norm")
    assert grid.names == ("a.w", "b.w", "c.w")
    assert grid.steps.tolist() == list(range(7))
    assert (grid.id, grid.optimizer) == ("norm", "adam")
    np.testing.assert_array_equal(grid.values, norms[:, [1, 2, 0]])


def test_all_optimizers_are_joined_by_step_as_the_run_joins_them():
    frames = []
    for step in range(6):
        frames.append(frame(step, ["d"], "D", norm=step + 1.0, time=float(step)))
        if step % 2:
            frames.append(frame(step // 2, ["g1", "g2"], "G", norm=[step, 10.0 * step], time=step + 0.5))
    run = run_of(frames)
    steps, names, values = run.matrix("norm")
    grid = tensor_grid(run, "norm")
    assert grid.optimizer is None
    assert (grid.steps.tolist(), list(grid.names)) == (steps.tolist(), names)
    np.testing.assert_array_equal(grid.values, values)
    own = tensor_grid(run, "norm", "G")
    assert (own.optimizer, own.names, own.values.tolist()) == ("G", ("g1", "g2"), [[1, 10], [3, 30], [5, 50]])


def test_tensors_that_come_and_go():
    frames = [frame(0, ["a", "b"], norm=[1, 2]), frame(1, ["b"], norm=3), frame(2, ["c", "a"], norm=[4, 5])]
    grid = tensor_grid(run_of(frames))
    np.testing.assert_array_equal(grid.values, [[1, 2, NAN], [NAN, 3, NAN], [5, NAN, 4]])


def test_absent_zero_and_non_finite_gradients_are_told_apart():
    run = run_of(
        [
            frame(0, ["a"], norm=0.0, max_abs=0.0),
            frame(1, ["a"], norm=NAN, max_abs=NAN, status=1),
            frame(2, ["a"], norm=3.0, max_abs=2.0, nan_count=1),
            frame(3, ["a"], norm=3.0, max_abs=2.0, zero_count=1),
        ]
    )
    source = Source(run)
    for column, expected in {
        "norm": [0.0, NAN, INF, 3.0],
        "max_abs": [0.0, NAN, INF, 2.0],
        "nonfinite": [0.0, NAN, 1.0, 0.0],
        "zero_share": [0.0, NAN, 0.0, 0.25],
        "status": [0.0, 1.0, 0.0, 0.0],
    }.items():
        np.testing.assert_array_equal(tensor_grid(source, column).values[:, 0], expected, err_msg=column)


def test_the_update_ratio_holds_the_weight_norm_until_it_is_measured_again():
    weights = [2.0, NAN, NAN, 4.0, NAN]
    frames = [frame(at, ["a"], norm=1.0, update_norm=1.0, weight_norm=w) for at, w in enumerate(weights)]
    for update, weight in ((1.0, 0.0), (INF, 0.0), (INF, INF), (1.0, INF), (NAN, 1.0)):
        frames.append(frame(len(frames), ["a"], norm=1.0, update_norm=update, weight_norm=weight))
    grid = tensor_grid(run_of(frames), "update_ratio")
    np.testing.assert_array_equal(grid.values[:, 0], [0.5, 0.5, 0.5, 0.25, 0.25, NAN, INF, INF, INF, NAN])


def test_a_restart_follows_what_was_before_it_and_inherits_no_weight_norm(tmp_path):
    from gradmedic.record import Recorder, open_run

    for begin, weight in ((0, 2.0), (2, NAN)):
        recorder = Recorder(tmp_path, meta={}, join=True)
        for step in range(begin, begin + 3):
            time = 10.0 * begin + step
            norms = frame(step, ["a"], norm=step + 1.0, update_norm=1.0, weight_norm=weight, time=time)
            recorder.put(norms, keep=True)
        recorder.close()
    source = Source(open_run(tmp_path))
    grid = tensor_grid(source, "norm")
    assert (grid.steps.tolist(), grid.parts.tolist()) == ([0, 1, 2, 2, 3, 4], [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(tensor_grid(source, "update_ratio").values[:, 0], [0.5, 0.5, 0.5, NAN, NAN, NAN])


def row(step, module, what="output", **values):
    usual = {"numel": 4, "zero_count": 0, "nan_count": 0, "inf_count": 0, "norm": 2.0, "rms": 1.0}
    return {"step": step, "optimizer": "adam", "module": module, "what": what, "call": 0, "leaf": "0"} | usual | values


def test_modules_in_the_order_in_which_they_ran():
    modules = [row(0, "b", rms=1.0), row(0, "a", rms=2.0), row(5, "b", rms=3.0), row(5, "mid", rms=9.0), row(5, "a")]
    grid = module_grid(run_of([frame(0), frame(5)], modules=modules))
    assert grid.names == ("b", "mid", "a")
    np.testing.assert_array_equal(grid.values, [[1, NAN, 2], [3, 9, 1]])


def test_calls_of_a_module_are_taken_together():
    modules = [
        row(0, "a", numel=1, rms=3.0, zero_count=1),
        row(0, "a", numel=3, rms=1.0, call=1),
        row(0, "a", "grad_output", norm=3.0),
        row(0, "a", "grad_output", norm=4.0, leaf="1"),
        row(0, "sick", nan_count=1),
    ]
    run = run_of([frame(0)], modules=modules)
    np.testing.assert_allclose(module_grid(run, "activation_rms").values, [[np.sqrt((9 + 3) / 4), INF]])
    np.testing.assert_allclose(module_grid(run, "activation_zero").values, [[0.25, 0.0]])
    np.testing.assert_allclose(module_grid(run, "output_grad").values, [[5.0]])


def test_output_gradients_are_in_true_units():
    modules = [row(step, "a", "grad_output", norm=6.0) for step in (0, 2)]
    frames = [frame(step, scalars={"loss_scale": scale}) for step, scale in enumerate([2.0, 8.0, None])]
    assert module_grid(run_of(frames, modules=modules), "output_grad").values.tolist() == [[3.0], [6.0]]


def test_empty_runs_and_unknown_names():
    empty = run_of([])
    assert tensor_grid(empty).values.shape == (0, 0)
    assert module_grid(empty).values.shape == (0, 0)
    with pytest.raises(InputError, match=r"no grid 'nrm'.*norm.*update_ratio"):
        tensor_grid(empty, "nrm")
    with pytest.raises(InputError, match=r"no grid 'norm' of modules.*output_grad"):
        module_grid(empty, "norm")
