"""What blocks and what awaits are one class in two colours."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import Any

import pytest

from airflow_provider_chasqui.lease import (
    AsyncLeaseQueue,
    AsyncPartitionConsumer,
    AsyncPartitionedQueue,
    LeaseQueue,
    PartitionConsumer,
    PartitionedQueue,
)
from airflow_provider_chasqui.queue import AsyncQueue, Queue
from airflow_provider_chasqui.rsmq.client import AsyncRsmqClient, RsmqClient

TWINS = {
    Queue: AsyncQueue,
    LeaseQueue: AsyncLeaseQueue,
    PartitionedQueue: AsyncPartitionedQueue,
    PartitionConsumer: AsyncPartitionConsumer,
    RsmqClient: AsyncRsmqClient,
}
# They answer from memory, as properties do, so there is nothing to await.
AT_ONCE = {"new_client", "heartbeat", "partition_of", "queue", "join"}
# Only what awaits can listen to a channel; and a thread is ended otherwise than a task.
ONE_COLOUR = {"link"}
OTHERWISE = {(PartitionConsumer, "close")}


def public(kind: type[Any]) -> dict[str, Any]:
    return {
        name: member
        for name, member in vars(kind).items()
        if not name.startswith("_") and name not in ONE_COLOUR
    }


def colourless(text: str) -> str:
    """Code or a promise without what its colour brings along."""
    return re.sub(r"\basync |\bawait |Async|\basyncio\.|\btime\.(?=sleep)", "", text)


def described(member: Any) -> tuple[str, str]:
    """Parameters with their defaults and types, the answer's type, and the promise."""
    function = member.fget if isinstance(member, property) else member
    return colourless(str(inspect.signature(function))), colourless(inspect.getdoc(function) or "")


VERBS = [(kind, name) for kind in TWINS for name in public(kind)]
each_verb = pytest.mark.parametrize(
    ("kind", "name"), VERBS, ids=[f"{kind.__name__}.{name}" for kind, name in VERBS]
)
each_twin = pytest.mark.parametrize("kind", TWINS, ids=lambda kind: kind.__name__)


@each_twin
def test_they_have_the_same_methods(kind):
    assert list(public(kind)) == list(public(TWINS[kind]))


@each_verb
def test_a_method_is_the_same_in_both(kind, name):
    blocking, awaiting = public(kind)[name], public(TWINS[kind])[name]
    assert described(blocking) == described(awaiting)
    assert isinstance(blocking, property) == isinstance(awaiting, property)
    if name not in AT_ONCE and not isinstance(blocking, property):
        assert inspect.iscoroutinefunction(awaiting)
        assert not inspect.iscoroutinefunction(blocking)
        assert described(blocking)[1], "a method says what it promises"


@each_verb
def test_a_method_does_the_same_in_both(kind, name):
    def body(member: Any) -> str:
        source = inspect.getsource(member.fget if isinstance(member, property) else member)
        return ast.unparse(ast.parse(colourless(textwrap.dedent(source))))  # however it is laid out

    if (kind, name) not in OTHERWISE:
        assert body(public(kind)[name]) == body(public(TWINS[kind])[name])


@each_twin
def test_they_are_made_alike(kind):
    def make(one: type[Any]) -> str:
        return str(inspect.signature(one.__init__)).replace("Async", "")

    assert make(kind) == make(TWINS[kind])


@each_twin
def test_they_are_closed_alike(kind):
    assert hasattr(kind, "__enter__")
    assert hasattr(TWINS[kind], "__aenter__")
