"""Tests that the pages on errors and on the wire format agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_provider_chasqui.core import errors
from airflow_provider_chasqui.core.keys import Keys
from tests.wire.golden import vectors

DOCS = Path(__file__).parents[1] / "docs"
ERROR_CLASSES = [
    member
    for member in vars(errors).values()
    if isinstance(member, type) and issubclass(member, errors.ChasquiError)
]


def error_rows() -> dict[str, list[str]]:
    """Return code, cause and remedy from the tables of the errors page, by error name."""
    text = (DOCS / "errors.md").read_text("utf-8")
    rows = re.findall(r"^\| (CMQ-\d{3}) \| `(\w+)` \| (.*?) \| (.*?) ?\|$", text, re.MULTILINE)
    return {name: [code, cause, remedy] for code, name, cause, remedy in rows}


@pytest.mark.parametrize("error_class", ERROR_CLASSES, ids=lambda error_class: error_class.__name__)
def test_every_error_is_documented_with_code_cause_and_remedy(error_class):
    code, cause, remedy = error_rows()[error_class.__name__]
    assert code == error_class.code
    assert cause
    # Base classes are never raised themselves, so nothing can be done about them.
    assert remedy or error_class.__subclasses__()


def test_every_documented_error_exists():
    assert set(error_rows()) == {error_class.__name__ for error_class in ERROR_CLASSES}


def test_every_key_of_a_queue_is_documented():
    text = (DOCS / "wire.md").read_text("utf-8")
    documented = {name.strip(":") for name in re.findall(r"`:([a-z_:]+)", text)}
    table = (Keys.__doc__ or "").split("|---|---|---|")[1]
    for name in re.findall(r"^\s*\| ([a-z_:]+)", table, re.MULTILINE):
        assert name.strip(":") in documented


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)


def test_the_example_on_the_wire_page_runs():
    [example] = python_blocks("wire.md")
    exec(compile(example, "wire.md", "exec"), {})


def test_the_example_on_the_errors_page_runs(native_server):
    [example] = python_blocks("errors.md")
    exec(compile(example.replace("redis://localhost", native_server.url), "errors.md", "exec"), {})


def test_every_event_and_reason_of_the_test_vectors_is_documented():
    text = (DOCS / "wire.md").read_text("utf-8")
    for vector in vectors("events"):
        assert f"| `{vector['event']}` |" in text
    for vector in vectors("worker_paths"):
        reason = dict(vector.get("dlq_fields") or {}).get("reason")
        assert reason is None or f"`{bytes.fromhex(reason).decode()}`" in text
