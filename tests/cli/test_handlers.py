"""Handlers that cannot be found: the message says where they were looked for and what is there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.supervisor.handler_loader import load

Told = Callable[[str], str]


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    """Loads from a folder with some modules; returns what is said about it."""
    text = "from airflow_provider_chasqui import Handlers\nhandlers = Handlers()\n"
    (tmp_path / "greet_jobs.py").write_text(text)
    (tmp_path / "broken_jobs.py").write_text("import greet_jobs\nimport nowhere_at_all\n")
    (tmp_path / "empty_jobs.py").write_text("")
    path = list(sys.path)

    def fail(where: str) -> str:
        with pytest.raises(InvalidArgument) as caught:
            load(where, str(tmp_path))
        return caught.value.message.replace(str(tmp_path), "HERE")

    yield fail
    sys.path[:] = path
    for name in ("greet_jobs", "broken_jobs", "empty_jobs"):
        sys.modules.pop(name, None)


def test_a_module_that_is_not_there(told: Told) -> None:
    missing = "No module named {!r} in HERE or on the Python path"
    assert told("no_jobs:handlers") == missing.format("no_jobs")
    assert told("my.no_jobs:handlers") == missing.format("my.no_jobs")
    written = "; write greet_jobs:handlers"
    assert told("greet_jobs.py:handlers") == missing.format("greet_jobs.py") + written
    written = "; write app.jobs:handlers"
    assert told("./app/jobs.py:handlers") == missing.format("./app/jobs.py") + written


def test_a_name_that_is_not_in_the_module(told: Told) -> None:
    assert told("greet_jobs:nope") == "'greet_jobs' has no 'nope', but it has handlers"
    assert told("empty_jobs:nope") == "'empty_jobs' has no 'nope'"


def test_a_module_that_fails_itself_names_the_line(told: Told) -> None:
    said = "cannot import 'broken_jobs': ModuleNotFoundError: No module named 'nowhere_at_all'"
    assert told("broken_jobs:handlers") == f"{said} (at HERE/broken_jobs.py:2)"
