"""The pages on errors and on the wire say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_provider_chasqui.core import errors
from airflow_provider_chasqui.core.keys import Keys
from tests.wire.golden import vectors

DOCS = Path(__file__).parents[1] / "docs"
ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.ChasquiError)
]


def rows() -> dict[str, list[str]]:
    """The table rows of the page by error name."""
    text = (DOCS / "errors.md").read_text("utf-8")
    found = re.findall(r"^\| (CMQ-\d{3}) \| `(\w+)` \| (.*?) \| (.*?) ?\|$", text, re.MULTILINE)
    return {name: [code, cause, remedy] for code, name, cause, remedy in found}


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_the_page_has_every_error_with_its_code_cause_and_remedy(kind):
    code, cause, remedy = rows()[kind.__name__]
    assert code == kind.code
    assert cause
    assert remedy or "family" in cause


def test_the_page_has_no_error_that_is_not_there():
    assert set(rows()) == {kind.__name__ for kind in ERRORS}


def test_the_wire_page_has_every_key_of_a_queue():
    text = (DOCS / "wire.md").read_text("utf-8")
    listed = set(re.findall(r"`:([a-z:]+)", text))
    keys = (Keys.__doc__ or "").split("|---|---|---|")[1]
    for name in re.findall(r"^\s*\| ([a-z:]+)", keys, re.MULTILINE):
        assert name.strip(":") in {each.strip(":") for each in listed}, name


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)


def test_the_example_on_the_wire_page_runs():
    [example] = examples("wire.md")
    exec(compile(example, "wire.md", "exec"), {})


def test_the_example_on_the_errors_page_runs(native_server):
    [example] = examples("errors.md")
    exec(compile(example.replace("redis://localhost", native_server.url), "errors.md", "exec"), {})


def test_every_reason_and_event_of_the_vectors_is_on_the_wire_page():
    text = (DOCS / "wire.md").read_text("utf-8")
    for vector in vectors("events"):
        assert f"| `{vector['event']}` |" in text
    for vector in vectors("worker_paths"):
        reason = dict(vector.get("dlq_fields") or {}).get("reason")
        assert reason is None or f"`{bytes.fromhex(reason).decode()}`" in text
