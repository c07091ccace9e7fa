"""Write the tables of parameters and options in the documentation.

python -m tools.parameter_tables [--check]

A page contains the lines `<!-- parameters: package.module.Class -->` and `<!-- end -->`. What is
between them is written from the signature and the docstring of the class. Between
`<!-- options of airflow.cfg -->` and `<!-- end -->` are the options of the section `[chasqui]`.
With --check nothing is written, and the exit status is 1 if a page is not up to date.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow_provider_chasqui.get_provider_info import get_provider_info

PACKAGE = "airflow_provider_chasqui"
PAGES = Path(__file__).parents[1] / "docs"
SECTION = re.compile(r"(<!-- parameters: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
OPTIONS = re.compile(r"(<!-- options of airflow.cfg -->\n).*?(<!-- end -->)", re.DOTALL)
_PARAM = re.compile(r"^:param (\w+):\s*(.*?)(?=^:|\Z)", re.DOTALL | re.MULTILINE)
_TEMPLATED = re.compile(r"\s*(\(templated\)|\bTemplated\.)")
_DEFAULT = re.compile(r"\s*Default: (.+?)\.$")
# The value of a setting, not of the code.
_CONFIGURED = {"deferrable": "`[operators] default_deferrable`"}


def own_classes(cls: type) -> list[type]:
    """Return the class and those of its bases that belong to this package.

    :param cls: the class.
    """
    return [base for base in cls.__mro__ if base.__module__.startswith(f"{PACKAGE}.")]


def descriptions(cls: type) -> dict[str, str]:
    """Return the descriptions of the parameters, those of the class before those of its bases.

    :param cls: the class.
    """
    found: dict[str, str] = {}
    for base in own_classes(cls):
        for name, text in _PARAM.findall(inspect.cleandoc(base.__dict__.get("__doc__") or "")):
            found.setdefault(name, " ".join(_TEMPLATED.sub("", text).split()))
    return found


def defaults(cls: type) -> dict[str, Any]:
    """Return the default values of the parameters; `inspect.Parameter.empty` if there is none.

    :param cls: the class.
    """
    found: dict[str, Any] = {}
    for base in own_classes(cls):
        function = base.__dict__.get("__init__")
        if function is None:
            continue
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name != "self" and parameter.kind != parameter.VAR_KEYWORD:
                found.setdefault(parameter.name, parameter.default)
    return found


def format_default(name: str, value: Any, described: str | None) -> str:
    """Return a default value as Markdown.

    :param name: the name of the parameter.
    :param value: the value.
    :param described: the default that the docstring describes, or None.
    """
    if value is inspect.Parameter.empty:
        return "required"
    if name in _CONFIGURED and isinstance(value, bool):
        return _CONFIGURED[name]
    if value in (None, "", ()):
        return "none" if described in (None, "None") else str(described)
    if isinstance(value, timedelta):
        return described or f"{value.total_seconds():g} seconds"
    return f"`{value}`" if isinstance(value, str) else f"`{value!r}`"


def split_default(text: str) -> tuple[str, str | None]:
    """Return a description without the sentence about the default at its end, and that default.

    :param text: the description.
    """
    match = _DEFAULT.search(text)
    return (text, None) if match is None else (text[: match.start()], match[1])


def table(cls: type) -> str:
    """Return the parameter table of a class.

    :param cls: the class.
    :raises KeyError: if the docstring lacks a parameter.
    """
    texts, values = descriptions(cls), defaults(cls)
    templated = set(getattr(cls, "template_fields", ()))
    rows = ["| parameter | default | |", "|---|---|---|"]
    for name in [*(name for name in texts if name in values), *(values.keys() - texts.keys())]:
        mark = " (t)" if name in templated else ""
        text, described = split_default(texts[name].replace("|", "\\|"))
        default = format_default(name, values[name], described)
        rows.append(f"| `{name}`{mark} | {default} | {text} |")
    return "\n".join(rows) + "\n"


def options_table() -> str:
    """Return the table of the options of the section `[chasqui]`."""
    options = get_provider_info()["config"]["chasqui"]["options"]
    rows = ["| option | default | environment variable | |", "|---|---|---|---|"]
    for name, option in options.items():
        default = f"`{option['default']}`" if option["default"] else "none"
        text = " ".join(option["description"].split())
        if option["example"]:
            text += f" Example: `{option['example']}`."
        rows.append(f"| `{name}` | {default} | `AIRFLOW__CHASQUI__{name.upper()}` | {text} |")
    return "\n".join(rows) + "\n"


def update(text: str) -> str:
    """Return a page with its tables up to date.

    :param text: the page.
    """

    def replace(match: re.Match[str]) -> str:
        module, _, name = match[2].rpartition(".")
        return match[1] + table(getattr(importlib.import_module(module), name)) + match[3]

    text = OPTIONS.sub(lambda match: match[1] + options_table() + match[2], text)
    return SECTION.sub(replace, text)


def outdated_pages() -> Iterator[tuple[Path, str]]:
    """Yield the pages that are not up to date, with the text that they should have."""
    for page in sorted(PAGES.rglob("*.md")):
        text = page.read_text("utf-8")
        updated = update(text)
        if updated != text:
            yield page, updated


def main() -> None:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    outdated = list(outdated_pages())
    for page, text in outdated:
        if check:
            sys.stdout.write(f"{page}: run python -m tools.parameter_tables\n")
        else:
            page.write_text(text, "utf-8")
    sys.exit(1 if check and outdated else 0)


if __name__ == "__main__":
    main()
