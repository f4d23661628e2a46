"""Advice on clipping, shown: readable at 80 columns, in both languages, and as strict JSON."""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from pathlib import Path

import pytest
from rich.cells import cell_len

from gradmedic.clip.advice import advise
from gradmedic.diagnosis.wording import placeholders
from gradmedic.errors import InputError
from gradmedic.report.clip_text import clip_advice_json, render_clip_advice, sentence
from gradmedic.report.clip_words import LABELS, SENTENCES

sys.path.append(str(Path(__file__).parents[1] / "clip"))
from clip_runs import Norms, noise, run_of


@lru_cache
def advice(**values):
    norms = noise(120)
    norms[[90, 110]] = 1e5
    return advise(run_of(norms, **values))


@pytest.mark.parametrize("words", [LABELS, SENTENCES])
def test_languages_agree(words):
    assert words["en"].keys() == words["zh"].keys()
    for key, text in words["en"].items():
        assert placeholders(text) == placeholders(words["zh"][key]), key
        assert text.strip()


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Lion", ""])
def test_every_line_fits(lang, width, kind):
    found = advice(kind=kind, tables=True, clip_threshold=0.5, clip_scale=0.5)
    text = render_clip_advice(found, lang=lang, width=width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "{" not in text
    recommended = found.optimizers[0].recommended
    assert recommended.method in text
    (marked,) = [line for line in text.splitlines() if line.startswith("*")]
    assert recommended.method.partition(",")[0] in marked
    for outcome in found.optimizers[0].outcomes:
        assert outcome.method.partition("(")[0] in text


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_problems_are_sentences(lang):
    text = render_clip_advice(advise(run_of([1.0] * 3)), lang=lang)
    assert "3" in text
    assert "20" in text
    assert len(render_clip_advice(advise(Norms([])), lang=lang).splitlines()) <= 2


def test_numbers_read_well():
    found = advice().optimizers[0]
    said = [sentence(note, "en") for note in (*found.reasons, *found.notes)]
    assert said[0].startswith("Pre-clip norms of 118 healthy steps: median ")
    assert any("2 of 2 spikes would be caught; spikes at steps 90, 110." in text for text in said)
    assert any(text.endswith("agc, spike_clip, value, param_ratio.") for text in said)
    assert not any("?" in text for text in said)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_json_is_strict_and_says_everything(lang):
    found = advice(tables=True)

    def refuse(text):
        raise AssertionError(text)

    data = json.loads(clip_advice_json(found, lang), parse_constant=refuse)
    (entry,) = data["optimizers"]
    assert data["run"] is None
    assert entry["recommended"] == found.optimizers[0].recommended.method
    assert len(entry["methods"]) == len(found.optimizers[0].outcomes)
    assert entry["spikes"] == [90, 110]
    assert {"clipped_share", "mean_scale", "caught", "spikes", "layers"} <= set(entry["methods"][0])
    assert all(note["text"] for note in entry["reasons"] + entry["notes"])
    assert entry["problem"] is None
    by_tensor = [method for method in entry["methods"] if method["layers"]]
    assert set(by_tensor[0]["layers"]) == {"layers.0", "layers.1"}
    problem = json.loads(clip_advice_json(advise(run_of([1.0] * 3)), lang))["optimizers"][0]
    assert problem["problem"]["key"] == "too_short"
    assert problem["recommended"] is None


def test_another_language_is_refused():
    with pytest.raises(InputError, match="en, zh"):
        render_clip_advice(advice(), lang="fr")
    with pytest.raises(InputError, match="en, zh"):
        clip_advice_json(advice(), "fr")
