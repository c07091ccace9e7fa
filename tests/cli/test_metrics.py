"""Metrics are added up over processes, and the documented metrics exist."""

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

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.engine.exporter import (
    GAUGES,
    Memory,
    QueueExporter,
    QueueStatus,
    Snapshot,
)
from airflow_provider_chasqui.engine.http_server import HealthStatus, MetricsServer
from airflow_provider_chasqui.engine.metrics import (
    MAX_LABEL_VALUES,
    OVERFLOW_LABEL,
    Metrics,
    merge_by_queue,
)
from airflow_provider_chasqui.engine.prometheus import PrometheusCollector
from airflow_provider_chasqui.redis_client.target import RedisTarget
from airflow_provider_chasqui.supervisor.config import WorkerConfig
from airflow_provider_chasqui.supervisor.supervisor import _ProcessCollector
from airflow_provider_chasqui.supervisor.worker_process import STUCK_AFTER_S, WorkerProcess

DOCS = Path(__file__).parents[2] / "docs"


def samples(*sources: Metrics) -> dict[tuple[str, str], float]:
    """Return the exported values by metric name and label (job name or reason)."""
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(*sources))
    values = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = sample.labels
            if "le" not in labels:
                values[sample.name, labels.get("reason") or labels.get("name", "")] = sample.value
    return values


def test_metrics_of_running_and_exited_processes_add_up() -> None:
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
    through_json = [(json.loads(json.dumps(metrics.snapshot())), True) for metrics in (one, two)]
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
    assert found["chasqui_running", ""] == 2  # an exited process has no running jobs


def test_histogram_buckets_are_cumulative() -> None:
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


def test_the_newest_leader_gauge_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = Metrics("q"), Metrics("q")
    old.gauges["delayed"] = 500
    new.gauges["delayed"] = 3
    assert samples(old, new)["chasquimq_delayed_zset_depth", ""] == 3
    assert samples(new, old)["chasquimq_delayed_zset_depth", ""] == 3
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    # Gauges of a former leader are stale and not exported.
    assert ("chasquimq_delayed_zset_depth", "") not in samples(old, new)


def test_the_number_of_label_values_is_bounded() -> None:
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


def test_an_unpaired_surrogate_does_not_break_a_scrape() -> None:
    metrics = Metrics("q")
    metrics.record_run("\udcff", 0.1, ok=True)
    assert ("chasquimq_jobs_completed_total", "?") in samples(metrics)


def test_health_and_readiness_are_separate() -> None:
    status = HealthStatus(alive=True, ready=False, details={"last_read_age_s": 99})
    server = MetricsServer(
        PrometheusCollector(Metrics("q")), lambda: status, host="127.0.0.1", port=0
    )
    server.start()
    try:

        def get(path: str) -> tuple[int, str]:
            url = f"http://127.0.0.1:{server.port}{path}"
            try:
                with urllib.request.urlopen(url, timeout=10) as reply:
                    return reply.status, reply.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()

        assert get("/healthz")[0] == 200
        assert json.loads(get("/healthz")[1]) == {"status": "ok", "last_read_age_s": 99}
        assert get("/readyz")[0] == 503
        assert "chasqui_entries_acked_total" in get("/metrics")[1]
        assert get("/")[0] == 404
        with pytest.raises(InvalidArgument, match="cannot serve"):
            MetricsServer(PrometheusCollector(), host="127.0.0.1", port=server.port)
    finally:
        server.close()


def test_a_process_without_reports_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    config = WorkerConfig("m:h", ".", ("q",), RedisTarget(), None, ConsumerConfig())
    process = WorkerProcess(1, config)
    assert not process.stuck  # no process is running
    process._process = object()  # type: ignore[assignment]
    process._last_report_at = time.monotonic()
    assert not process.stuck
    later = time.monotonic() + STUCK_AFTER_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert process.stuck


def exported() -> set[str]:
    """Return the names of all exported series."""
    metrics = Metrics("q")
    metrics.record_run("a", 0.1, ok=True)
    metrics.record_run("a", 0.1, ok=False)
    metrics.retried["a"] += 1
    metrics.dead_lettered["unrecoverable", "a"] += 1
    metrics.errors["a", "ValueError"] += 1
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(metrics))
    registry.register(_ProcessCollector([]))  # type: ignore[arg-type]
    exporter = QueueExporter(RedisTarget(), ["q"])
    status = QueueStatus(dict.fromkeys(GAUGES, 0.0), 0)
    exporter._snapshot = Snapshot({"q": status}, Memory(0, 0), 0, time.monotonic())
    registry.register(exporter)
    names = set()
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        names.add(family.name)
        names |= {sample.name for sample in family.samples}
    return names


def test_every_metric_of_the_dashboard_the_alerts_and_the_docs_exists() -> None:
    known = exported()
    dashboard = json.loads((DOCS / "grafana" / "chasqui.json").read_text())
    targets = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])
    ]
    assert len(targets) > 10
    alerts = yaml.safe_load((DOCS / "grafana" / "alerts.yaml").read_text())
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    assert len(rules) >= 5
    recorded = {rule["record"].split(":")[1] for rule in rules if "record" in rule}
    page = (DOCS / "metrics.md").read_text()
    for text in (*targets, *(rule["expr"] for rule in rules), page):
        for name in re.findall(r"\bchasqui(?:mq)?_[a-z_]*[a-z]\b", text):
            assert name in known | recorded, f"{name} in {text[:80]!r} is not a metric"
    # The page documents every metric.
    base_names = {re.sub(r"_(total|count|sum|bucket|created)$", "", name) for name in known}
    missing = {name for name in base_names if name not in page}
    assert not missing
