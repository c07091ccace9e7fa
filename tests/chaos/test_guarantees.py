"""The tests that docs/guarantees.md names exist, and its example runs."""

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
TABLE_HEAD = r"\| \w+ \| tests \| [\w ]+ \|\n\|---\|---\|---\|\n"
NAMED = sorted(set(re.findall(r"`(tests/[\w/.]+::\w+)`", PAGE)))


def guarantees() -> list[list[str]]:
    table = re.split(TABLE_HEAD, PAGE)[1].partition("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]


def test_every_guarantee_names_a_test() -> None:
    rows = guarantees()
    assert len(rows) > 10
    for guarantee, tests, _ in rows:
        assert "`tests/" in tests, guarantee


@pytest.mark.parametrize("name", NAMED)
def test_the_named_test_exists(name: str) -> None:
    file, _, function = name.partition("::")
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert function in {node.name for node in tree.body if isinstance(node, kinds)}


def test_the_example_of_write_concern_raises_without_replicas(
    native_server: Server, queue_name: str
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    [example] = [block for block in blocks if "replicas=1" in block]
    source = example.replace("redis://localhost", native_server.url)
    source = source.replace("payments", queue_name).replace("seconds=2", "milliseconds=50")
    scope: dict[str, Any] = {}
    with pytest.raises(ReplicationTimeout):
        exec(compile(source, "guarantees.md", "exec"), scope)
    scope["queue"].close()
