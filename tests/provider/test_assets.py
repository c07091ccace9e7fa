"""Asset URIs, lineage, derived ids, argument parsers and the retry policy."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset

from airflow_provider_chasqui.assets.chasqui import (
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
from airflow_provider_chasqui.operators import _parsing
from airflow_provider_chasqui.operators._task_identity import derive_id
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


def task_instance(**changes: Any) -> Any:
    names = {"dag_id": "dag", "run_id": "scheduled__2026-01-01T00:00:00+00:00", "task_id": "t"}
    return SimpleNamespace(**(names | {"map_index": -1, "try_number": 1} | changes))


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


@pytest.mark.parametrize(
    ("value", "duration"),
    [
        (None, None),
        (timedelta(hours=1), timedelta(hours=1)),
        (1.5, timedelta(seconds=1.5)),
        ("90", timedelta(seconds=90)),
        ("1h30m", timedelta(minutes=90)),
        ("500ms", timedelta(milliseconds=500)),
    ],
)
def test_a_duration_is_a_timedelta_seconds_or_text(value: Any, duration: timedelta | None) -> None:
    assert _parsing.parse_duration(value, "delay") == duration


@pytest.mark.parametrize("value", ["soon", -5, "", "1 hour", True, [1]])
def test_another_value_is_no_duration(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="delay must be a timedelta"):
        _parsing.parse_duration(value, "delay")


def test_arguments_are_parsed_from_rendered_templates() -> None:
    new_year = datetime(2026, 1, 1, tzinfo=UTC)
    assert _parsing.parse_datetime("2026-01-01T00:00:00+00:00", "run_at") == new_year
    assert parse_retry_policy(5) == RetryPolicy(5)
    assert _parsing.parse_payloads(iter([1, 2]), "batch") == [1, 2]
    with pytest.raises(InvalidArgument):
        _parsing.parse_payloads({"a": 1}, "batch")


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
