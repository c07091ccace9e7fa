"""Metrics of queues without a worker: what the server knows, for Prometheus and for KEDA."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.command import as_int, as_raw, redis_command
from airflow_provider_chasqui.core.commands import batches, consumer_group, inspect
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import ChasquiError, InvalidArgument
from airflow_provider_chasqui.engine.http_server import HealthStatus
from airflow_provider_chasqui.engine.queue_discovery import QueueDiscovery
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.target import RedisTarget

log = logging.getLogger("chasqui")

MAX_QUEUES = 100
_WORK_PATH = "/work/"
_MAX_READ_SECONDS = 20.0
_MAX_BATCHES, _BATCHES_PER_READ = 200, 50

GAUGES = {
    "waiting": "Entries of the queue that no worker has read",
    "running": "Entries that a worker has read and not acked",
    "delayed": "Delayed jobs of the queue",
    "delayed_due": "Delayed jobs that are due now and not yet promoted",
    "delayed_late_seconds": "Seconds since the oldest delayed job became due; 0 if none is due",
    "dead": "Dead letters of the queue",
    "lag": "Entries that the consumer group has not read",
    "oldest_entry_age_seconds": "Age of the oldest entry of the queue; 0 if there is none",
    "oldest_waiting_age_seconds": "Age of the oldest entry that no worker has read; 0 if none",
    "consumers": "Consumers in the consumer group",
    "workers_seen": "Consumers that called the server recently (--worker-timeout)",
    "repeats": "Repeatable jobs of the queue",
    "repeats_due": "Repeatable jobs that are due now and did not fire yet",
    "leader": "1 if a worker holds the promoter lock of the queue, 0 if none does",
    "paused": "1 if the queue is paused, 0 if not",
    "batches": "Batches that have not ended (--batches)",
    "batch_stalled_seconds": "Longest time that a batch has made no progress (--batches)",
}


class Memory(NamedTuple):
    """Memory of the server; a maximum of 0 means no limit."""

    used_bytes: int
    max_bytes: int


@dataclass(frozen=True)
class QueueStatus:
    """The state of one queue.

    :param values: the value of each metric.
    :param work: the jobs that need a worker now or soon; KEDA scales by this number.
    """

    values: Mapping[str, float]
    work: int


@dataclass(frozen=True)
class Snapshot:
    """The state of all queues at one time."""

    queues: Mapping[str, QueueStatus]
    memory: Memory | None
    skipped_queues: int
    read_at: float


class QueueExporter:
    """Reads the state of queues in a thread, so that a scrape never waits for the server.

    :param target: the Redis server.
    :param queue_names: the queues. Without names, the queues on the server are discovered.
    :param group: the consumer group of the workers.
    :param dialect: the dialect of the server. Default `portable`, which every server has.
    :param interval: the time between two reads, in seconds.
    :param ahead: delayed and repeatable jobs that are due within these seconds count as work for
        KEDA, so that a worker has started when they are due.
    :param worker_timeout: a worker that has not called the server for this many seconds is gone.
        An idle worker calls it every few seconds.
    :param max_queues: the maximum number of discovered queues.
    :param batches: whether to read the batches of the queues; at most 200 unfinished ones per queue
        are counted. They are found with SCAN, which reads all keys of the server in small steps.
    :raises InvalidArgument: if an argument is not valid.
    """

    def __init__(
        self,
        target: RedisTarget,
        queue_names: Sequence[str] = (),
        *,
        group: str = "default",
        dialect: str | None = None,
        interval: float = 5.0,
        ahead: float = 0.0,
        worker_timeout: float = 60.0,
        max_queues: int = MAX_QUEUES,
        batches: bool = False,
    ):
        if interval <= 0 or ahead < 0 or max_queues < 1:
            raise InvalidArgument(
                "interval must be above 0, ahead at least 0, and max_queues at least 1"
            )
        self._target = target
        self._names = tuple(dict.fromkeys(queue_names))
        self._config = QueueConfig(group=group)
        # The exporter only reads, and reads are the same in both dialects. The detection of the
        # dialect would need permission for commands that write.
        self._dialect = dialect or "portable"
        self._batches = batches
        self._batch_progress: dict[str, dict[str, tuple[int, float]]] = {}
        self._read_count = 0
        self._interval = interval
        self._ahead_ms = int(ahead * 1000)
        self._worker_timeout_ms = worker_timeout * 1000
        self._max_queues = max_queues
        self._snapshot: Snapshot | None = None
        self._failing = False
        self._discovery = QueueDiscovery()
        self._queues: dict[str, Queue] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._read_until_stopped, daemon=True, name="chasqui-exporter"
        )

    def start(self) -> None:
        """Start the thread that reads."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread that reads, and close the connections."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        for queue in self._queues.values():
            queue.close()

    def read(self) -> None:
        """Read the state of all queues now.

        :raises ChasquiError: if the server is unreachable or refuses a command.
        """
        # Discovery and INFO concern no single queue, so any queue name will do for them.
        server = self._queue(self._names[0] if self._names else "chasqui")
        names, skipped = self._names, 0
        if not names:
            found = sorted(server.client.run_flow(self._discovery.queue_names())[0])
            names, skipped = tuple(found[: self._max_queues]), len(found[self._max_queues :])
        statuses = {name: self._read_queue(self._queue(name)) for name in names}
        self._read_count += 1
        self._snapshot = Snapshot(statuses, _read_memory(server), skipped, time.monotonic())

    def _queue(self, name: str) -> Queue:
        if name not in self._queues:
            self._queues[name] = Queue(
                name, self._target, config=self._config, dialect=self._dialect
            )
        return self._queues[name]

    def _read_queue(self, queue: Queue) -> QueueStatus:
        depth = queue.depth()
        now_ms = current_time_ms()
        keys, soon_ms = queue.keys, now_ms + self._ahead_ms
        count = [
            redis_command("ZCOUNT", key, "-inf", end, parse=as_int)
            for key in (keys.delayed, keys.repeat)
            for end in (now_ms, soon_ms)
        ]
        due, soon, repeats_due, repeats_soon, locked, consumers = queue.client.pipeline(
            [
                *count,
                redis_command("EXISTS", keys.promoter_lock, parse=as_int),
                consumer_group.consumers(keys, self._config.group),
            ]
        )
        waiting_ms = queue.client.run_flow(inspect.oldest_unread_ms(keys, self._config.group))
        oldest_ms, due_ms = depth.oldest_entry_ms, depth.next_due_ms
        values: dict[str, float] = {
            "waiting": depth.waiting,
            "running": depth.running,
            "delayed": depth.delayed,
            "delayed_due": due,
            "delayed_late_seconds": max(0, now_ms - due_ms) / 1000 if due_ms else 0,
            "dead": depth.dead,
            "oldest_entry_age_seconds": max(0, now_ms - oldest_ms) / 1000 if oldest_ms else 0,
            "oldest_waiting_age_seconds": max(0, now_ms - waiting_ms) / 1000 if waiting_ms else 0,
            "consumers": depth.consumers,
            "workers_seen": sum(c.idle_ms < self._worker_timeout_ms for c in consumers),
            "repeats": depth.repeats,
            "repeats_due": repeats_due,
            "leader": locked,
            "paused": depth.paused,
        }
        if self._batches:
            values |= self._read_batches(queue)
        if depth.lag is not None:
            values["lag"] = depth.lag
        # Running jobs count, so that no worker is stopped while it runs one.
        return QueueStatus(values, depth.waiting + depth.running + soon + repeats_soon)

    def _read_batches(self, queue: Queue) -> dict[str, float]:
        """Return the number of batches that have not ended, and for how long one has stood still.

        A batch makes progress if jobs of it are enqueued, succeed or die. Each call reads the
        batches that are known not to have ended and some of the others, in turn.
        """
        batch_ids, _ = queue.client.run_flow(self._discovery.batch_ids(queue.keys))
        before, now = self._batch_progress.get(queue.name, {}), time.monotonic()
        others = sorted(batch_ids - before.keys())
        start = self._read_count * _BATCHES_PER_READ % max(1, len(others))
        chosen = (others[start:] + others[:start])[:_BATCHES_PER_READ]
        current: dict[str, tuple[int, float]] = {}
        for batch_id in [*before, *chosen][:_MAX_BATCHES]:
            progress = queue.client.run_flow(batches.progress(queue.keys, batch_id))
            if progress is None or progress.ended:
                continue
            count = progress.enqueued + progress.processed
            known_count, since = before.get(batch_id, (-1, now))
            current[batch_id] = (count, since if count == known_count else now)
        self._batch_progress[queue.name] = current
        stalled = max((now - since for _, since in current.values()), default=0.0)
        return {"batches": len(current), "batch_stalled_seconds": stalled}

    def _read_until_stopped(self) -> None:
        while not self._stopped.is_set():
            try:
                self.read()
            except ChasquiError as error:
                if not self._failing:
                    log.warning("exporter: %s; retrying until it succeeds", error)
                self._failing = True
            else:
                if self._failing:
                    log.info("exporter: the server is reachable again")
                self._failing = False
            self._stopped.wait(self._interval)

    @property
    def _recent(self) -> Snapshot | None:
        """The last snapshot, or None if the last read failed or takes too long."""
        snapshot = self._snapshot
        if snapshot is None or self._failing:
            return None
        age = time.monotonic() - snapshot.read_at
        return snapshot if age < self._interval + _MAX_READ_SECONDS else None

    def respond(self, path: str) -> tuple[int, Any] | None:
        """Return the response to `/work/QUEUE`, for KEDA's scaler `metrics-api`.

        If the number is not known, the status is an error. Then KEDA keeps the number of workers.

        :param path: the path of the request.
        :return: the status and the JSON body, or None for another path.
        """
        if not path.startswith(_WORK_PATH):
            return None
        queue_name, snapshot = unquote(path.removeprefix(_WORK_PATH)), self._recent
        if snapshot is None:
            return 503, {"error": "the Redis server was not read recently"}
        status = snapshot.queues.get(queue_name)
        if status is not None:
            return 200, {"value": status.work}
        if self._names or snapshot.skipped_queues:
            return 404, {"error": f"the exporter does not read the queue {queue_name!r}"}
        return 200, {"value": 0}  # a queue is discovered as soon as it has a job

    def health(self) -> HealthStatus:
        """Return whether the exporter has recent values."""
        return HealthStatus(ready=self._recent is not None)

    def collect(self) -> Iterator[Any]:
        """Yield the Prometheus metric families; called by prometheus_client."""
        from prometheus_client.core import GaugeMetricFamily

        snapshot = self._recent
        yield GaugeMetricFamily(
            "chasqui_exporter_up",
            "1 if the exporter has read the server recently",
            value=float(snapshot is not None),
        )
        if snapshot is None:
            return
        for key, help_text in GAUGES.items():
            gauge = GaugeMetricFamily(f"chasqui_queue_{key}", help_text, labels=["queue"])
            for name, status in snapshot.queues.items():
                if key in status.values:
                    gauge.add_metric([name], status.values[key])
            yield gauge
        work = GaugeMetricFamily(
            "chasqui_queue_work",
            "Jobs that need a worker: waiting, running, due or due soon",
            labels=["queue"],
        )
        for name, status in snapshot.queues.items():
            work.add_metric([name], status.work)
        yield work
        yield GaugeMetricFamily(
            "chasqui_exporter_skipped_queues",
            "Discovered queues that are not exported because of --max-queues",
            value=snapshot.skipped_queues,
        )
        if snapshot.memory is not None:
            for name, value in snapshot.memory._asdict().items():
                yield GaugeMetricFamily(
                    f"chasqui_server_memory_{name}",
                    "Memory of the Redis server; a maximum of 0 means no limit",
                    value=value,
                )


def _read_memory(queue: Queue) -> Memory | None:
    """Return the memory of the server, or None if the user has no permission for INFO."""
    try:
        reply = queue.client.execute(redis_command("INFO", "memory", parse=as_raw))
    except ChasquiError:
        return None
    text = reply.decode() if isinstance(reply, bytes) else str(reply)
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return Memory(int(fields.get("used_memory", 0)), int(fields.get("maxmemory", 0)))
