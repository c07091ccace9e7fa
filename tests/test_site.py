"""The documentation builds without a warning, and leaves no page and no operator out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_chasqui.get_provider_info import get_provider_info
from tests import test_snippets

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "airflow_provider_chasqui"
AIRFLOW_ROOMS = ("operators", "sensors", "triggers", "hooks", "notifications")
CLASS = re.compile(r"^class ((?:Chasqui|Rsmq)\w*(?:Operator|Sensor|Trigger|Hook|Notifier))\(", re.M)


def classes() -> list[str]:
    return sorted(
        name
        for room in AIRFLOW_ROOMS
        for file in (PACKAGE / room).glob("*.py")
        for name in CLASS.findall(file.read_text("utf-8"))
    )


def settings() -> dict[str, Any]:
    class Loader(yaml.SafeLoader):
        """Reads mkdocs.yml, which may name Python objects."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    loaded: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader)
    return loaded


def pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for each in nav if isinstance(nav, list) else nav.values() if isinstance(nav, dict) else ():
        yield from pages(each)


@pytest.mark.timeout(240)
def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, timeout=230, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    reference = (tmp_path / "reference" / "operators" / "index.html").read_text("utf-8")
    assert "wait_for_completion" in reference


def test_every_page_is_in_the_navigation() -> None:
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert there - set(pages(settings()["nav"])) == set()


@pytest.mark.parametrize("name", classes())
def test_every_operator_sensor_and_trigger_has_its_place(name: str) -> None:
    assert f"`{name}" in (DOCS / "airflow" / "index.md").read_text("utf-8")


@pytest.mark.parametrize("name", classes())
def test_every_class_is_in_the_reference(name: str) -> None:
    """By itself, or with the module that it is in."""
    pages = "".join(page.read_text("utf-8") for page in (DOCS / "reference").glob("*.md"))
    shown = re.findall(r"^::: (\S+)$", pages, re.M)
    (file,) = (each for room in AIRFLOW_ROOMS for each in (PACKAGE / room).glob("*.py")
               if f"class {name}(" in each.read_text("utf-8"))  # fmt: skip
    module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    assert {module, f"{module}.{name}"} & set(shown)


def test_every_field_and_option_of_airflow_has_its_place() -> None:
    info = get_provider_info()
    page = (DOCS / "airflow" / "connection.md").read_text("utf-8")
    kind = next(each for each in info["connection-types"] if each["connection-type"] == "chasqui")
    assert [field for field in kind["conn-fields"] if f"`{field}`" not in page] == []
    page += (DOCS / "ui.md").read_text("utf-8")
    for option, about in info["config"]["chasqui"]["options"].items():
        assert f"| `{option}` |" in page, option
        assert about["description"]


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, each in getattr(command, "commands", {}).items():
        if not each.hidden:
            yield from leaves(each, (*path, name))
    if not hasattr(command, "commands"):
        yield " ".join(path), command


def test_the_page_on_the_command_line_has_every_command_and_the_options_of_a_worker() -> None:
    page = (DOCS / "cli.md").read_text("utf-8")
    commands = dict(leaves(test_snippets.chasqui()))
    assert [name for name in commands if f"chasqui {name}" not in page] == []
    options = {each.opts[0] for each in commands["worker"].params if each.opts[0][0] == "-"}
    assert [each for each in options if f"`{each}`" not in page] == []


def test_there_are_classes() -> None:
    assert len(classes()) > 15


def test_every_picture_is_shown_on_some_page() -> None:
    text = "".join(page.read_text("utf-8") for page in (*DOCS.rglob("*.md"), ROOT / "README.md"))
    unseen = {each.name for each in (DOCS / "images").iterdir()} - set(
        re.findall(r"images/([\w-]+\.png)\)", text)
    )
    assert unseen == set()


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_of_the_front_pages_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / name).read_text("utf-8"))
    assert [link for link in links if not (ROOT / link).exists()] == []
