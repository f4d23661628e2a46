"""Figures show what was recorded, keep off the data, and stand whatever a run holds."""

import sys
import warnings
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from plot_runs import HOSTILE, facts, frame_of, legend_texts, line_named, norms_of, run_of, simple_run, table

import gradmedic as gm
import gradmedic.plot as plot
from gradmedic.errors import InputError
from gradmedic.frame import Frame
from gradmedic.record import MemoryRecorder
from gradmedic.report.views import quantiles_of

NAMES = ("a.weight", "a.bias", "b.0.weight", "b.1.weight")
ON_AXES = ("clip", "evolution", "gradient_flow", "heatmap", "layer_distribution", "loss")


def drawn(ax):
    """Render, with every warning an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FigureCanvasAgg(ax.figure.figure).draw()
    return ax


def bare():
    """Axes without a layout engine, which takes most of the time."""
    return Figure().subplots()


def bars_of(ax, label):
    (container,) = [each for each in ax.containers if each.get_label() == label]
    return [bar.get_height() for bar in container]


def test_gradient_flow_shows_median_and_maximum_in_execution_order():
    norms = norms_of(4, 20)
    ax = drawn(plot.gradient_flow(simple_run(NAMES)))
    layers = np.stack([np.hypot(norms[:, 0], norms[:, 1]), norms[:, 2], norms[:, 3]], axis=1)
    np.testing.assert_allclose(bars_of(ax, "median over steps"), np.median(layers, axis=0))
    np.testing.assert_allclose(bars_of(ax, "maximum over steps"), layers.max(axis=0))
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["a", "b.0", "b.1"]
    assert ax.get_yscale() == "log"
    assert line_named(ax, "clip threshold 1").get_ydata()[0] == 1.0


def test_gradient_flow_of_mean_and_maximum():
    norms = norms_of(4, 20)
    ax = drawn(plot.gradient_flow(simple_run(NAMES), metric="abs", per="tensor", steps=3, threshold=0.5))
    np.testing.assert_allclose(bars_of(ax, "mean |g|, median over steps"), norms[3] / 20)
    np.testing.assert_allclose(bars_of(ax, "max |g|, maximum over steps"), norms[3] / 2)
    assert line_named(ax, "threshold 0.5").get_ydata()[0] == 0.5
    assert "step 3" in ax.get_title(loc="left")


def test_gradient_flow_marks_what_is_no_number():
    known = facts((*NAMES, "frozen.w"))
    known.parameters["frozen.w"].trainable = False
    run = run_of([frame_of(0, NAMES, [1.0, 1.0, 0.0, 2.0], nan_count=[3, 0, 0, 0])], known)
    ax = drawn(plot.gradient_flow(run, per="tensor"))
    places = {text: line_named(ax, text).get_xdata().tolist() for text in ("NaN or inf", "zero", "frozen")}
    assert places == {"NaN or inf": [0], "zero": [2], "frozen": [4]}


def test_evolution_draws_the_recorded_norms_and_says_which_steps_were_clipped():
    run = simple_run(NAMES)
    norms = norms_of(4, 20)
    ax = drawn(plot.evolution(run, layers="b.*"))
    for at, name in ((2, "b.0"), (3, "b.1")):
        np.testing.assert_array_equal(line_named(ax, name).get_ydata(), norms[:, at])
    clipped = np.flatnonzero(np.sqrt((norms**2).sum(axis=1)) > 1.0)
    assert line_named(ax, "clipped").get_xdata().tolist() == clipped.tolist()


def test_evolution_of_many_layers_shows_the_troubled_ones():
    names = tuple(f"l.{at}.weight" for at in range(30))
    frames = [frame_of(step, names, [0.0 if at == 17 else 1.0 for at in range(30)]) for step in range(6)]
    ax = drawn(plot.evolution(run_of(frames, facts(names)), k=3, findings=[]))
    assert "l.17" in legend_texts(ax)
    assert "3 of 30" in ax.get_title(loc="left")
    assert line_named(ax, "zero").get_xdata().tolist() == list(range(6))


def test_a_gap_in_the_record_is_a_gap_in_the_curve():
    frames = [frame_of(step, NAMES if step != 2 else NAMES[1:], [1.0] * (4 if step != 2 else 3)) for step in range(5)]
    ax = drawn(plot.evolution(run_of(frames, facts(NAMES)), per="tensor", layers="a.weight"))
    assert np.isnan(line_named(ax, "a.weight").get_ydata()).tolist() == [False, False, True, False, False]


def test_heatmap_holds_the_logarithms_of_the_norms():
    run = simple_run(NAMES)
    ax = drawn(plot.heatmap(run, per="tensor"))
    np.testing.assert_allclose(np.asarray(ax.images[0].get_array()), np.log10(norms_of(4, 20).T), rtol=1e-6)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == list(NAMES)
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the input at the top
    assert len(ax.figure.axes) == 2  # the colour bar


def test_heatmap_gives_states_colours_of_their_own():
    frames = [
        frame_of(step, NAMES, [1.0, 0.0, 2.0, 3.0], nan_count=[int(step == 1), 0, 0, 0], status=[0, 0, 1, 0])
        for step in range(3)
    ]
    ax = drawn(plot.heatmap(run_of(frames, facts(NAMES)), per="tensor"))
    assert legend_texts(ax) == ["NaN or inf", "zero", "no gradient"]
    states = np.asarray(ax.images[1].get_array().filled(0))
    assert len(set(states[:, 1].tolist())) == 4
    assert np.isnan(np.asarray(ax.images[0].get_array().filled(np.nan))).tolist() == (states > 0).tolist()


def test_heatmap_of_activations():
    recorder = MemoryRecorder(meta={})
    recorder.put(Frame(0, "adam", loss=1.0), keep=False)
    for step in (0, 50):
        for at, module in enumerate(("first", "second")):
            row = {"step": step, "optimizer": "adam", "module": module, "what": "output", "call": 0, "leaf": ""}
            recorder.put_module_rows([{**row, "numel": 4, "rms": 10.0 ** (at + step // 50), "norm": 1.0}])
    recorder.close()
    ax = drawn(plot.heatmap(recorder.run, metric="activation_rms"))
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["first", "second"]
    np.testing.assert_allclose(np.asarray(ax.images[0].get_array()), [[0, 1], [1, 2]], atol=1e-6)
    assert "was not recorded" in drawn(plot.heatmap(recorder.run, metric="output_grad")).texts[0].get_text()


def test_boxes_are_the_quantiles_of_the_histograms():
    run = simple_run(NAMES)
    ax = drawn(plot.layer_distribution(run, per="tensor"))
    assert legend_texts(ax) == ["step 0", "step 10"]
    counts = np.array(run.tensors["log2_hist"][3].as_py())
    middle = float(quantiles_of(counts, [0.5], maximum=norms_of(4, 20)[0, 3] / 2)[0])
    medians = [line.get_ydata() for line in ax.get_lines() if len(line.get_xdata()) == 2]
    assert any(np.allclose(each, [middle, middle]) for each in medians)


def test_a_step_without_histograms_says_which_have_some():
    ax = drawn(plot.layer_distribution(simple_run(NAMES), steps=3))
    assert ax.texts[0].get_text() == "no histogram at these steps; there are some at: 0, 10"


def test_clip_shows_both_norms_the_threshold_and_the_rate():
    run = simple_run(NAMES)
    ax = drawn(plot.clip(run))
    np.testing.assert_array_equal(line_named(ax, "norm before clipping").get_ydata(), run.series("grad_norm"))
    np.testing.assert_array_equal(line_named(ax, "norm after clipping").get_ydata(), run.series("grad_norm_post"))
    assert set(line_named(ax, "threshold").get_ydata()) == {1.0}
    (right,) = [each for each in ax.figure.axes if each is not ax]
    clipped = run.series("clipped").astype(float)
    expected = [clipped[: step + 1].mean() for step in range(20)]
    np.testing.assert_allclose(right.get_lines()[0].get_ydata(), expected)


def test_broken_losses_and_norms_stand_at_the_edge_and_unknown_ones_nowhere():
    frames = [
        Frame(0, "adam", loss=1.0, grad_norm=1.0),
        Frame(1, "adam", loss=float("nan"), grad_norm=float("inf"), skipped=True, skip_reason="non-finite"),
        Frame(2, "adam", loss=None, grad_norm=None),
        Frame(3, "adam", loss=0.5, grad_norm=0.5),
    ]
    run = run_of(frames)
    for ax in (plot.loss(run, findings=[]), plot.clip(run)):
        drawn(ax)
        assert line_named(ax, "NaN or inf").get_xdata().tolist() == [1]
        assert line_named(ax, "skipped").get_xdata().tolist() == [1]


def test_loss_marks_findings_and_says_what_they_are():
    frames = [Frame(step, "adam", loss=1.0, lr=0.0, grad_norm=1.0) for step in range(30)]
    run = run_of(frames)
    findings = gm.diagnose(run)
    assert findings
    ax = drawn(plot.loss(run))
    assert any(findings[0].code in text for text in legend_texts(ax))
    assert findings[0].title in legend_texts(drawn(plot.loss(run, findings=findings)))[-len(findings)]
    assert not any("GM" in text for text in legend_texts(drawn(plot.loss(run, findings=[]))))


def test_overview_has_all_three():
    axes = plot.overview(simple_run(NAMES), findings=[])
    assert sorted(axes) == ["clip", "heatmap", "loss"]
    assert len({id(ax.figure) for ax in axes.values()}) == 1
    drawn(axes["loss"])
    own = Figure(layout="constrained")
    assert plot.overview(simple_run(NAMES), findings=[], figure=own)["clip"].figure is own


@pytest.mark.parametrize("name", ON_AXES)
def test_each_draws_on_the_axes_it_is_given_and_touches_nothing_else(name, monkeypatch):
    monkeypatch.setattr(pyplot, "show", lambda *_: pytest.fail("shown"))
    figure = Figure(figsize=(8, 8))
    above, below = figure.subplots(2, 1)
    returned = getattr(plot, name)(simple_run(NAMES), ax=above)
    assert returned is above
    assert isinstance(returned, Axes)
    assert not below.has_data()
    assert not pyplot.get_fignums()
    assert matplotlib.get_backend().lower() == "agg"
    drawn(above)


@pytest.mark.parametrize("layout", ["constrained", None])
@pytest.mark.parametrize("name", ON_AXES)
def test_a_legend_never_covers_the_data_nor_leaves_the_figure(name, layout):
    figure = Figure(figsize=(9, 6), layout=layout)
    ax = getattr(plot, name)(simple_run(NAMES, nan_count=[0, 0, 0, 1]), ax=figure.subplots())
    drawn(ax)
    legend, box = ax.get_legend().get_window_extent(), ax.get_window_extent()
    assert legend.y0 >= box.y1 - 1 or legend.x0 >= box.x1 - 1
    assert legend.x1 <= figure.bbox.x1 + 1
    assert legend.y1 <= figure.bbox.y1 + 1


@pytest.mark.parametrize("name", ON_AXES)
def test_names_that_break_things_break_nothing(name):
    values = {"per": "tensor"} if name not in ("clip", "loss") else {}
    drawn(getattr(plot, name)(simple_run(HOSTILE, 4), lang="zh", **values, ax=bare()))


def test_no_name_breaks_out_of_a_vector_graphic(tmp_path):
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot.heatmap(simple_run(HOSTILE[:3], 2), per="tensor").figure.savefig(tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text("utf-8")
    assert "<script" not in text
    assert "&lt;script" in text


@pytest.mark.parametrize("name", ON_AXES)
def test_an_empty_run_is_a_sentence(name):
    ax = drawn(getattr(plot, name)(run_of([]), ax=bare()))
    assert len(ax.texts) == 1
    assert "recorded" in ax.texts[0].get_text()
    assert not ax.get_lines()


@pytest.mark.parametrize("name", ON_AXES)
def test_steps_that_nobody_recorded_are_a_sentence(name):
    ax = drawn(getattr(plot, name)(simple_run(NAMES), steps=slice(500, 600), ax=bare()))
    assert len(ax.texts) == 1


@pytest.mark.parametrize("name", ON_AXES)
def test_scalars_alone_stand(name):
    drawn(getattr(plot, name)(run_of([Frame(step, "adam", loss=1.0, grad_norm=2.0) for step in range(3)]), ax=bare()))


@pytest.mark.parametrize("name", ON_AXES)
def test_nothing_but_nan_stands(name):
    broken = {"loss": float("nan"), "grad_norm": float("nan"), "grad_norm_post": float("nan"), "nonfinite": 4}
    frames = [
        Frame(step, "adam", tensors=table(NAMES, [0.0] * 4, nan_count=[4] * 4, max_abs=0.0), **broken)
        for step in range(3)
    ]
    drawn(getattr(plot, name)(run_of(frames, facts(NAMES)), ax=bare()))


@pytest.mark.parametrize("name", ON_AXES)
def test_one_step_of_one_tensor_stands(name):
    drawn(getattr(plot, name)(simple_run(("w",), 1), ax=bare()))


@pytest.mark.parametrize("name", ["gradient_flow", "evolution", "heatmap", "layer_distribution"])
def test_a_thousand_tensors_get_few_labels(name):
    names = tuple(f"net.layers.{at // 8}.{'abcd'[at % 8 // 2]}.{'wb'[at % 2]}" for at in range(1000))
    ax = drawn(
        getattr(plot, name)(
            simple_run(names, 4, every=2), per="tensor", **({"findings": []} if name == "evolution" else {})
        )
    )
    ticks = ax.get_yticklabels() if name == "heatmap" else ax.get_xticklabels()
    if name == "evolution":
        assert len(legend_texts(ax)) <= 12
        return
    assert len(ticks) <= 60
    boxes = [tick.get_window_extent() for tick in ticks]
    assert sum(one.overlaps(other) for one, other in pairwise(boxes)) == 0


def test_a_folder_and_a_monitor_are_drawn_as_well_as_a_run(tmp_path):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, record=tmp_path / "run") as monitor:
        for step in range(4):
            model(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()
            if step:
                ax = plot.evolution(monitor, per="tensor")
                assert len(line_named(ax, "weight").get_xdata()) == step + 1
                pyplot.close(ax.figure)
    folder = str(tmp_path / "run")
    for source in (folder, tmp_path / "run", gm.open_run(folder), monitor):
        assert len(line_named(plot.evolution(source, per="tensor"), "bias").get_xdata()) == 4


@pytest.mark.parametrize("source", [None, 3, torch.nn.Linear(1, 1)])
def test_what_is_no_run_is_refused(source):
    with pytest.raises(InputError, match="a figure needs a Run"):
        plot.loss(source)


def test_an_unknown_language_or_metric_is_refused():
    run = run_of([])
    with pytest.raises(InputError, match="lang must be one of en, zh"):
        plot.loss(run, lang="fr")
    with pytest.raises(InputError, match="metric must be one of norm, rms, abs"):
        plot.gradient_flow(run, metric="mean")


@pytest.mark.parametrize("name", [*ON_AXES, "overview", "flow_animation"])
def test_without_matplotlib_the_extra_is_named(name, monkeypatch):
    run = simple_run(NAMES, 2)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"gradmedic\[plot\]"):
        getattr(plot, name)(run)
