"""Numbers of several processes, added up; and every metric that a dashboard or an alert names."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from airflow_provider_chasqui.cli.worker import WorkerConfig
from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.engine.http_server import HealthStatus, MetricsServer
from airflow_provider_chasqui.engine.metrics import (
    MAX_LABEL_VALUES,
    OVERFLOW_LABEL,
    Metrics,
    merge_by_queue,
)
from airflow_provider_chasqui.engine.prometheus import PrometheusCollector
from airflow_provider_chasqui.redis_client.target import RedisTarget
from airflow_provider_chasqui.supervisor.supervisor import _ProcessCollector
from airflow_provider_chasqui.supervisor.worker_process import STUCK_AFTER_S, WorkerProcess

DOCS = Path(__file__).parents[2] / "docs"


def samples(*sources: Metrics) -> dict[tuple[str, str], float]:
    """(name, job name or reason) and value of everything that is exported."""
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(*sources))
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = sample.labels
            if "le" not in labels:
                found[sample.name, labels.get("reason") or labels.get("name", "")] = sample.value
    return found


def test_processes_add_up_and_the_dead_stay_counted() -> None:
    one, two = Metrics("q"), Metrics("q")
    for metrics, runs in ((one, 2), (two, 3)):
        for _ in range(runs):
            metrics.record_run("mail", 0.25, ok=True)
        metrics.record_run("mail", 1.0, ok=False)
        metrics.dead_lettered["unrecoverable", "mail"] += runs
        metrics.counts["acked"] += 10
        metrics.record_backoff("mail", 2.0)
        metrics.read_sizes.observe(7)
        metrics.gauges["running"] = runs
    through_json = [(json.loads(json.dumps(each.snapshot())), True) for each in (one, two)]
    (both,) = merge_by_queue(through_json)
    found = samples(both)
    assert found["chasquimq_jobs_completed_total", "mail"] == 5
    assert found["chasquimq_jobs_failed_total", "mail"] == 2
    assert found["chasquimq_dlq_routed_total", "unrecoverable"] == 5
    assert found["chasquimq_handler_duration_seconds_count", "mail"] == 7
    assert found["chasquimq_handler_duration_seconds_sum", "mail"] == pytest.approx(3.25)
    assert found["chasquimq_retry_backoff_seconds_sum", "mail"] == 4
    assert found["chasquimq_consumer_batch_size_sum", ""] == 14
    assert found["chasquimq_consumer_batch_size_count", ""] == 2
    assert found["chasqui_entries_acked_total", ""] == 20
    assert found["chasqui_running", ""] == 5

    (after,) = merge_by_queue([through_json[0], (through_json[1][0], False)])
    found = samples(after)
    assert found["chasquimq_jobs_completed_total", "mail"] == 5
    assert found["chasqui_running", ""] == 2  # a dead process runs nothing


def test_buckets_hold_what_fits_into_them() -> None:
    metrics = Metrics("q")
    for size in (1, 3, 3, 2000):
        metrics.read_sizes.observe(size)
    metrics.record_backoff("mail", 0.2)
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(metrics))
    found = {
        (sample.name, sample.labels["le"]): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if "le" in sample.labels
    }
    sizes = "chasquimq_consumer_batch_size_bucket"
    assert [found[sizes, edge] for edge in ("1.0", "2.0", "5.0", "1000.0", "+Inf")] == [
        1, 1, 3, 3, 4,
    ]  # fmt: skip
    waits = "chasquimq_retry_backoff_seconds_bucket"
    assert (found[waits, "0.1"], found[waits, "0.5"]) == (0, 1)


def test_of_two_leaders_the_last_one_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = Metrics("q"), Metrics("q")
    old.gauges["delayed"] = 500
    new.gauges["delayed"] = 3
    assert samples(old, new)["chasquimq_delayed_zset_depth", ""] == 3
    assert samples(new, old)["chasquimq_delayed_zset_depth", ""] == 3
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    # Nobody leads here any more: another worker knows, and an old number would be a lie.
    assert ("chasquimq_delayed_zset_depth", "") not in samples(old, new)


def test_names_without_end_do_not_fill_the_memory() -> None:
    metrics = Metrics("q")
    for number in range(MAX_LABEL_VALUES + 50):
        metrics.record_run(f"job-{number}", 0.1, ok=True)
        metrics.retried[f"job-{number}"] += 1
        metrics.record_backoff(f"job-{number}", 0.1)
        metrics.dead_lettered["unrecoverable", f"job-{number}"] += 1
    assert len(metrics.completed) <= MAX_LABEL_VALUES + 1
    assert metrics.completed[OVERFLOW_LABEL] == metrics.retried[OVERFLOW_LABEL] == 50
    assert sum(metrics.completed.values()) == MAX_LABEL_VALUES + 50
    assert sum(metrics.dead_lettered.values()) == MAX_LABEL_VALUES + 50
    assert len(metrics.duration) <= MAX_LABEL_VALUES + 1
    assert len(metrics.backoff) <= MAX_LABEL_VALUES + 1


def test_a_name_that_is_half_a_character_breaks_no_scrape() -> None:
    metrics = Metrics("q")
    metrics.record_run("\udcff", 0.1, ok=True)
    assert ("chasquimq_jobs_completed_total", "?") in samples(metrics)


def test_the_endpoint_tells_alive_from_ready() -> None:
    standing = HealthStatus(alive=True, ready=False, details={"last_read_age_s": 99})
    endpoint = MetricsServer(
        PrometheusCollector(Metrics("q")), lambda: standing, host="127.0.0.1", port=0
    )
    endpoint.start()
    try:

        def ask(path: str) -> tuple[int, str]:
            url = f"http://127.0.0.1:{endpoint.port}{path}"
            try:
                with urllib.request.urlopen(url, timeout=10) as reply:
                    return reply.status, reply.read().decode()
            except urllib.error.HTTPError as refused:
                with refused:
                    return refused.code, refused.read().decode()

        assert ask("/healthz")[0] == 200
        assert json.loads(ask("/healthz")[1]) == {"status": "ok", "last_read_age_s": 99}
        assert ask("/readyz")[0] == 503
        assert "chasqui_entries_acked_total" in ask("/metrics")[1]
        assert ask("/")[0] == 404
        with pytest.raises(InvalidArgument, match="cannot serve"):
            MetricsServer(PrometheusCollector(), host="127.0.0.1", port=endpoint.port)
    finally:
        endpoint.close()


def test_a_process_that_is_silent_for_long_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = WorkerConfig("m:h", ".", ("q",), RedisTarget(), None, ConsumerConfig())
    slot = WorkerProcess(1, plan)
    assert not slot.stuck  # nothing runs there
    slot._process = object()  # type: ignore[assignment]
    slot._last_report_at = time.monotonic()
    assert not slot.stuck
    later = time.monotonic() + STUCK_AFTER_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert slot.stuck


def exported() -> set[str]:
    """Every series that a worker has."""
    metrics = Metrics("q")
    metrics.record_run("a", 0.1, ok=True)
    metrics.record_run("a", 0.1, ok=False)
    metrics.retried["a"] += 1
    metrics.dead_lettered["unrecoverable", "a"] += 1
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(metrics))
    registry.register(_ProcessCollector([]))  # type: ignore[arg-type]
    names = set()
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        names.add(family.name)
        names |= {sample.name for sample in family.samples}
    return names


def test_every_metric_of_the_dashboard_the_alerts_and_the_docs_exists() -> None:
    known = exported()
    board = json.loads((DOCS / "grafana" / "chasqui.json").read_text())
    targets = [each["expr"] for panel in board["panels"] for each in panel.get("targets", [])]
    assert len(targets) > 10
    alerts = yaml.safe_load((DOCS / "grafana" / "alerts.yaml").read_text())
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    assert len(rules) >= 5
    assert all({"alert", "expr", "for", "labels", "annotations"} <= rule.keys() for rule in rules)
    page = (DOCS / "metrics.md").read_text()
    for text in (*targets, *(rule["expr"] for rule in rules), page):
        for name in re.findall(r"\bchasqui(?:mq)?_[a-z_]*[a-z]\b", text):
            assert name in known, f"{name} in {text[:80]!r} is no metric of a worker"
    # And the page leaves none out.
    plain = {re.sub(r"_(total|count|sum|bucket|created)$", "", name) for name in known}
    missing = {name for name in plain if name not in page}
    assert not missing
