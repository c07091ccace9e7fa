"""Queue and AsyncQueue are one class in two colours."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from airflow_provider_chasqui.queue import AsyncQueue, Queue

# It answers from memory, as properties do, so there is nothing to await.
AT_ONCE = {"another_drive"}


def public(kind: type[Any]) -> dict[str, Any]:
    return {name: member for name, member in vars(kind).items() if not name.startswith("_")}


def described(member: Any) -> tuple[str, str]:
    """Parameters with their defaults and types, the answer's type, and the promise."""
    function = member.fget if isinstance(member, property) else member
    signature = str(inspect.signature(function)).replace("Async", "")
    return signature, inspect.getdoc(function) or ""


def test_they_have_the_same_methods():
    assert list(public(Queue)) == list(public(AsyncQueue))


@pytest.mark.parametrize("name", public(Queue))
def test_a_method_is_the_same_in_both(name):
    blocking, awaiting = public(Queue)[name], public(AsyncQueue)[name]
    assert described(blocking) == described(awaiting)
    assert isinstance(blocking, property) == isinstance(awaiting, property)
    if name not in AT_ONCE and not isinstance(blocking, property):
        assert inspect.iscoroutinefunction(awaiting)
        assert not inspect.iscoroutinefunction(blocking)
        assert described(blocking)[1], "a method says what it promises"


@pytest.mark.parametrize("name", public(Queue))
def test_a_method_does_the_same_in_both(name):
    def body(kind: type[Any]) -> str:
        member = public(kind)[name]
        source = inspect.getsource(member.fget if isinstance(member, property) else member)
        return re.sub(r"\basync |\bawait |Async", "", source)

    assert body(Queue) == body(AsyncQueue)


def test_they_are_made_alike():
    def make(kind: type[Any]) -> str:
        return str(inspect.signature(kind.__init__)).replace("Async", "")

    assert make(Queue) == make(AsyncQueue)


def test_they_are_closed_alike():
    assert hasattr(Queue, "__enter__")
    assert hasattr(AsyncQueue, "__aenter__")
