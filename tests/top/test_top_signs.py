"""Signs, cuts, keys and choices."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gradmedic.plain_text import plain
from gradmedic.report.views.order import TensorRow
from gradmedic.top.figures import number, seconds, share
from gradmedic.top.glyphs import (
    ASCII,
    MISSING,
    NONFINITE,
    UNICODE,
    ZERO,
    bucketed,
    cut_left,
    cut_right,
    glyphs_for,
    levels,
    signs,
)
from gradmedic.top.keys import decode_keys
from gradmedic.top.layers import Layers
from gradmedic.top.view import View, chosen, clamped, press

texts = st.text(alphabet=st.one_of(st.characters(), st.sampled_from("名字\x1b\n\u202e")), max_size=40)


@settings(deadline=None, max_examples=100)
@given(texts, st.integers(0, 30), st.sampled_from([UNICODE, ASCII]))
def test_any_name_is_made_plain_and_short(text, width, glyphs):
    shown = plain(text)
    assert shown.isprintable()
    for cut in (cut_left, cut_right):
        short = cut(shown, width, glyphs)
        assert cell_len(short) <= width
        assert short == shown if cell_len(shown) <= width else True


def test_cuts_keep_the_end_or_the_beginning():
    assert cut_left("blocks.0.weight", 8, UNICODE) == "….weight"
    assert cut_right("blocks.0.weight", 8, ASCII) == "blocks.~"
    assert plain("a\x1b[31m\n") == "a\\x1b[31m\\n"


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.floats(allow_infinity=False) | st.just(math.inf), min_size=1, max_size=60),
    st.integers(1, 12),
    st.booleans(),
)
@example([1.0, 1.801439850948199e16, 1.801439850948199e16, 0.0], 1, False)  # the mean is as far from 1 as from 0
def test_stretches_keep_what_is_farthest(values, width, log):
    series = np.array(values)
    made = bucketed(series, width, log=log)
    assert len(made) == min(width, len(series))
    assert np.isinf(series).any() == np.isinf(made).any()
    assert np.isin(made[~np.isnan(made)], series).all()
    usable = series[np.isfinite(series) & ((series > 0) if log else True)]
    if len(usable) and not np.isinf(series).any() and not (log and (series <= 0).any()):
        # A spike survives: what is kept reaches one of the two ends of the range, but for the rounding of a distance.
        scale = np.log10(usable) if log else usable
        kept = made[np.isfinite(made) & ((made > 0) if log else True)]
        reached = np.log10(kept) if log else kept
        slack = 1e-12 * np.abs(scale).max()
        assert reached.max() >= scale.max() - slack or reached.min() <= scale.min() + slack


def test_one_spike_in_ten_thousand_steps_is_seen():
    values = np.ones(10_000)
    values[7777] = 1e6
    assert bucketed(values, 30, log=True).max() == 1e6
    values[7777] = 1e-6
    assert bucketed(values, 30, log=True).min() == 1e-6


def test_levels_tell_absences_apart():
    values = np.array([1e-3, 1.0, 1e3, 0.0, math.inf, math.nan])
    made = levels(values, 1e-3, 1e3, log=True)
    assert made.tolist() == [0, 4, 7, ZERO, NONFINITE, MISSING]
    assert signs(made, UNICODE) == "▁▅█0! "
    assert signs(made, ASCII) == "_~#0! "


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_levels_grow_with_their_values(values):
    series = np.sort(np.array(values))
    made = levels(series, float(series[0]), float(series[-1]), log=False)
    assert (np.diff(made) >= 0).all()
    assert made.min() >= 0
    assert made.max() <= 7


@pytest.mark.parametrize(
    ("encoding", "term", "glyphs"),
    [
        ("utf-8", "xterm", UNICODE),
        ("ascii", "xterm", ASCII),
        (None, "", ASCII),
        ("utf-8", "vt100", ASCII),
        ("latin-1", "", ASCII),
    ],
)
def test_what_a_terminal_can_show(encoding, term, glyphs):
    assert glyphs_for(encoding, term) is glyphs


def test_figures():
    assert [number(value) for value in (math.nan, math.inf, 0.0, 1e-8, 1234.5)] == ["-", "inf", "0", "1e-8", "1.23e3"]
    assert [seconds(value) for value in (4e-5, 0.25, 12.0, 600.0, 7200.0)] == [
        "40 us",
        "250 ms",
        "12 s",
        "10 min",
        "2 h",
    ]
    assert [share(value) for value in (0.0, 1e-5, 0.012, 0.5, 1.0, math.nan)] == [
        "0%",
        "<.1%",
        "1.2%",
        "50%",
        "100%",
        "-",
    ]


def test_keys():
    assert decode_keys(b"q\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[1;5C\r\x7f\x1b") == [
        *("q", "up", "down", "page up", "page down", "right", "enter", "backspace", "escape"),
    ]
    assert decode_keys("名".encode()) == ["名"]
    assert decode_keys(b"\x1b[200~\x00\xff") == []


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=30))
def test_any_bytes_are_keys_or_nothing(data):
    assert all(key.isprintable() and key for key in decode_keys(data))


def layers():
    names = ("a.weight", "b.weight", "b.bias", "c.Weight")
    return Layers(
        rows=[TensorRow(name) for name in names],
        last_norm=np.array([1.0, math.inf, math.nan, 5.0]),
        trouble=np.array([0.0, 6.0, 0.0, 2.0]),
    )


def test_sorts_and_filters():
    assert chosen(layers(), View()).tolist() == [1, 3, 0, 2]
    assert chosen(layers(), View(sort="order")).tolist() == [0, 1, 2, 3]
    assert chosen(layers(), View(sort="norm")).tolist() == [1, 3, 0, 2]
    assert chosen(layers(), View(sort="order", pattern="WEIGHT")).tolist() == [0, 1, 3]
    assert chosen(layers(), View(sort="order", pattern="b*s")).tolist() == [2]
    assert chosen(layers(), View(pattern="zzz")).tolist() == []


def test_keys_change_the_view():
    def after(*keys):
        view = View()
        for key in keys:
            view = press(view, key, 10)
        return view

    assert after("s").sort == "order"
    assert after("s", "s", "s").sort == "trouble"
    assert after("down", "page down", "up").offset == 10
    assert after("up").offset == 0
    assert clamped(after("end").offset, 100, 10) == 90
    assert after("p").paused
    assert not after("p", "p").paused
    assert after("q").quitting
    typed = after("f", "q", "x", "backspace", "s")
    assert (typed.typing, typed.quitting, typed.sort) == ("qs", False, "trouble")
    assert after("f", "a", "enter").pattern == "a"
    assert after("f", "a", "enter", "f", "b", "escape").pattern == "a"
    assert after("f", "a", "enter", "escape").pattern == ""
