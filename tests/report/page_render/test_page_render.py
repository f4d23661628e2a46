"""The page as text: one file that asks for nothing, whatever its data hold; and the words of both languages."""

from __future__ import annotations

import html
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.errors import InputError
from gradmedic.record import MemoryRecorder
from gradmedic.report.page.payload import build_payload
from gradmedic.report.page.render import (
    SCRIPTS,
    asset,
    content_security_policy,
    embedded_json,
    page_script,
    page_words,
    render_page,
)


@pytest.fixture(scope="module")
def payload():
    return build_payload(MemoryRecorder(meta={}).run, [])


def keys_of(table, prefix=""):
    for key, value in table.items():
        if isinstance(value, dict):
            yield from keys_of(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


DIAGNOSIS = ("severity", "evidence_names", "unit_names", "one_unit")
BOOKS = {
    lang: dict(keys_of({key: table for key, table in book.items() if key not in DIAGNOSIS}))
    for lang, book in page_words().items()
}


def placeholders(text):
    return set(re.findall(r"\{(\w+)", text))


@given(
    st.recursive(
        st.text() | st.sampled_from(["</script>", "<!--", "\u2028\u2029", "&amp;"]),
        lambda part: st.lists(part) | st.dictionaries(st.text(), part),
    )
)
@settings(deadline=None, max_examples=60)
def test_embedded_json_means_the_same_and_cannot_end_its_element(value):
    text = embedded_json(value)
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == value


def test_embedded_json_is_strict_and_takes_file_names_that_are_not_utf8():
    with pytest.raises(ValueError, match="JSON"):
        embedded_json({"loss": float("nan")})
    assert json.loads(embedded_json("run-\udcff")) == "run-?"


def test_a_report_is_one_file_that_asks_for_nothing(payload):
    page = render_page([payload], lang="en")
    assert page.count("<script") == page.count("</script>") == 4
    assert not re.search(r'<(script|link|img|iframe)[^>]+(src|href)="(?!data:|#)', page)
    assert "connect-src 'none'" in html.unescape(page[:2000])
    assert "default-src 'none'" in html.unescape(page[:2000])
    assert "Plotly" in page


def test_the_live_page_asks_its_own_server_only():
    page = render_page(None, lang="zh", live=True)
    assert re.findall(r'<script[^>]* src="([^"]*)"', page) == ["/plotly.js"]
    assert "connect-src 'self'" in html.unescape(page)
    assert 'data-lang="zh"' in page
    assert len(page) < 400_000


def test_the_name_of_a_run_cannot_become_an_element(payload):
    name = '"><script>alert(1)</script>\u2028'
    hostile = {**payload, "run": {**payload["run"], "name": name}}
    page = render_page([hostile, hostile], lang="en")
    assert "<script>alert" not in page
    found = re.findall(r'<script type="application/json" class="run-data"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert [json.loads(text)["run"]["name"] for text in found] == [name, name]


def test_policy_allows_no_eval_and_nothing_from_elsewhere():
    for live in (False, True):
        policy = content_security_policy(live=live)
        assert "unsafe-eval" not in policy
        assert "http" not in policy
        assert "*" not in policy


@pytest.mark.parametrize(("payloads", "lang", "live"), [([], "en", False), (None, "en", False), (None, "fr", True)])
def test_what_cannot_be_rendered_is_said(payloads, lang, live):
    with pytest.raises(InputError, match=r"expects|must be"):
        render_page(payloads, lang=lang, live=live)


def test_without_plotly_the_extra_is_named(monkeypatch, payload):
    monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
    with pytest.raises(InputError, match="pip install"):
        render_page([payload], lang="en")


def test_both_languages_have_the_same_words():
    assert BOOKS["en"].keys() == BOOKS["zh"].keys()
    for key, text in BOOKS["en"].items():
        assert placeholders(text) == placeholders(BOOKS["zh"][key]), key


def test_every_word_that_a_script_asks_for_is_there():
    script = page_script() + asset("page.html")
    tables = {key.split(".")[0] for key in BOOKS["en"]}
    asked = {key for key in re.findall(r'"([a-z_]+\.[a-z_]+)"', script) if key.split(".")[0] in tables}
    assert len(asked) > 60
    unknown = {key for key in asked if key not in BOOKS["en"]}
    assert unknown == set()
    sections = re.findall(r'id: "([a-z]+)",\n    (?:depends|missing|draw)', script)
    assert len(sections) == 16
    assert all({f"{name}.title", f"{name}.about"} <= BOOKS["en"].keys() for name in sections)


def test_no_word_is_left_over():
    script = page_script() + asset("page.html")
    # Words whose keys are put together where they are used.
    families = {"metrics", "units", "states", "marks", "columns", "families", "heads", "status", "tree", "findings"}
    families |= {"heatmap", "facts", "topbar", "schedule"}
    for key in BOOKS["en"]:
        family, _, name = key.partition(".")
        used = f'"{key}"' in script or name in ("title", "about", "noscript") or family in families
        assert used, key


def test_every_script_is_part_of_the_page():
    from importlib import resources

    folder = resources.files("gradmedic.report.page").joinpath("assets/js")
    there = {entry.name.removesuffix(".js") for entry in folder.iterdir() if entry.name.endswith(".js")}
    there |= {f"sections/{entry.name.removesuffix('.js')}" for entry in folder.joinpath("sections").iterdir()}
    assert there == set(SCRIPTS)
    assert len(SCRIPTS) == len(set(SCRIPTS))


def test_words_hold_the_names_of_evidence_of_the_diagnosis():
    books = page_words()
    assert books["zh"]["evidence_names"]
    assert set(books["en"]["severity"]) == {"info", "warning", "error", "critical"}


def test_no_script_makes_html_of_text():
    for name in SCRIPTS:
        text = asset(f"js/{name}.js")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            name
        )
        assert len(text.splitlines()) <= 350, name
