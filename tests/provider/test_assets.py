"""Asset URIs, lineage, derived ids, argument parsers and the retry policy."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset

from airflow_provider_chasqui.assets.chasqui import (
    QueueLineage,
    convert_asset_to_openlineage,
    create_asset,
    queue_lineage,
)
from airflow_provider_chasqui.core.batch import check_batch_id
from airflow_provider_chasqui.core.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    InvalidArgument,
    QueueFull,
)
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy, parse_retry_policy
from airflow_provider_chasqui.get_provider_info import get_provider_info
from airflow_provider_chasqui.operators import _parsing
from airflow_provider_chasqui.operators._task_identity import BatchIds, batch_ids, derive_id
from airflow_provider_chasqui.operators.cancel import ChasquiCancelOperator
from airflow_provider_chasqui.operators.consume import ChasquiConsumeOperator
from airflow_provider_chasqui.operators.dlq import ChasquiPurgeDlqOperator, ChasquiReplayDlqOperator
from airflow_provider_chasqui.operators.enqueue import ChasquiEnqueueOperator
from airflow_provider_chasqui.operators.messages import ChasquiLeaseMessagesOperator
from airflow_provider_chasqui.operators.pause import ChasquiPauseOperator
from airflow_provider_chasqui.operators.rsmq import ChasquiToRsmqOperator, RsmqToChasquiOperator
from airflow_provider_chasqui.operators.spark_replay import ChasquiSparkReplayOperator
from airflow_provider_chasqui.retry_policies import chasqui_retry_policy
from tests.conftest import Server
from tests.provider.conftest import connect


def test_equal_queues_have_equal_asset_uris() -> None:
    asset = create_asset(queue_name="e mails/1", host="redis")
    assert asset.uri == "chasqui://redis:6379/e%20mails%2F1"
    assert Asset("chasqui://redis/emails").uri == "chasqui://redis:6379/emails"
    dataset = convert_asset_to_openlineage(asset, None)
    assert (dataset.namespace, dataset.name) == ("chasqui://redis:6379", "e mails/1")


@pytest.mark.parametrize(
    "uri", ["chasqui:///q", "chasqui://redis", "chasqui://redis/a/b", "chasqui://u:p@redis/q"]
)
def test_an_invalid_asset_uri_is_rejected(uri: str) -> None:
    from urllib.parse import urlsplit

    from airflow_provider_chasqui.assets.chasqui import sanitize_uri

    with pytest.raises(ValueError, match="the URI of a queue"):
        sanitize_uri(urlsplit(uri))


def test_lineage_contains_the_server_and_the_queue(
    monkeypatch: pytest.MonkeyPatch, native_server: Server
) -> None:
    connect(monkeypatch, native_server)
    namespace = native_server.url.replace("redis://", "chasqui://").removesuffix("/0")
    lineage = queue_lineage("chasqui_default", "emails", output=True)
    datasets = [(dataset.namespace, dataset.name) for dataset in lineage.outputs]
    assert datasets == [(namespace, "emails")]
    assert queue_lineage("chasqui_default", "emails", output=False).inputs


@pytest.mark.parametrize(
    ("operator_class", "arguments", "writes"),
    [
        (ChasquiEnqueueOperator, {"payload": 1}, True),
        (ChasquiCancelOperator, {"batch": "b"}, True),
        (ChasquiReplayDlqOperator, {}, True),
        (ChasquiPurgeDlqOperator, {}, True),
        (ChasquiPauseOperator, {}, True),
        (ChasquiConsumeOperator, {"handler": "module:handle"}, False),
        (ChasquiLeaseMessagesOperator, {}, False),
        (RsmqToChasquiOperator, {"rsmq_queue_name": "r"}, True),
        (ChasquiToRsmqOperator, {"rsmq_queue_name": "r"}, False),
        (ChasquiSparkReplayOperator, {"where": "true"}, True),
    ],
)
def test_every_operator_reports_its_queue_to_openlineage(
    native_server: Server,
    monkeypatch: pytest.MonkeyPatch,
    operator_class: Any,
    arguments: dict[str, Any],
    writes: bool,
) -> None:
    connect(monkeypatch, native_server)
    operator = operator_class(task_id="task", queue_name="emails", **arguments)
    lineage = operator.get_openlineage_facets_on_complete(None)
    assert [dataset.name for dataset in lineage.outputs] == (["emails"] if writes else [])
    assert [dataset.name for dataset in lineage.inputs] == ([] if writes else ["emails"])


def test_every_operator_of_the_provider_has_lineage() -> None:
    modules = [
        import_module(name)
        for entry in get_provider_info()["operators"]
        for name in entry["python-modules"]
    ]
    operators = {
        value
        for module in modules
        for name, value in vars(module).items()
        if name.endswith("Operator") and getattr(value, "__module__", "") == module.__name__
    }
    assert len(operators) > 12
    assert [cls.__name__ for cls in operators if not issubclass(cls, QueueLineage)] == []


def test_lineage_names_the_queue_of_a_handle_or_nothing(
    native_server: Server, monkeypatch: pytest.MonkeyPatch, queue_name: str
) -> None:
    connect(monkeypatch, native_server)
    handle = {"queue_name": queue_name, "batch_id": "b", "total": 1}
    operator = ChasquiCancelOperator(task_id="cancel", batch=handle)
    assert operator.get_openlineage_facets_on_complete(None).outputs == []
    ti = SimpleNamespace(xcom_push=lambda key, value: None)
    operator.execute({"ti": ti})  # type: ignore[typeddict-item]
    (dataset,) = operator.get_openlineage_facets_on_complete(None).outputs
    assert dataset.name == queue_name


def task_instance(**changes: Any) -> Any:
    names = {"dag_id": "dag", "run_id": "scheduled__2026-01-01T00:00:00+00:00", "task_id": "t"}
    numbers = {"map_index": -1, "try_number": 1, "max_tries": 2}
    return SimpleNamespace(**(names | numbers | {"task": SimpleNamespace(retries=2)} | changes))


def test_a_derived_id_is_valid_readable_and_stable() -> None:
    batch_id = derive_id(task_instance())
    assert check_batch_id(batch_id) == batch_id
    assert batch_id.startswith("dag~t~scheduled__2026-01-01T00-00-00+00-00~")
    second_try = task_instance(try_number=2)
    assert derive_id(second_try) == batch_id
    assert derive_id(second_try, per_try=True) != derive_id(task_instance(), per_try=True)
    long = {"dag_id": "d" * 250, "task_id": "group.ä" * 30}
    changes: list[dict[str, Any]] = [
        {},
        {"map_index": 0},
        {"map_index": 1},
        {"dag_id": "dag2"},
        {"task_id": "t2"},
        {"run_id": "r"},
        long,
        long | {"run_id": "x"},
    ]
    ids = {derive_id(task_instance(**change)) for change in changes}
    assert len(ids) == len(changes)
    assert all(check_batch_id(batch_id) for batch_id in ids)


def test_the_id_changes_with_each_clear_and_not_with_retries() -> None:
    """Airflow sets max_tries to the number of the last try plus the retries when it clears."""
    name = derive_id(task_instance())
    assert batch_ids(task_instance(try_number=3)) == BatchIds(name)
    cleared = [task_instance(try_number=number, max_tries=4) for number in (3, 4, 5)]
    assert {batch_ids(ti) for ti in cleared} == {BatchIds(f"{name}~c2", (f"{name}~c1", name))}
    again = batch_ids(task_instance(try_number=4, max_tries=5))
    assert again == BatchIds(f"{name}~c3", (f"{name}~c2", f"{name}~c1", name))
    resubmitted = batch_ids(task_instance(try_number=3, max_tries=4), per_try=True)
    assert resubmitted == BatchIds(f"{name}~t3", (f"{name}~t2", f"{name}~t1"))
    # The number of retries was changed after the task instance was created.
    assert batch_ids(task_instance(try_number=2, max_tries=1)) == BatchIds(name)
    assert batch_ids(task_instance(try_number=2, max_tries=9)) == BatchIds(name)


def test_an_explicit_id_may_contain_a_run_id() -> None:
    run_id = "manual__2026-03-01T00:00:00+00:00"
    ids = batch_ids(task_instance(), batch_id=f"import-{run_id}")
    assert ids == BatchIds("import-manual__2026-03-01T00-00-00+00-00")
    cleared = task_instance(try_number=2, max_tries=3)
    assert batch_ids(cleared, batch_id="import") == BatchIds("import~c1", ("import",))
    for invalid in ("", "x" * 181, 7):
        with pytest.raises(InvalidArgument, match="batch_id must be text"):
            batch_ids(task_instance(), batch_id=invalid)


def test_deployments_have_different_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {derive_id(task_instance())}
    for deployment in ("staging", "production of the whole company"):
        monkeypatch.setenv("AIRFLOW__CHASQUI__DEPLOYMENT", deployment)
        names.add(derive_id(task_instance(dag_id="d" * 250, task_id="t" * 250, map_index=2**31)))
    assert len(names) == 3
    assert any(name.startswith("staging~d") for name in names)
    assert all(check_batch_id(f"{name}~c999~g99") for name in names)


@pytest.mark.parametrize(
    ("value", "duration"),
    [
        (None, None),
        ("None", None),
        ("", None),
        (timedelta(hours=1), timedelta(hours=1)),
        (1.5, timedelta(seconds=1.5)),
        ("90", timedelta(seconds=90)),
        ("1h30m", timedelta(minutes=90)),
        ("500ms", timedelta(milliseconds=500)),
    ],
)
def test_a_duration_is_a_timedelta_seconds_or_text(value: Any, duration: timedelta | None) -> None:
    assert _parsing.parse_duration(value, "delay") == duration


@pytest.mark.parametrize("value", ["soon", -5, "1 hour", True, [1]])
def test_another_value_is_no_duration(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="delay must be a timedelta"):
        _parsing.parse_duration(value, "delay")


def test_arguments_are_parsed_from_rendered_templates() -> None:
    new_year = datetime(2026, 1, 1, tzinfo=UTC)
    assert _parsing.parse_datetime("2026-01-01T00:00:00+00:00", "run_at") == new_year
    assert parse_retry_policy(5) == RetryPolicy(5)


@pytest.mark.parametrize("as_text", [False, True])
def test_a_retry_policy_is_a_nested_mapping_or_its_json(as_text: bool) -> None:
    value: Any = {
        "max_attempts": 3,
        "backoff": {"kind": "exponential", "delay": 0.5, "max_delay": "1m", "jitter": "1s"},
    }
    policy = parse_retry_policy(json.dumps(value) if as_text else value)
    assert policy == RetryPolicy(3, Backoff("exponential", 500, 60_000, None, 1000))


@pytest.mark.parametrize(
    "value",
    [
        {"attempts": 3},
        {"delay": 1},
        "often",
        {"backoff": "exponential"},
        {"max_attempts": 3, "backoff": "exponential", "delay": 0.5},
        {"backoff": {"kind": "wild", "delay": 1}},
    ],
)
def test_another_value_is_no_retry_policy(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="job_retry"):
        parse_retry_policy(value, "job_retry")


@pytest.mark.parametrize(
    ("error", "action", "delay"),
    [
        (InvalidArgument("x"), "fail", None),
        (AuthenticationFailed("x"), "fail", None),
        (ConnectionFailed("x"), "retry", timedelta(seconds=30)),
        (QueueFull("x"), "retry", timedelta(minutes=5)),
        (RuntimeError("x"), "default", None),
    ],
)
def test_the_retry_policy_depends_on_the_error(
    error: Exception, action: str, delay: timedelta | None
) -> None:
    decision = chasqui_retry_policy().evaluate(error, try_number=1, max_tries=3, context=None)
    assert (decision.action.value, decision.retry_delay) == (action, delay)


def test_the_delays_of_the_retry_policy_are_durations() -> None:
    policy = chasqui_retry_policy(queue_full_delay="10m", unavailable_delay=5)
    for error, delay in ((QueueFull("x"), 600), (ConnectionFailed("x"), 5)):
        decision = policy.evaluate(error, try_number=1, max_tries=3, context=None)
        assert decision.retry_delay == timedelta(seconds=delay)
