"""Export of a worker's metrics to Prometheus.

Metrics that ChasquiMQ has too keep its names (`chasquimq_...`); the others are `chasqui_...`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from airflow_provider_chasqui.engine.metrics import Metrics, merge_by_queue

# Key in `Metrics.counts`: name and help text.
_COUNTERS = {
    "promoted": ("chasquimq_promoter_promoted", "Delayed jobs moved to the stream when due"),
    "lock_acquired": (
        "chasquimq_promoter_lock_acquired",
        "Times a leader lock was acquired or renewed",
    ),
    "lock_lost": ("chasquimq_promoter_lock_lost", "Times another process held the leader lock"),
    "reclaimed": ("chasquimq_consumer_reclaimed", "Stalled entries claimed from any consumer"),
    "no_handler": (
        "chasqui_jobs_without_handler",
        "Jobs put back or dead-lettered because their name has no handler",
    ),
    "acked": ("chasqui_entries_acked", "Entries acknowledged"),
    "already_acked": (
        "chasqui_entries_already_acked",
        "Entries that another worker had acknowledged or claimed",
    ),
    "batch_jobs_completed": ("chasqui_batch_jobs_completed", "Batch jobs completed"),
    "claims_renewed": ("chasqui_claims_renewed", "Claims of entries renewed by the heartbeat"),
    "claims_lost": ("chasqui_claims_lost", "Running jobs whose claim was lost"),
    "fired": ("chasqui_scheduler_fired", "Jobs enqueued by repeats"),
    "requeued": ("chasqui_entries_requeued", "Entries put back into the queue"),
    "parked": ("chasqui_jobs_parked", "Jobs moved aside because their name is paused"),
    "events_dropped": (
        "chasqui_events_dropped",
        "Events dropped because the server was unreachable",
    ),
    "idle_consumers_removed": (
        "chasqui_idle_consumers_removed",
        "Idle consumers removed from the group",
    ),
}
# Key in `Metrics.gauges`: name and help text.
_GAUGES = {
    "delayed": ("chasquimq_delayed_zset_depth", "Delayed jobs, as the promoter last saw"),
    "lag_ms": ("chasquimq_promoter_oldest_pending_lag_ms", "Lag of the oldest due job in ms"),
    "running": ("chasqui_running", "Jobs that this worker is running"),
    "waiting": ("chasqui_queue_waiting", "Entries of the queue that no worker has read"),
    "queue_running": ("chasqui_queue_running", "Entries that a worker has read and not acked"),
    "queue_delayed": ("chasqui_queue_delayed", "Delayed jobs of the queue"),
    "dead": ("chasqui_queue_dead", "Dead letters of the queue"),
    "lag": ("chasqui_queue_lag", "Entries that the consumer group has not read"),
    "oldest_entry_age_s": (
        "chasqui_queue_oldest_entry_age_seconds",
        "Age of the oldest entry of the queue",
    ),
    "consumers": ("chasqui_queue_consumers", "Consumers in the consumer group"),
    "paused": ("chasqui_queue_paused", "1 if the queue is paused, 0 if not"),
}

MetricsSource = Metrics | Callable[[], Iterable[Metrics]]


class PrometheusCollector:
    """Collector for prometheus_client that merges the metrics of consumers by queue.

    :param sources: `Metrics` objects, or functions that return some at each scrape.
    """

    def __init__(self, *sources: MetricsSource):
        self._sources = sources

    def metrics(self) -> list[Metrics]:
        """Return the current metrics, one object per queue."""
        collected: list[Metrics] = []
        for source in self._sources:
            collected += [source] if isinstance(source, Metrics) else source()
        return merge_by_queue((metrics.snapshot(), True) for metrics in collected)

    def collect(self) -> Iterator[Any]:
        """Yield the Prometheus metric families; called by prometheus_client."""
        from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily

        queues = self.metrics()
        yield from _families_by_job_name(queues)
        sizes = HistogramMetricFamily(
            "chasquimq_consumer_batch_size", "Entries per read", labels=["queue"]
        )
        for queue in queues:
            sizes.add_metric([queue.queue_name], queue.read_sizes.buckets(), queue.read_sizes.total)
        yield sizes
        yield from _counter_families(queues)
        gauges = [(queue.queue_name, queue.gauges.recent()) for queue in queues]
        for key, (name, help_text) in _GAUGES.items():
            gauge = GaugeMetricFamily(name, help_text, labels=["queue"])
            for queue_name, values in gauges:
                if key in values:
                    gauge.add_metric([queue_name], values[key])
            yield gauge
        age = GaugeMetricFamily(
            "chasqui_last_read_age_seconds",
            "Seconds since the last successful read, maximum over processes",
            labels=["queue"],
        )
        for queue in queues:
            if "read_at" in queue.gauges:
                age_s = max(0.0, time.monotonic() - queue.gauges["read_at"])
                age.add_metric([queue.queue_name], age_s)
        yield age


def _counter_families(queues: Iterable[Metrics]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily

    for key, (name, help_text) in _COUNTERS.items():
        counter = CounterMetricFamily(name, help_text, labels=["queue"])
        for queue in queues:
            counter.add_metric([queue.queue_name], queue.counts[key])
        yield counter


def _families_by_job_name(queues: Iterable[Metrics]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    completed = CounterMetricFamily(
        "chasquimq_jobs_completed", "Jobs completed", labels=["queue", "name"]
    )
    failed = CounterMetricFamily(
        "chasquimq_jobs_failed", "Attempts that failed", labels=["queue", "kind", "name"]
    )
    retried = CounterMetricFamily(
        "chasquimq_retries_scheduled", "Retries scheduled", labels=["queue", "name"]
    )
    dead = CounterMetricFamily(
        "chasquimq_dlq_routed",
        "Jobs moved to the dead-letter queue",
        labels=["queue", "reason", "name"],
    )
    errors = CounterMetricFamily(
        "chasqui_job_errors", "Failed attempts by error", labels=["queue", "name", "error"]
    )
    durations = HistogramMetricFamily(
        "chasquimq_handler_duration_seconds", "Run time of handlers", labels=["queue", "name"]
    )
    backoffs = HistogramMetricFamily(
        "chasquimq_retry_backoff_seconds", "Delay before retries", labels=["queue", "name"]
    )
    for queue in queues:
        queue_name = queue.queue_name
        for name, count in queue.completed.items():
            completed.add_metric([queue_name, _safe_label(name)], count)
        for name, count in queue.failed.items():
            failed.add_metric([queue_name, "error", _safe_label(name)], count)
        for name, count in queue.retried.items():
            retried.add_metric([queue_name, _safe_label(name)], count)
        for (reason, name), count in queue.dead_lettered.items():
            dead.add_metric([queue_name, _safe_label(reason), _safe_label(name)], count)
        for (name, error), count in queue.errors.items():
            errors.add_metric([queue_name, _safe_label(name), _safe_label(error)], count)
        for name, histogram in queue.duration.items():
            labels = [queue_name, _safe_label(name)]
            durations.add_metric(labels, histogram.buckets(), histogram.total)
        for name, histogram in queue.backoff.items():
            labels = [queue_name, _safe_label(name)]
            backoffs.add_metric(labels, histogram.buckets(), histogram.total)
    yield from (completed, failed, retried, dead, errors, durations, backoffs)


def _safe_label(text: str) -> str:
    """Replace unpaired surrogates, which a job name may contain and UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()
