"""Both languages say the same, and every example of the docstrings runs."""

import doctest
import importlib
import pkgutil
import re
import string
from pathlib import Path

import pytest

import gradmedic.plot
import gradmedic.report.notebook
from gradmedic.plot import words as plot_words
from gradmedic.report.notebook import words as notebook_words

DOCS = Path(__file__).parents[2] / "docs"
MODULES = [
    name
    for package in (gradmedic.plot, gradmedic.report.notebook)
    for name in [
        package.__name__,
        *(each.name for each in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")),
    ]
]


def holes(text):
    return sorted(name for _, name, _, _ in string.Formatter().parse(text) if name)


@pytest.mark.parametrize("table", [plot_words._WORDS, notebook_words.WORDS])
def test_both_languages_have_the_same_words_with_the_same_holes(table):
    assert set(table["en"]) == set(table["zh"])
    for key, text in table["en"].items():
        assert holes(text) == holes(table["zh"][key]), key


def test_without_a_chinese_font_figures_speak_english(monkeypatch):
    monkeypatch.setattr(plot_words, "draws_chinese", lambda: False)
    assert plot_words.words("zh")["step"] == "step"


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    module = importlib.import_module(name)
    extras = {"np": importlib.import_module("numpy"), **vars(module)}
    failed, _ = doctest.testmod(module, extraglobs=extras)
    assert failed == 0


def test_the_gallery_shows_every_figure_and_every_picture_is_there():
    page = (DOCS / "gallery.md").read_text("utf-8")
    assert set(re.findall(r"^## (\w+)", page, re.M)) == set(gradmedic.plot.__all__)
    pictures = re.findall(r"\]\((images/[^)]+)\)", page)
    assert len(pictures) == 2 * len(gradmedic.plot.__all__)
    assert all((DOCS / picture).is_file() for picture in pictures)
