import numpy as np
from views_runs import frame, run_of

from gradmedic.report.views import head_series


def attention(step, module, call=0, leaf="0", **extra):
    place = {"step": step, "optimizer": "adam", "module": module, "call": call, "leaf": leaf}
    return {**place, "what": "attention", "extra": extra}


def series(modules):
    return {(each.module, each.what): each for each in head_series(run_of([frame(0)], modules=modules))}


def test_what_is_known_of_all_heads():
    found = series([attention(step, "h.0", entropy=0.5, entropy_min=0.1 * step, max_logit=np.nan) for step in (0, 50)])
    entropy = found["h.0", "entropy"]
    assert entropy.labels == ("mean", "min")
    assert entropy.steps.tolist() == [0, 50]
    np.testing.assert_allclose(entropy.values, [[0.5, 0.0], [0.5, 5.0]])
    assert np.isinf(found["h.0", "max_logit"].values).all()


def test_single_heads_where_they_were_recorded():
    modules = [attention(0, "a", **{"entropy.10": 0.3, "entropy.2": 0.2, "entropy": 0.25})]
    entropy = series(modules)["a", "entropy"]
    assert entropy.labels == ("2", "10")
    assert entropy.values.tolist() == [[0.2, 0.3]]


def test_rows_from_before_the_model_was_known_make_no_series_of_their_own():
    assert {name for name, _ in series([attention(0, "", entropy=0.5), attention(1, "a", entropy=0.5)])} == {"a"}
    assert {name for name, _ in series([attention(0, "", entropy=0.5)])} == {"#"}


def test_several_attentions_of_one_module():
    modules = [attention(0, "a", call, entropy=0.1 * call) for call in (0, 1)]
    assert [name for name, _ in series(modules)] == ["a", "a · call 1"]


def test_none():
    assert head_series(run_of([frame(0)])) == []


def test_gradients_of_heads_are_shown_in_true_units_and_only_where_a_backward_pass_came_by():
    modules = [attention(step, "a", **{"grad_norm.0": 8.0 if step else np.nan}) for step in (0, 1)]
    run = run_of([frame(step, scalars={"loss_scale": 4.0}) for step in (0, 1)], modules=modules)
    (only,) = head_series(run)
    assert (only.what, only.labels) == ("grad_norm", ("0",))
    np.testing.assert_array_equal(only.values, [[np.nan], [2.0]])
