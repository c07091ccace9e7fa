"""The blocking and the awaiting classes are the same text but for await."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

from airflow_provider_chasqui.redis_client.client import AsyncRedisClient, RedisClient
from airflow_provider_chasqui.redis_client.connection_pool import (
    AsyncConnectionManager,
    ConnectionManager,
)

# Where the two libraries name one thing differently.
SAME = [
    (r"\bAsync(Link|Driver|Retry|Whole|Sentinel)\b", r"\1"),
    (r"redis\.asyncio\b", "redis"),
    (r"\basyncio\.sleep\b", "time.sleep"),
    (r"\baclose\b", "close"),
    (r", 'socket_timeout': None", ""),  # see AsyncConnectionMixin
    (r"disconnect\(nowait=True\)", "disconnect()"),
]


class _Strip(ast.NodeTransformer):
    def visit_Await(self, node: ast.Await) -> ast.AST:
        return self.visit(node.value)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        self.generic_visit(node)
        return ast.FunctionDef(**{field: getattr(node, field) for field in node._fields})


def _text(kind: type[object]) -> str:
    tree = _Strip().visit(ast.parse(inspect.getsource(kind)))
    body = tree.body[0]
    body.body = body.body[1:]  # the docstring says which colour it is
    text = ast.unparse(ast.fix_missing_locations(tree))
    for old, new in SAME:
        text = re.sub(old, new, text)
    return text


@pytest.mark.parametrize(
    ("blocking", "awaiting"),
    [(RedisClient, AsyncRedisClient), (ConnectionManager, AsyncConnectionManager)],
)
def test_the_two_colours_are_one_text(blocking: type[object], awaiting: type[object]) -> None:
    assert _text(awaiting) == _text(blocking)
