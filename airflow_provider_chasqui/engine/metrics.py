"""What a worker counts. Plain numbers here; `exporter` gives them to Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import Any

_BUCKETS = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0)


class Histogram:
    """Counts of seconds by bucket, cheap enough to feed for every job."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS) + 1)
        self.total = 0.0

    def see(self, seconds: float) -> None:
        self.counts[bisect_left(_BUCKETS, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        running, pairs = 0, []
        for edge, count in zip([*map(str, _BUCKETS), "+Inf"], self.counts, strict=True):
            running += count
            pairs.append((edge, float(running)))
        return pairs


class Metrics:
    """Counters of one consumer; names as ChasquiMQ's where it has them."""

    def __init__(self, queue: str):
        self.queue = queue
        self.completed: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.retried: Counter[str] = Counter()
        self.buried: Counter[tuple[str, str]] = Counter()
        self.duration: dict[str, Histogram] = {}
        self.counts: Counter[str] = Counter()
        self.gauges: dict[str, float] = {}

    def ran(self, name: str, seconds: float, ok: bool) -> None:
        (self.completed if ok else self.failed)[name] += 1
        if name not in self.duration:
            self.duration[name] = Histogram()
        self.duration[name].see(seconds)


_COUNTS = {
    "promoted": ("chasquimq_promoter_promoted", "Jobs moved to the stream when due"),
    "lock_acquired": ("chasquimq_promoter_lock_acquired", "Times the lead was taken or kept"),
    "lock_lost": ("chasquimq_promoter_lock_lost", "Times somebody else had the lead"),
    "reclaimed": ("chasquimq_consumer_reclaimed", "Entries taken over from other consumers"),
    "reads": ("chasqui_reads", "Batches read"),
    "entries": ("chasqui_entries", "Entries read"),
    "settled": ("chasqui_settled", "Entries settled"),
    "settled_elsewhere": ("chasqui_settled_elsewhere", "Entries that somebody else had settled"),
    "batch_bits": ("chasqui_batch_bits", "Jobs of batches settled"),
    "renewed": ("chasqui_keeper_renewed", "Renewals of running entries"),
    "lost": ("chasqui_keeper_lost", "Running entries that were taken over"),
    "fired": ("chasqui_scheduler_fired", "Jobs fired by repeats"),
    "released": ("chasqui_released", "Entries handed back unrun"),
    "events_dropped": ("chasqui_events_dropped", "Events given up because the server was away"),
    "swept": ("chasqui_consumers_swept", "Dead consumers removed"),
}
_GAUGES = {
    "delayed": ("chasquimq_delayed_zset_depth", "Jobs not yet due"),
    "late_ms": ("chasquimq_promoter_oldest_pending_lag_ms", "How late the oldest due job is"),
    "batch_size": ("chasquimq_consumer_batch_size", "Entries in the last read"),
    "running": ("chasqui_running", "Jobs running now"),
    "buffered": ("chasqui_buffered", "Entries read and not yet started"),
    "unsettled": ("chasqui_unsettled", "Outcomes on their way to the server"),
}


class Exporter:
    """A prometheus_client collector over one or more consumers' metrics."""

    def __init__(self, *metrics: Metrics):
        self._metrics = metrics

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        def by_name(name: str, text: str, field: str) -> Any:
            family = CounterMetricFamily(name, text, labels=["queue", "name"])
            for one in self._metrics:
                for job_name, count in getattr(one, field).items():
                    family.add_metric([one.queue, job_name], count)
            return family

        yield by_name("chasquimq_jobs_completed", "Jobs that ended well", "completed")
        yield by_name("chasquimq_jobs_failed", "Runs that failed", "failed")
        yield by_name("chasquimq_retries_scheduled", "Runs that will be tried again", "retried")
        dead = CounterMetricFamily(
            "chasquimq_dlq_routed", "Jobs that died", labels=["queue", "reason", "name"]
        )
        spans = HistogramMetricFamily(
            "chasquimq_handler_duration_seconds", "How long handlers ran", labels=["queue", "name"]
        )
        for one in self._metrics:
            for (reason, job_name), count in one.buried.items():
                dead.add_metric([one.queue, reason, job_name], count)
            for job_name, seen in one.duration.items():
                spans.add_metric([one.queue, job_name], seen.buckets(), seen.total)
        yield dead
        yield spans
        for key, (name, text) in _COUNTS.items():
            total = CounterMetricFamily(name, text, labels=["queue"])
            for one in self._metrics:
                total.add_metric([one.queue], one.counts[key])
            yield total
        for key, (name, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=["queue"])
            for one in self._metrics:
                gauge.add_metric([one.queue], one.gauges.get(key, 0.0))
            yield gauge
