"""Names in figures: short, on one line, no formula, no missing glyph."""

import re
import warnings

import matplotlib
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from plot_runs import HOSTILE

from gradmedic.plot import labels


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=60), st.integers(3, 40))
@example("\udcff", 3)
def test_a_label_fits_has_no_control_character_and_no_bare_dollar(name, width):
    text = labels.label(name, width)
    assert labels.columns_of(text.replace(r"\$", "$")) <= width
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\ud800-\udfff]", text)
    assert text.count("$") == text.count(r"\$")


@settings(deadline=None, max_examples=100)
@given(st.text("abc._$", max_size=12))
def test_short_plain_names_are_drawn_as_they_are(name):
    assert labels.label(name).replace(r"\$", "$") == name


def test_long_names_keep_both_ends():
    text = labels.label("encoder." + "x" * 300 + ".weight", 20)
    assert text.startswith("encoder")
    assert text.endswith("weight")
    assert "…" in text


def test_wide_characters_take_two_columns():
    assert labels.columns_of("层a") == 3


def test_layers_that_differ_in_the_middle_stay_apart_by_their_numbers():
    names = [f"transformer.encoder.layers.{at}.attention.projection.out" for at in range(3)]
    made = labels.unique_labels(names, 28)
    assert len(set(made)) == 3
    assert [f".{at}." in text for at, text in enumerate(made)] == [True] * 3


def test_equal_labels_are_numbered():
    assert len(set(labels.unique_labels(["x" * 100 + "a" + "x" * 100, "x" * 100 + "b" + "x" * 100]))) == 2


@pytest.mark.parametrize("wide", [True, False], ids=["with a Chinese font", "without"])
def test_hostile_names_draw_without_a_warning(wide, monkeypatch):
    if not wide:
        monkeypatch.setattr(labels, "_wide_family", lambda: None)
        labels._missing_from.cache_clear()
    figure = Figure()
    ax = figure.subplots()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ax.set_yticks(range(len(HOSTILE)), labels.unique_labels(HOSTILE))
        labels.keep_plain(ax.get_yticklabels())
        figure.savefig("/dev/null", format="png")
    labels._missing_from.cache_clear()


def test_what_no_font_can_draw_is_written_as_an_escape(monkeypatch):
    monkeypatch.setattr(labels, "_wide_family", lambda: None)
    labels._missing_from.cache_clear()
    assert labels.label("层0") == r"\u5c420"
    assert not labels.draws_chinese()
    labels._missing_from.cache_clear()


def test_names_are_escaped_where_tex_sets_the_text():
    with matplotlib.rc_context({"text.usetex": True}):
        assert labels.label("a_b$c%") == r"a\_b\$c\%"
