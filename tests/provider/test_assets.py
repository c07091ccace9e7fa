"""Asset URIs, lineage, ids, options and the retry policy."""

from __future__ import annotations

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
from airflow_provider_chasqui.core.retry import RetryPolicy
from airflow_provider_chasqui.operators import _parsing
from airflow_provider_chasqui.operators._task_identity import derive_id
from airflow_provider_chasqui.retry_policies import chasqui_retry_policy
from tests.conftest import Server
from tests.provider.conftest import connect


def test_a_queue_is_an_asset_with_one_uri() -> None:
    asset = create_asset(queue_name="e mails/1", host="redis")
    assert asset.uri == "chasqui://redis:6379/e%20mails%2F1"
    assert Asset("chasqui://redis/emails").uri == "chasqui://redis:6379/emails"
    dataset = convert_asset_to_openlineage(asset, None)
    assert (dataset.namespace, dataset.name) == ("chasqui://redis:6379", "e mails/1")


@pytest.mark.parametrize(
    "uri", ["chasqui:///q", "chasqui://redis", "chasqui://redis/a/b", "chasqui://u:p@redis/q"]
)
def test_another_uri_is_no_asset(uri: str) -> None:
    from urllib.parse import urlsplit

    from airflow_provider_chasqui.assets.chasqui import sanitize_uri

    with pytest.raises(ValueError, match="the URI of a queue"):
        sanitize_uri(urlsplit(uri))


def test_lineage_names_the_server_and_the_queue(
    monkeypatch: pytest.MonkeyPatch, native_server: Server
) -> None:
    connect(monkeypatch, native_server)
    where = native_server.url.replace("redis://", "chasqui://").removesuffix("/0")
    written = queue_lineage("chasqui_default", "emails", output=True)
    assert [(each.namespace, each.name) for each in written.outputs] == [(where, "emails")]
    assert queue_lineage("chasqui_default", "emails", output=False).inputs


def instance(**changes: Any) -> Any:
    names = {"dag_id": "dag", "run_id": "scheduled__2026-01-01T00:00:00+00:00", "task_id": "t"}
    return SimpleNamespace(**(names | {"map_index": -1, "try_number": 1} | changes))


def test_an_id_is_fit_readable_and_stable() -> None:
    one = derive_id(instance())
    assert check_batch_id(one) == one
    assert one.startswith("dag~t~scheduled__2026-01-01T00-00-00+00-00~")
    assert derive_id(instance(try_number=2)) == one
    assert derive_id(instance(try_number=2), per_try=True) != derive_id(instance(), per_try=True)
    long = {"dag_id": "d" * 250, "task_id": "gruppe.ä" * 30}
    ids = {
        derive_id(instance(**change))
        for change in (
            {}, {"map_index": 0}, {"map_index": 1}, {"dag_id": "dag2"}, {"task_id": "t2"},
            {"run_id": "r"}, long, long | {"run_id": "x"},
        )
    }  # fmt: skip
    assert len(ids) == 8
    assert all(check_batch_id(each) for each in ids)


def test_options_as_templates_leave_them() -> None:
    assert _parsing.parse_duration("90", "delay") == timedelta(seconds=90)
    assert _parsing.parse_datetime("2026-01-01T00:00:00+00:00", "at") == datetime(
        2026, 1, 1, tzinfo=UTC
    )
    assert _parsing.parse_retry_policy(5) == RetryPolicy(5)
    found = _parsing.parse_retry_policy(
        {"max_attempts": 3, "backoff": "exponential", "delay": 0.5, "jitter": 1}
    )
    assert found is not None
    assert found.backoff is not None
    assert (found.backoff.delay_ms, found.backoff.jitter_ms) == (500, 1000)
    for wrong in ({"attempts": 3}, {"delay": 1}, "often", {"backoff": "wild"}):
        with pytest.raises(InvalidArgument):
            _parsing.parse_retry_policy(wrong)
    with pytest.raises(InvalidArgument):
        _parsing.parse_payloads({"a": 1}, "batch")


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
def test_the_retry_policy(error: Exception, action: str, delay: timedelta | None) -> None:
    decision = chasqui_retry_policy().evaluate(error, try_number=1, max_tries=3, context=None)
    assert (decision.action.value, decision.retry_delay) == (action, delay)
