"""The files beside the code agree with it: registry, workflow, templates, changelog."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from demo.__main__ import NEXT
from tests.test_site import classes

ROOT = Path(__file__).parents[1]


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text("utf-8"))


def listed() -> dict[str, str]:
    rooms = [value for value in read(".airflow-registry.yaml").values() if isinstance(value, list)]
    return {each["module"]: each["description"] for room in rooms for each in room}


def test_the_registry_lists_every_class_once_with_a_description() -> None:
    assert sorted(path.rpartition(".")[2] for path in listed()) == classes()
    assert all(listed().values())


@pytest.mark.parametrize("path", sorted(listed()))
def test_what_the_registry_lists_is_there(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert isinstance(getattr(importlib.import_module(module), name), type)


@pytest.mark.parametrize("command", [command for command, _ in NEXT])
def test_what_the_demo_says_to_try_next_is_there(command: str) -> None:
    program, *words = command.split()
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.M)
    elif program.startswith(".venv/bin/"):
        scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
        assert program.removeprefix(".venv/bin/") in scripts
    else:
        assert (ROOT / program).exists()


def test_the_workflow_names_servers_that_the_tests_know() -> None:
    jobs = read(".github/workflows/tests.yml")["jobs"]
    fixtures = (ROOT / "tests" / "conftest.py").read_text()
    for server in jobs["server"]["strategy"]["matrix"]["server"]:
        assert f'"{server}"' in fixtures, server
    assert "3.1" in jobs["airflow"]["strategy"]["matrix"]["airflow"]
    assert jobs["all"]["steps"][-1]["run"].endswith(".ci/run")


def test_the_hooks_of_pre_commit_are_what_make_check_runs() -> None:
    (repo,) = read(".pre-commit-config.yaml")["repos"]
    programs = {hook["entry"].split()[0] for hook in repo["hooks"]}
    makefile = (ROOT / "Makefile").read_text()
    check = re.search(r"^check:.*\n((?:\t.*\n)+)", makefile, re.M)
    assert check
    assert programs == {f".venv/bin/{name}" for name in re.findall(r"\$\(BIN\)/(\w+)", check[1])}


@pytest.mark.parametrize(
    "page", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md")), ids=str
)
def test_an_issue_template_has_a_name_and_a_purpose(page: Path) -> None:
    _, head, body = page.read_text("utf-8").split("---\n", 2)
    assert {"name", "about"} <= set(yaml.safe_load(head))
    assert body.strip()


def test_the_changelog_has_a_heading_for_the_wire() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    for release in re.split(r"^## ", text, flags=re.M)[1:]:
        assert "### Wire" in release
