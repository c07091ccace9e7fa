"""A worker's numbers for Prometheus.

Names are ChasquiMQ's where it has them (`chasquimq_…`), ours for the rest (`chasqui_…`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from airflow_provider_chasqui.engine.metrics import Metrics, merge_by_queue

_COUNTERS = {
    "promoted": ("chasquimq_promoter_promoted", "Jobs moved to the stream when due"),
    "lock_acquired": ("chasquimq_promoter_lock_acquired", "Times the lead was taken or kept"),
    "lock_lost": ("chasquimq_promoter_lock_lost", "Times somebody else had the lead"),
    "reclaimed": ("chasquimq_consumer_reclaimed", "Entries taken over from other consumers"),
    "settled": ("chasqui_entries_acked", "Entries settled"),
    "already_acked": ("chasqui_entries_already_acked", "Entries that somebody else had settled"),
    "batch_bits": ("chasqui_batch_jobs_completed", "Jobs of batches settled"),
    "renewed": ("chasqui_claims_renewed", "Renewals of running entries"),
    "lost": ("chasqui_claims_lost", "Running entries that were taken over"),
    "fired": ("chasqui_scheduler_fired", "Jobs fired by repeats"),
    "released": ("chasqui_entries_requeued", "Entries handed back unrun"),
    "events_dropped": ("chasqui_events_dropped", "Events given up because the server was away"),
    "swept": ("chasqui_idle_consumers_removed", "Dead consumers removed"),
}
_GAUGES = {
    "delayed": ("chasquimq_delayed_zset_depth", "Jobs not yet due, as the promoter saw"),
    "late_ms": ("chasquimq_promoter_oldest_pending_lag_ms", "How late the oldest due job is"),
    "running": ("chasqui_running", "Jobs that this worker runs now"),
    "waiting": ("chasqui_queue_waiting", "Entries of the queue that nobody has taken"),
    "pending": ("chasqui_queue_running", "Entries that some worker has taken and not settled"),
    "later": ("chasqui_queue_delayed", "Jobs not yet due"),
    "dead": ("chasqui_queue_dead", "Letters"),
    "lag": ("chasqui_queue_lag", "Entries that the group has not read"),
    "oldest_s": ("chasqui_queue_oldest_entry_age_seconds", "Age of the oldest entry"),
    "consumers": ("chasqui_queue_consumers", "Members of the consumer group"),
}

MetricsSource = Metrics | Callable[[], Iterable[Metrics]]


class PrometheusCollector:
    """A prometheus_client collector over consumers' metrics, added up by queue.

    A source is a consumer's Metrics, or a function that returns some when it is asked.
    """

    def __init__(self, *sources: MetricsSource):
        self._sources = sources

    def metrics(self) -> list[Metrics]:
        found: list[Metrics] = []
        for source in self._sources:
            found += [source] if isinstance(source, Metrics) else source()
        return merge_by_queue((one.snapshot(), True) for one in found)

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily

        every = self.metrics()
        yield from _families_by_job_name(every)
        sizes = HistogramMetricFamily(
            "chasquimq_consumer_batch_size", "Entries in a read", labels=["queue"]
        )
        for one in every:
            sizes.add_metric([one.queue_name], one.read_sizes.buckets(), one.read_sizes.total)
        yield sizes
        yield from _counter_families(every)
        gauges = [(one.queue_name, one.gauges.recent()) for one in every]
        for key, (name, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=["queue"])
            for queue, fresh in gauges:
                if key in fresh:
                    gauge.add_metric([queue], fresh[key])
            yield gauge
        age = GaugeMetricFamily(
            "chasqui_last_read_age_seconds", "Since the server answered a read", labels=["queue"]
        )
        for one in every:
            if "read_at" in one.gauges:
                age.add_metric([one.queue_name], max(0.0, time.monotonic() - one.gauges["read_at"]))
        yield age


def _counter_families(metrics: Iterable[Metrics]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily

    for key, (name, text) in _COUNTERS.items():
        total = CounterMetricFamily(name, text, labels=["queue"])
        for one in metrics:
            total.add_metric([one.queue_name], one.counts[key])
        yield total


def _families_by_job_name(metrics: Iterable[Metrics]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    completed = CounterMetricFamily(
        "chasquimq_jobs_completed", "Jobs that ended well", labels=["queue", "name"]
    )
    failed = CounterMetricFamily(
        "chasquimq_jobs_failed", "Runs that failed", labels=["queue", "kind", "name"]
    )
    retried = CounterMetricFamily(
        "chasquimq_retries_scheduled", "Runs that will be tried again", labels=["queue", "name"]
    )
    dead = CounterMetricFamily(
        "chasquimq_dlq_routed", "Jobs that died", labels=["queue", "reason", "name"]
    )
    spans = HistogramMetricFamily(
        "chasquimq_handler_duration_seconds", "How long handlers ran", labels=["queue", "name"]
    )
    waits = HistogramMetricFamily(
        "chasquimq_retry_backoff_seconds", "How long retries wait", labels=["queue", "name"]
    )
    for one in metrics:
        for name, count in one.completed.items():
            completed.add_metric([one.queue_name, _safe_label(name)], count)
        for name, count in one.failed.items():
            failed.add_metric([one.queue_name, "error", _safe_label(name)], count)
        for name, count in one.retried.items():
            retried.add_metric([one.queue_name, _safe_label(name)], count)
        for (reason, name), count in one.dead_lettered.items():
            dead.add_metric([one.queue_name, _safe_label(reason), _safe_label(name)], count)
        for name, seen in one.duration.items():
            spans.add_metric([one.queue_name, _safe_label(name)], seen.buckets(), seen.total)
        for name, seen in one.backoff.items():
            waits.add_metric([one.queue_name, _safe_label(name)], seen.buckets(), seen.total)
    yield from (completed, failed, retried, dead, spans, waits)


def _safe_label(text: str) -> str:
    """A name from the wire may hold half a character, which Prometheus' format cannot."""
    return text.encode("utf-8", "replace").decode()
