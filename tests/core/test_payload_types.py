"""Typed payloads: every supported type, and the messages for values that do not fit."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NewType, NotRequired, Optional, TypedDict
from uuid import UUID

import pydantic
import pytest

from airflow_provider_chasqui.core.errors import EncodeError, InvalidArgument, InvalidPayload
from airflow_provider_chasqui.core.payload_types import PayloadType

pytestmark = pytest.mark.unit


class Color(Enum):
    RED = "red"
    BLUE = "blue"


UserId = NewType("UserId", int)


@dataclasses.dataclass
class Node:
    name: str
    children: list[Node] = dataclasses.field(default_factory=list)
    size: int = 1

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("size must not be negative")


class Address(TypedDict):
    city: str
    zip: NotRequired[str]


class Document(pydantic.BaseModel):
    id: int = pydantic.Field(gt=0)
    text: str
    language: str = pydantic.Field("en", alias="lang")


def roundtrip(hint: Any, value: Any) -> Any:
    def function(value): ...

    function.__annotations__ = {"value": hint}
    payload_type = PayloadType(function)
    return payload_type.arguments(payload_type.payload((value,), {}))["value"]


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Any, {"a": [1, None]}),
        (bool, True),
        (int, 7),
        (float, 2.5),
        (str, "ñ"),
        (bytes, b"\x00"),
        (datetime, datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
        (date, date(2026, 1, 2)),
        (time, time(3, 4, 5)),
        (Decimal, Decimal("1.10")),
        (UUID, UUID(int=7)),
        (Color, Color.BLUE),
        (UserId, 7),
        (Literal["a", 1], 1),
        (Optional[int], None),  # noqa: UP045
        (int | str | None, "x"),
        (list[int], [1, 2]),
        (tuple[int, str], (1, "x")),
        (tuple[int, ...], (1, 2, 3)),
        (dict[str, list[date]], {"a": [date(2026, 1, 2)]}),
        (list[Node], [Node("a", [Node("b")])]),
        (list[Address], [{"city": "Cusco"}]),
        (list[Document], [Document(id=1, text="x", lang="qu")]),
    ],
    ids=str,
)
def test_values_are_the_same_after_the_wire(hint: Any, value: Any) -> None:
    assert roundtrip(hint, value) == value


def test_numbers_of_tables_are_accepted() -> None:
    assert (roundtrip(int, 3.0), roundtrip(float, 3)) == (3, 3.0)


@pytest.mark.parametrize(
    ("hint", "value", "problem"),
    [
        (int, "7", "value: expected an integer, not '7'"),
        (int, True, "value: expected an integer, not True"),
        (int, 1.5, "value: expected an integer, not 1.5"),
        (str, None, "value: expected text, not None"),
        (bool, 1, "value: expected a bool, not 1"),
        (datetime, "yesterday", "value: expected a time as ISO 8601 text, not 'yesterday'"),
        (Color, "green", "value: expected one of 'red', 'blue', not 'green'"),
        (Literal["a", "b"], "c", "value: expected one of 'a', 'b', not 'c'"),
        (int | None, "x", "value: expected int | None, not 'x'"),
        (list[int], [1, "x"], "value[1]: expected an integer, not 'x'"),
        (tuple[int, int], [1], "value: expected a list of 2 values, not [1]"),
        (list[dict[str, int]], [{"a": "x"}], "value[0].a: expected an integer, not 'x'"),
        (list[Node], [{"name": "a", "children": [{}]}], "value[0].children[0].name: is missing"),
        (list[Node], [{"name": "a", "size": -1}], "value[0]: size must not be negative"),
        (list[Address], [{"zip": "1"}], "value[0].city: is missing"),
        (list[Document], [{"id": 0, "text": "x"}], "value[0].id: Input should be greater than 0"),
        (str, "x" * 1000 + "y", ""),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_named(hint: Any, value: Any, problem: str) -> None:
    if not problem:
        with pytest.raises(InvalidPayload, match=r"xxx…$"):
            roundtrip(int, value)
        return
    with pytest.raises(InvalidPayload) as caught:
        roundtrip(hint, value)
    assert caught.value.message == f"the payload does not fit the job 'function': {problem}"


@pytest.mark.parametrize("kind", [Node, Address, Document, dict, dict[str, Any]], ids=str)
def test_the_payload_of_one_map_is_that_map(kind: Any) -> None:
    def function(row): ...

    function.__annotations__ = {"row": kind}
    row = {"name": "a", "city": "Cusco", "id": 1, "text": "x"}
    payload_type = PayloadType(function)
    assert payload_type.payload((row,), {}) == row
    assert payload_type.field_names is None
    assert not isinstance(payload_type.arguments(row)["row"], type(None))


def test_the_payload_of_several_parameters_is_the_map_of_their_names() -> None:
    def send(to: str, subject: str = "Hi", *, copies: int = 0, context: Any = None) -> None: ...

    payload_type = PayloadType(send)
    assert payload_type.accepts_context
    assert payload_type.field_names == ["to", "subject", "copies"]
    assert payload_type.payload(("ada",), {"copies": 2}) == {"to": "ada", "copies": 2}
    # A newer producer may send more.
    assert payload_type.arguments({"to": "ada", "reply_to": "x"}) == {"to": "ada"}
    for args, kwargs, problem in (
        ((), {}, "missing a required argument: 'to'"),
        (("a",), {"sbject": "x"}, "got an unexpected keyword argument 'sbject'"),
        (("a", 7), {}, "subject: expected text, not 7"),
    ):
        with pytest.raises(InvalidPayload, match=problem):
            payload_type.payload(args, kwargs)
    for payload in ([1], "text", None):
        with pytest.raises(InvalidPayload, match="expected a map"):
            payload_type.arguments(payload)


def test_a_function_with_any_keys_receives_all_of_them() -> None:
    def store(table: str, **row: Any) -> None: ...

    payload_type = PayloadType(store)
    payload = payload_type.payload(("t",), {"a": 1, "b": 2})
    assert payload == {"table": "t", "a": 1, "b": 2}
    assert payload_type.arguments(payload) == payload
    assert payload_type.field_names is None


def test_functions_that_cannot_be_declared() -> None:
    def positional(value: int, /) -> None: ...

    def variable(*values: int) -> None: ...

    def unknown(value: Missing) -> None: ...  # noqa: F821

    def unsupported(value: complex) -> None: ...

    def constrained(value: Annotated[int, pydantic.Field(gt=0)]) -> None: ...

    for function, problem in (
        (positional, "must be passed by name"),
        (variable, "must be passed by name"),
        (unknown, "name 'Missing' is not defined; import them outside of `if TYPE_CHECKING`"),
        (unsupported, "parameter 'value' of the job 'unsupported': the type complex is not"),
        (constrained, "put constraints into a pydantic model"),
    ):
        with pytest.raises(InvalidArgument, match=problem):
            PayloadType(function)


def test_a_value_that_cannot_be_encoded_is_an_encode_error() -> None:
    def function(value: Any) -> None: ...

    with pytest.raises(EncodeError, match="the value of value in the payload"):
        PayloadType(function).payload((object(),), {})


def test_declaring_jobs_imports_neither_pydantic_nor_airflow() -> None:
    code = """
import sys
from airflow_provider_chasqui import job

@job(queue_name="q")
def add(a: int, b: int = 1) -> int:
    return a + b

assert add(1) == 2
assert add.new_job(1, b=2).payload == {"a": 1, "b": 2}
print(sorted({"pydantic", "airflow"} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "[]\n", result.stderr
