"""Heads and time steps: numbers are those that were recorded, and what is no number is drawn as such."""

import warnings

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from plot_runs import HOSTILE, legend_texts, line_named
from torch import nn

import gradmedic as gm
from gradmedic.errors import InputError
from gradmedic.frame import Frame
from gradmedic.record import MemoryRecorder


def module_run(what, rows, loss_scale=None):
    """A run with one row of a kind for each (step, module, leaf, extra)."""
    recorder = MemoryRecorder(meta={})
    for step in sorted({row[0] for row in rows}):
        own = tuple(
            {"module": module, "what": what, "call": 0, "leaf": leaf, "extra": extra}
            for at, module, leaf, extra in rows
            if at == step
        )
        recorder.put(Frame(step, "sgd", time=float(step), loss=1.0, loss_scale=loss_scale, modules=own), keep=False)
    recorder.close()
    return recorder.run


def drawn(ax):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FigureCanvasAgg(ax.figure.figure).draw()
    return ax


def bare():
    return Figure().subplots()


def cells(ax):
    """The numbers of the grid [rows, heads]; masked where there is none."""
    return ax.get_images()[0].get_array()


def gradients(*norms):
    return {f"grad_norm.{head}": norm for head, norm in enumerate(norms)}


def test_heads_shows_the_median_of_each_head():
    rows = [(step, name, "0", gradients(10.0**step * size, size)) for step in range(3) for name, size in SIZES.items()]
    ax = drawn(gm.plot.heads(module_run("attention", rows), ax=bare()))
    np.testing.assert_allclose(cells(ax), np.log10([[10.0, 1.0], [0.1, 0.01]]))
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["a", "b"]
    assert {text.get_text() for text in ax.texts} == {"1.0e+01", "1.0e+00", "1.0e-01", "1.0e-02"}
    assert "steps 0–2" in ax.get_title(loc="left")
    one = drawn(gm.plot.heads(module_run("attention", rows), steps=2, layers="b", ax=bare()))
    np.testing.assert_allclose(cells(one), np.log10([[1.0, 0.01]]))


SIZES = {"a": 1.0, "b": 0.01}


def test_heads_are_unscaled():
    ax = gm.plot.heads(module_run("attention", [(0, "a", "0", gradients(1024.0, 512.0))], 1024.0), ax=bare())
    np.testing.assert_allclose(cells(ax), np.log10([[1.0, 0.5]]))


def test_what_is_no_number_of_a_head_is_said():
    rows = [(0, "a", "0", gradients(1.0, 0.0, np.inf, np.nan)), (0, "b", "0", gradients(2.0))]
    ax = drawn(gm.plot.heads(module_run("attention", rows), ax=bare()))
    assert legend_texts(ax) == ["NaN or inf", "zero", "not recorded"]
    np.testing.assert_array_equal(np.ma.getmaskarray(cells(ax)), [[False, True, True, True], [False, True, True, True]])


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_hostile_names_are_drawn_as_they_are(lang):
    drawn(gm.plot.heads(module_run("attention", [(0, name, "0", gradients(1.0)) for name in HOSTILE]), lang=lang))
    course = {"steps": 60.0} | {f"time_{point}": 1.0 for point in range(9)}
    drawn(gm.plot.through_time(module_run("recurrent", [(0, name, "w", course) for name in HOSTILE]), lang=lang))


def test_a_run_without_attention_or_recurrence_says_so():
    run = module_run("input", [(0, "a", "0", {})])
    assert "no attention" in gm.plot.heads(run, ax=bare()).texts[0].get_text()
    assert "no recurrent" in gm.plot.through_time(run, ax=bare()).texts[0].get_text()
    known = module_run("attention", [(0, "a", "0", gradients(1.0))])
    assert "nothing was recorded" in gm.plot.heads(known, steps=7, ax=bare()).texts[0].get_text()


def test_what_does_not_exist_is_refused():
    run = module_run("attention", [(0, "blocks.0", "0", gradients(1.0))])
    with pytest.raises(InputError, match="metric must be one of grad_norm, entropy, max_logit"):
        gm.plot.heads(run, metric="size")
    with pytest.raises(InputError, match=r"no layer or tensor matches 'block'; .*blocks\.0"):
        gm.plot.heads(run, layers="block")


def test_heads_of_a_real_attention_are_those_of_its_backward_pass():
    """Four heads; the loss takes the third one's output ten times over: that one's gradient is ten times as large."""
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x):
            q, k, v = self.qkv(x).view(2, 6, 3, 4, 2).permute(2, 0, 3, 1, 4)
            return nn.functional.scaled_dot_product_attention(q, k, v)

    net = Net()
    weights = torch.tensor([1.0, 1.0, 10.0, 1.0]).view(1, 4, 1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with gm.watch(net, optimizer, strict=True) as monitor:
        (net(torch.randn(2, 6, 8)) * weights).sum().backward()
        optimizer.step()
    elements = 2 * 6 * 2
    expected = np.log10([[1.0, 1.0, 10.0, 1.0]]) + np.log10(elements) / 2
    np.testing.assert_allclose(cells(gm.plot.heads(monitor, ax=bare())), expected, atol=1e-6)


def test_through_time_of_a_linear_recurrence_is_the_power_of_its_factor():
    """h[t] = 0.5 h[t-1] + x[t]: the gradient of the state at time t is 0.5^(T - 1 - t) of the last one's."""

    class Linear(nn.Module):
        def __init__(self):
            super().__init__()
            self.again = nn.Parameter(0.5 * torch.eye(3))

        def forward(self, x):
            state = torch.zeros(4, 3)
            for each in x:
                state = torch.mm(state, self.again) + each
            return state

    net = Linear()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    with gm.watch(net, optimizer, strict=True) as monitor:
        net(torch.randn(17, 4, 3)).sum().backward()
        optimizer.step()
    ax = drawn(gm.plot.through_time(monitor, ax=bare()))
    times, norms = line_named(ax, "again").get_data()
    np.testing.assert_array_equal(times, np.arange(0, 17, 2))
    np.testing.assert_allclose(norms, np.sqrt(12) * 0.5 ** (16.0 - times), rtol=1e-6)
    assert ax.get_yscale() == "log"


def test_through_time_marks_zero_and_infinity_and_leaves_out_what_never_came_by():
    course = {"steps": 9.0} | {f"time_{point}": 1.0 for point in range(9)}
    rows = [
        (0, "rnn", "w", course | {"time_0": np.inf, "time_1": np.nan, "time_2": 0.0}),
        (1, "rnn", "w", course | {f"time_{point}": np.nan for point in range(9)}),
        (2, "rnn", "w", course | {"steps": 30.0, "time_0": 5.0}),  # a sequence of another length
    ]
    ax = drawn(gm.plot.through_time(module_run("recurrent", rows), ax=bare()))
    assert line_named(ax, "NaN or inf").get_xdata().tolist() == [0, 1]
    assert line_named(ax, "zero").get_xdata().tolist() == [2]
    np.testing.assert_array_equal(line_named(ax, "rnn.w").get_ydata()[3:], np.ones(6))
