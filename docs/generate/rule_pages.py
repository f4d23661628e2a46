"""The rule reference: an index of all codes, and for each family a page with what every rule means and asks for."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gradmedic.diagnosis import wording
from gradmedic.diagnosis.rules import RULES
from gradmedic.report.explain import explain


@dataclass(frozen=True)
class Family:
    """Rules that share the first digit of their code: its file, and its title by language."""

    digit: str
    file: str
    titles: dict[str, str]


FAMILIES = (
    Family("1", "wiring", {"en": "Wiring (GM1xx)", "zh": "接线（GM1xx）"}),
    Family("2", "numerics", {"en": "Numerics (GM2xx)", "zh": "数值（GM2xx）"}),
    Family("3", "gradient-flow", {"en": "Gradient flow (GM3xx)", "zh": "梯度流（GM3xx）"}),
    Family("4", "optimization", {"en": "Optimization (GM4xx)", "zh": "优化（GM4xx）"}),
    Family("5", "loss-and-data", {"en": "Loss and data (GM5xx)", "zh": "损失与数据（GM5xx）"}),
)
WORDS = {
    "en": {
        "intro": "What `gradmedic explain CODE` prints, and the thresholds that each rule starts from.",
        "thresholds": "Thresholds",
        "columns": "| threshold | default | meaning |",
        "none": "It has no thresholds.",
    },
    "zh": {
        "intro": "与 `gradmedic explain CODE --lang zh` 的输出相同。"
        "各规则的阈值见[英文版](../../reference/rules/{file}.md)。",
    },
}
INDEX = {
    "en": """# Rules

Every finding has a stable code; a code is never reused. *Invariants* are contracts broken for certain and are said at
once. *Symptoms* are faults only with evidence of harm: a loss that does not fall, that diverges, or that is not finite.
The page of a code, in English or Chinese, is also what `gradmedic explain CODE [--lang zh]` prints.

This table is generated from the rules (`python docs/make_reference.py`); a test holds it against them.
[中文](zh/rules.md)
""",
    "zh": """# 诊断规则

每个诊断都有固定的代码，代码从不挪作他用。*不变量*是必须成立的约定，一旦被破坏就立即报告；*症状*只有在出现受损证据时才算故障：损失不降、发散，或者不再是有限数。
各代码的说明也可以用 `gradmedic explain CODE --lang zh` 查看。

本表由规则的代码生成（`python docs/make_reference.py`），并有测试核对。[English](../rules.md)
""",
}
#: Thresholds cite the catalogue that the rules were designed from; readers of the page do not have it.
_CATALOGUE = re.compile(r"\s*\(rules\.md[^)]*\)|rules\.md:\s*")


def rule_pages() -> Iterator[tuple[str, str]]:
    """Yield (path below docs/, text) of every page."""
    for lang, index, folder in (("en", "rules.md", "reference/rules"), ("zh", "zh/rules.md", "zh/rules")):
        prefix = folder if lang == "en" else "rules"
        yield index, f"{INDEX[lang]}\n{_linked(explain(None, lang), prefix)}"
        for family in FAMILIES:
            yield f"{folder}/{family.file}.md", _family_page(family, lang)


def anchor(code: str, name: str) -> str:
    """Return the anchor of a rule's heading, as GitHub and MyST make it."""
    return f"{code} {name}".lower().replace(" ", "-")


def _linked(table: str, folder: str) -> str:
    names = {rule.code: rule.name for rule in RULES}
    files = {family.digit: family.file for family in FAMILIES}

    def link(found: re.Match[str]) -> str:
        code = found[1]
        return f"| [{code}]({folder}/{files[code[2]]}.md#{anchor(code, names[code])}) |"

    return re.sub(r"^\| (GM\d{3}) \|", link, table, flags=re.MULTILINE)


def _family_page(family: Family, lang: str) -> str:
    words = WORDS[lang]
    parts = [f"# {family.titles[lang]}\n\n{words['intro'].format(file=family.file)}\n"]
    for rule in sorted(RULES, key=lambda rule: rule.code):
        if rule.code[2] != family.digit:
            continue
        heading, _, body = explain(rule.code, lang).partition("\n")
        kind = wording.messages(lang)["kinds"][rule.kind]
        title = wording.messages(lang)[rule.code]["title"]
        body = re.sub(r"^#", "##", body.strip(), flags=re.MULTILINE)
        parts.append(f"#{heading}\n\n**{title}** · {kind}\n\n{body}\n")
        if lang == "en":
            parts.append(_thresholds(rule))
    return "\n".join(parts)


def _thresholds(rule: type) -> str:
    words = WORDS["en"]
    rows = [f"| `{name}` | `{default}` | {text} |" for name, default, text in _fields(rule)]
    table = "\n".join([words["columns"], "|---|---|---|", *rows]) if rows else words["none"]
    return f"### {words['thresholds']}\n\n{table}\n"


def _fields(rule: type) -> Iterator[tuple[str, str, str]]:
    """Yield (name, default, meaning) of a rule's thresholds, out of the source: a field's text follows it there."""
    module = inspect.getmodule(rule)
    assert module is not None, rule
    for node in ast.parse(inspect.getsource(module)).body:
        if not (isinstance(node, ast.ClassDef) and node.name == "Thresholds"):
            continue
        for field, follower in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.value is not None:
                default = ast.unparse(field.value)
                shared = re.fullmatch(r"field\(default_factory=(\w+)\)", default)
                yield field.target.id, shared[1] if shared else default, _text(follower)


def _text(node: ast.stmt | None) -> str:
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):
        return ""
    text = _CATALOGUE.sub("", " ".join(node.value.value.split()))
    return (text[:1].upper() + text[1:]).replace("|", "\\|")
