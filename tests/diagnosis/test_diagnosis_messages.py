"""Both languages say everything, with the same placeholders, and every template renders."""

from __future__ import annotations

import ast
from importlib import resources
from pathlib import Path

import pytest

from gradmedic.diagnosis import rules, wording
from gradmedic.diagnosis.rules import RULES

EN, ZH = wording.messages("en"), wording.messages("zh")


def strings(entry):
    """Every template of an entry, by path."""
    if isinstance(entry, str):
        yield "", entry
    elif isinstance(entry, dict):
        for key, value in entry.items():
            yield from ((f"{key}.{path}", text) for path, text in strings(value))
    elif isinstance(entry, list):
        for place, value in enumerate(entry):
            yield from ((f"{place}.{path}", text) for path, text in strings(value))


def test_every_rule_has_messages_and_every_message_a_rule():
    assert set(wording.codes()) == {rule.code for rule in RULES}
    assert len({rule.code for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("code", [*wording.codes(), "phrases", "severity", "kinds"])
def test_languages_agree(code):
    en, zh = dict(strings(EN[code])), dict(strings(ZH[code]))
    assert en.keys() == zh.keys()
    for path in en:
        assert wording.placeholders(en[path]) == wording.placeholders(zh[path]), path


@pytest.mark.parametrize("lang", wording.LANGUAGES)
@pytest.mark.parametrize("code", wording.codes())
def test_every_variant_renders(code, lang):
    table = wording.messages(lang)[code]
    said = [text for entry in (table, wording.messages(lang)["phrases"]) for _, text in strings(entry)]
    fields = {field for text in said for field in wording.placeholders(text)}
    params = {field: 0.25 for field in fields} | {"loss_first": 2.0, "loss_recent": 1.0, "op": "log", "rows": ("1",)}
    params |= {"where": ("a.weight", "b.weight", "c.weight", "d.weight"), "harm": "@harm_diverged"}
    for variant in ["", *table.get("variants", {})]:
        words = wording.render(code, variant, params, lang)
        text = words.title + words.message + "".join(r.text + str(r.action or "") for r in words.remedies)
        assert "@" not in text
        assert words.remedies or (code, variant) in {("GM104", ""), ("GM204", "calibration")}
    assert set(table.get("variants", {})) >= {v for r in table.get("remedies", []) for v in r.get("for", [])} - {""}


@pytest.mark.parametrize("lang", wording.LANGUAGES)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_every_rule_has_a_page(rule, lang):
    page = (
        resources.files("gradmedic.diagnosis").joinpath("pages").joinpath(f"{rule.code}.{lang}.md").read_text("utf-8")
    )
    assert page.startswith(f"# {rule.code} {rule.name}")
    assert page.count("\n## ") == 4  # what it means, how it is seen, what looks like it, what to do


@pytest.mark.parametrize(
    ("value", "text"),
    [(3, "3"), (0.00012345, "0.000123"), (1e9, "1e+09"), (20000.0, "20000"), (float("nan"), "NaN"), (True, "true")],
)
def test_numbers(value, text):
    assert wording.number(value) == text


@pytest.mark.parametrize(
    ("template", "n", "text"),
    [
        ("{n:tensor|tensors}", 1, "1 tensor"),
        ("{n:tensor|tensors}", 3, "3 tensors"),
        ("{n:tensor|tensors}", 0, "0 tensors"),
        ("{n:!has|have}", 1, "has"),
        ("{n:!has|have}", 2, "have"),
        ("{n} 个", 2, "2 个"),
    ],
)
def test_nouns_follow_their_number(template, n, text):
    assert template.format(n=wording.counted(n)) == text


def test_nothing_is_both_singular_and_plural():
    assert [path for path, text in strings(EN) if "(s)" in text] == []


def test_every_evidence_has_a_chinese_name():
    """Names are read from the rules' source: whatever is passed to Evidence as a literal, first and last."""
    names, units = set(), set()
    for path in Path(rules.__file__).parent.glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Evidence":
                names |= {call.args[0].value} if isinstance(call.args[0], ast.Constant) else set()
                units |= (
                    {call.args[3].value} if len(call.args) > 3 and isinstance(call.args[3], ast.Constant) else set()
                )
    assert len(names) > 25
    assert {name for name in names if wording.label(name, "zh") == name} == set()
    assert {unit for unit in units - {"", "L2"} if wording.label(unit, "zh", "units") == unit} == set()
    assert all(wording.label(name, "en") == name for name in names)


@pytest.mark.parametrize("variant", ["unknown", ""])
def test_a_nan_of_unknown_origin_is_first_to_be_looked_for(variant):
    """What is skipped meanwhile is said after what is to be done."""
    for lang, place, stopgap in (("en", "step 6", "Until that is mended"), ("zh", "第 6 步", "在问题解决之前")):
        first, *_, last = wording.render(
            "GM201", variant, {"step": 6, "at": "", "loss_is": "", "on_rank": ""}, lang
        ).remedies
        assert place in first.text
        assert last.text.startswith(stopgap)


@pytest.mark.parametrize(
    ("lang", "titles"),
    [
        ("en", ["Output has collapsed", "Prediction and target differ in shape"]),
        ("zh", ["输出坍缩", "预测与目标形状不同"]),
    ],
)
def test_a_variant_may_have_a_title_of_its_own(lang, titles):
    assert [wording.render("GM515", variant, {}, lang).title for variant in ("", "broadcast")] == titles


@pytest.mark.parametrize("code", wording.codes())
def test_titles_are_of_variants(code):
    assert set(EN[code].get("titles", {})) <= set(EN[code].get("variants", {}))


@pytest.mark.parametrize(
    ("code", "variant", "says"),
    [
        ("GM301", "", "shrink to 0.137 of their size from layer to layer"),
        ("GM301", "note", "shrink to 0.137 of their size from layer to layer"),
        ("GM302", "depth", "grow 0.137 times from layer to layer"),
    ],
)
def test_a_factor_of_each_layer_is_no_difference(code, variant, says):
    assert says in wording.render(code, variant, {"per_layer": 0.137}, "en").message


def test_sentences_call_a_number_a_layer_and_actions_keep_its_name():
    words = wording.render("GM303", "born", {"layer": "4", "where": ("4", "6"), "layers": 2}, "en")
    assert "units of layer 4 " in words.message
    assert "layer 4, layer 6" in words.message
    targets = [remedy.action["target"] for remedy in words.remedies if remedy.action and "target" in remedy.action]
    assert targets
    assert not any("layer" in str(target) for target in targets)
