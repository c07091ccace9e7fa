"""The page of guarantees names tests that are there, and its example runs."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.core.errors import ReplicationTimeout
from tests.conftest import Server

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/.]+::\w+)`", PAGE)))


def promises() -> list[list[str]]:
    table = PAGE.partition("| promise | tests | figure |\n|---|---|---|\n")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]


def test_every_promise_has_a_test() -> None:
    rows = promises()
    assert len(rows) > 10
    for promise, tests, _ in rows:
        assert "`tests/" in tests, promise


@pytest.mark.parametrize("name", NAMED)
def test_the_test_is_there(name: str) -> None:
    file, _, function = name.partition("::")
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert function in {node.name for node in tree.body if isinstance(node, kinds)}


def test_the_example_of_confirm_says_what_happens_without_replicas(
    native_server: Server, queue_name: str
) -> None:
    [example] = [
        block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "Confirm" in block
    ]
    source = example.replace("redis://localhost", native_server.url)
    source = source.replace("payments", queue_name).replace("seconds=2", "milliseconds=50")
    scope: dict[str, Any] = {}
    with pytest.raises(ReplicationTimeout):
        exec(compile(source, "guarantees.md", "exec"), scope)
    scope["queue"].close()
