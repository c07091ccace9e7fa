"""Arguments of ChasquiEnqueueOperator and @task.chasqui, which are checked without a server."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from airflow.sdk import DAG, task
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.decorators.chasqui import ChasquiDecoratedOperator
from airflow_provider_chasqui.operators._payloads import check_payloads
from airflow_provider_chasqui.operators.enqueue import ChasquiEnqueueOperator


@pytest.mark.parametrize(
    "arguments", [{}, {"payload": None, "batch": []}, {"payloads": [], "batch": None}]
)
def test_exactly_one_kind_of_payload_must_be_given(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="exactly one of payload, payloads, batch and source"):
        ChasquiEnqueueOperator(task_id="send", queue_name="q", **arguments)


@pytest.mark.parametrize(
    ("arguments", "kind"), [({"payload": None}, "payload"), ({"batch": None}, "batch")]
)
def test_none_is_a_given_argument(arguments: dict[str, Any], kind: str) -> None:
    operator = ChasquiEnqueueOperator(task_id="send", queue_name="q", **arguments)
    assert operator._payload_kind == kind


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "not None: the upstream task was skipped"),
        (pd.DataFrame({"id": [1]}), "not a DataFrame, which iterates over its columns"),
        (pa.table({"id": [1]}), "not a Table, which iterates over its columns"),
        ("abc", "not str"),
        (b"abc", "not bytes"),
        ({"a": 1}, "not dict"),
        (7, "not int"),
    ],
)
def test_other_values_are_not_payloads(value: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"batch must be .* {message}"):
        check_payloads(value, "batch")


@pytest.mark.parametrize("value", [[1], (1,), iter([1]), range(1, 2), pd.Series([1])])
def test_any_other_iterable_is_a_list_of_payloads(value: Any) -> None:
    assert list(check_payloads(value, "batch")) == [1]


def test_nothing_is_cancelled_by_default() -> None:
    assert ChasquiEnqueueOperator(task_id="send", payload=1).cancel_on_kill is False


def test_lists_are_not_part_of_the_serialized_dag() -> None:
    with DAG("serialized", schedule=None) as dag:

        @task
        def rows() -> list[str]:
            return []

        literal = ChasquiEnqueueOperator(task_id="literal", batch=["secret"] * 10_000)
        upstream = ChasquiEnqueueOperator(task_id="upstream", payloads=rows())
        nested = ChasquiEnqueueOperator(task_id="nested", payloads=[{"x": rows()}])
    assert upstream.upstream_task_ids == {"rows"}
    assert nested.upstream_task_ids == {"rows__1"}
    text = json.dumps(DagSerialization.to_dict(dag))
    assert "secret" not in text
    assert "<10000 payloads>" in text
    assert literal.template_ext == ()


def test_the_decorator_takes_no_payloads() -> None:
    fields = set(ChasquiDecoratedOperator.template_fields)
    assert not fields & {"payload", "payloads", "batch"}
    assert not ChasquiDecoratedOperator.overwrite_rtif_after_execution
    with DAG("decorated", schedule=None):

        @task.chasqui(queue_name="q", batch=[1])
        def send() -> int:
            return 1

        with pytest.raises(InvalidArgument, match="no argument batch"):
            send()
