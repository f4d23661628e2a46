"""The API reference: every public name with its signature and docstring, sections turned into lists."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import gradmedic

#: Public names of these modules are documented one by one, after the top level's own.
MODULES = ("clip", "diagnosis", "guard", "init", "plot", "sinks", "stats", "testing")
HEAD = """# Python API

What `gm.` offers, generated from the docstrings (`python docs/make_reference.py`). Names that are not here are not
public: they may change in any version ([deprecation policy](../deprecation.md)).
"""
_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Example|Examples|Source|Note):\s*$")


def api_page() -> str:
    """Return the page."""
    parts = [HEAD, "## gradmedic\n"]
    for name in gradmedic.__all__:
        value = getattr(gradmedic, name)
        if not inspect.ismodule(value):
            parts.append(_entry(f"gm.{name}", value))
    for module_name in MODULES:
        module = importlib.import_module(f"gradmedic.{module_name}")
        summary = markdown(inspect.getdoc(module) or "")
        prefix = f"gm.{module_name}" if module_name in gradmedic.__all__ else f"gradmedic.{module_name}"
        parts.append(f"## {prefix}\n\n{summary}\n")
        own = [name for name in sorted(module.__all__) if name not in gradmedic.__all__]
        parts += [_entry(f"{prefix}.{name}", getattr(module, name)) for name in own]
    return "\n".join(parts)


def _entry(name: str, value: Any) -> str:
    if not (inspect.isclass(value) or callable(value)):
        return f"### {name}\n"
    parts = [
        f"### {name}\n",
        f"```python\n{_signature(name, value)}\n```\n",
        f"{markdown(inspect.getdoc(value) or '')}\n",
    ]
    if inspect.isclass(value) and value.__module__.startswith("gradmedic"):
        for method, function in _methods(value):
            summary = (inspect.getdoc(function) or "").partition("\n")[0]
            shown = f"`{method}`" if isinstance(function, property) else f"`{_signature(method, function, bound=True)}`"
            parts.append(f"- {shown}: {_escaped(summary)}")
        parts.append("")
    return "\n".join(parts)


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield public methods and properties that gradmedic itself defines, in the order of the source."""
    seen: set[str] = set()
    for base in cls.__mro__:
        if not base.__module__.startswith("gradmedic"):
            continue
        for name, value in vars(base).items():
            plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if name.startswith("_") or name in seen or not (inspect.isfunction(plain) or isinstance(plain, property)):
                continue
            seen.add(name)
            if inspect.getdoc(plain):
                yield name, plain


def _signature(name: str, value: Any, *, bound: bool = False) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return f"{name}(*args)"
    parameters = [each for each in signature.parameters.values() if not (bound and each.name in ("self", "cls"))]
    shown = [_parameter(each) for each in parameters]
    keyword = next((at for at, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY), None)
    if keyword is not None and not any(each.kind is each.VAR_POSITIONAL for each in parameters):
        shown.insert(keyword, "*")
    unknown = signature.return_annotation is signature.empty or inspect.isclass(value)
    arrow = "" if unknown else f" -> {_type_name(signature.return_annotation)}"
    line = f"{name}({', '.join(shown)}){arrow}"
    if len(line) <= 110 or bound:
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in shown) + f"){arrow}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    typed = "" if parameter.annotation is parameter.empty else f": {_type_name(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return f"{stars}{parameter.name}{typed}"
    default = re.sub(r" at 0x[0-9a-f]+", "", repr(parameter.default)).replace("<factory>", "...")
    return f"{parameter.name}{typed} = {default}" if typed else f"{parameter.name}={default}"


def _type_name(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown: `Args:` and the like become lists, examples blocks of code."""
    blocks: list[str] = []
    section, lines = "", []  # type: str, list[str]
    for line in [*docstring.splitlines(), "End:"]:
        found = _SECTION.match(line)
        if found or line == "End:":
            blocks.append(_block(section, lines))
            section, lines = (found[1] if found else ""), []
        else:
            lines.append(line)
    return "\n\n".join(block for block in blocks if block)


def _block(section: str, lines: list[str]) -> str:
    text = textwrap.dedent("\n".join(lines)).strip("\n")
    if not text:
        return ""
    if section in ("Args", "Attributes", "Raises"):
        return f"**{section}**\n\n{_items(text)}"
    body = _with_code(text)
    return f"**{section}**\n\n{body}" if section else body


def _items(text: str) -> str:
    entries: list[str] = []
    for line in text.splitlines():
        found = re.match(r"([*\w, ]+?)(?: \([^)]*\))?: (.*)", line)
        if found and not line.startswith(" "):
            names = ", ".join(f"`{name.strip()}`" for name in found[1].split(","))
            entries.append(f"- {names}: {_escaped(found[2])}")
        elif entries:
            entries[-1] += f" {_escaped(line.strip())}"
        else:
            entries.append(f"- {_escaped(line.strip())}")
    return "\n".join(entry.rstrip() for entry in entries)


def _with_code(text: str) -> str:
    """Put examples and other indented or prompted lines into blocks of code."""
    shown: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.lstrip().startswith(">>>"):
            shown.append(f"```pycon\n{textwrap.dedent(paragraph)}\n```")
        elif paragraph.startswith("    "):
            shown.append(f"```text\n{textwrap.dedent(paragraph)}\n```")
        else:
            shown.append(_escaped(paragraph))
    return "\n\n".join(shown)


def _escaped(text: str) -> str:
    """Keep Markdown from reading names with `*` or `<` in running text; code between backticks is left alone."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*<])", r"\\\1", part) for part in parts)
