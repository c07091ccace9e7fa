"""Error messages for handlers that cannot be imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.engine.handler_loader import load

LoadError = Callable[[str], str]

DECLARED = """
from airflow_provider_chasqui import job

@job(queue_name="emails")
async def welcome(to: str) -> None: ...

@job(queue_name="emails")
async def goodbye(to: str) -> None: ...

@job(queue_name="images")
def resize(path: str, width: int) -> None: ...

alias = resize

def double(job): ...
"""


@pytest.fixture
def load_error(tmp_path: Path) -> Iterator[LoadError]:
    """Return the error message of loading handlers from a directory with some modules."""
    text = "from airflow_provider_chasqui import Handlers\nhandlers = Handlers()\n"
    (tmp_path / "greet_jobs.py").write_text(text)
    (tmp_path / "broken_jobs.py").write_text("import greet_jobs\nimport nowhere_at_all\n")
    (tmp_path / "empty_jobs.py").write_text("")
    (tmp_path / "declared_jobs.py").write_text(DECLARED)
    path = list(sys.path)

    def fail(handlers_path: str) -> str:
        with pytest.raises(InvalidArgument) as caught:
            load(handlers_path, str(tmp_path))
        return caught.value.message.replace(str(tmp_path), "HERE")

    yield fail
    sys.path[:] = path
    for name in ("greet_jobs", "broken_jobs", "empty_jobs", "declared_jobs"):
        sys.modules.pop(name, None)


def test_a_missing_module(load_error: LoadError) -> None:
    missing = "No module named {!r} in HERE or on the Python path"
    assert load_error("no_jobs:handlers") == missing.format("no_jobs")
    assert load_error("my.no_jobs:handlers") == missing.format("my.no_jobs")
    correction = "; write greet_jobs:handlers"
    assert load_error("greet_jobs.py:handlers") == missing.format("greet_jobs.py") + correction
    correction = "; write app.jobs:handlers"
    assert load_error("./app/jobs.py:handlers") == missing.format("./app/jobs.py") + correction


def test_a_missing_attribute(load_error: LoadError) -> None:
    assert load_error("greet_jobs:nope") == "'greet_jobs' has no 'nope'; it has handlers"
    assert load_error("empty_jobs:nope") == "'empty_jobs' has no 'nope'"


def test_an_import_error_names_the_line(load_error: LoadError) -> None:
    message = "cannot import 'broken_jobs': ModuleNotFoundError: No module named 'nowhere_at_all'"
    assert load_error("broken_jobs:handlers") == f"{message} (at HERE/broken_jobs.py:2)"


def test_the_jobs_that_a_module_declares(load_error: LoadError, tmp_path: Path) -> None:
    loaded = load("declared_jobs", str(tmp_path))
    names = {queue: handlers.job_names for queue, handlers in loaded.for_queues([]).items()}
    assert names == {"emails": ["goodbye", "welcome"], "images": ["resize"]}
    assert list(loaded.for_queues(["images"])) == ["images"]
    with pytest.raises(InvalidArgument, match=r"for the queue 'email'; .* 'emails', 'images'"):
        loaded.for_queues(["email"])
    single = load("declared_jobs:welcome", str(tmp_path)).for_queues([])
    assert {queue: handlers.job_names for queue, handlers in single.items()} == {
        "emails": ["welcome"]
    }
    function = load("declared_jobs:double", str(tmp_path))
    assert list(function.for_queues(["any"])) == ["any"]
    with pytest.raises(InvalidArgument, match="a queue is required"):
        function.for_queues([])


def test_a_module_without_jobs(load_error: LoadError) -> None:
    assert load_error("empty_jobs") == "'empty_jobs' declares no jobs; declare jobs with @job"
    assert load_error("greet_jobs") == "'greet_jobs' declares no jobs; it has handlers"
    assert "write greet_jobs" in load_error("greet_jobs.py")
    assert "such as my_app.jobs:handlers" in load_error("greet_jobs:")


def test_two_jobs_with_one_name(load_error: LoadError, tmp_path: Path) -> None:
    (tmp_path / "empty_jobs.py").write_text(
        "from airflow_provider_chasqui import job\n"
        "a = job(queue_name='q', name='x')(lambda n: n)\n"
        "b = job(queue_name='q', name='x')(lambda n: n)\n"
    )
    assert load_error("empty_jobs") == "the job name 'x' has two handlers; register one per name"
