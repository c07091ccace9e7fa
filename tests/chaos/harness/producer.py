"""A producer process of the fault tests. It records each call in a file before and after it.

A producer that was killed is started again and continues with the call after the last one that it
began. Batches and unique ids are sent again, because that adds nothing twice.

python -m tests.chaos.harness.producer FILE, where FILE is a pickled `ProducerPlan`.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import struct
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.errors import ChasquiError, QueueFull
from airflow_provider_chasqui.core.repeat import SKIP
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.queue import Queue
from tests.chaos.harness.plan import RETRY_DELAY_S, TICK_MS, JobSpec

HOUR = timedelta(hours=1)
BACKOFF = Backoff.fixed(timedelta(seconds=RETRY_DELAY_S))
# A call that may be repeated is repeated for this long.
GIVE_UP_S = 150.0


@dataclass(frozen=True)
class ProducerPlan:
    """What a producer does, and how it reaches the server.

    :param began: when the scenario began, on the monotonic clock.
    :param ticks: the number of fires of the repeatable job; 0 for none.
    """

    folder: Path
    url: str
    dialect: str
    queue_name: str
    ordered_queue_name: str
    config: QueueConfig
    began: float
    number: int
    jobs: tuple[JobSpec, ...]
    batch: tuple[JobSpec, ...]
    ticks: int

    @property
    def calls(self) -> Path:
        """The file that records the calls."""
        return self.folder / f"producer-{self.number}.calls"


class CallRecorder:
    """Appends one line per begin and end of a call, so that `kill -9` loses none."""

    def __init__(self, plan: ProducerPlan):
        self._file = os.open(plan.calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with (plan.folder / "skew").open("r+b") as file:
            self._skew = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)
        self._skewed = False

    @property
    def skew_ms(self) -> int:
        """The offset of the producer's clock."""
        return int(struct.unpack("q", self._skew[:8])[0])

    def clock(self) -> int:
        """Return the time in milliseconds, with the offset."""
        skew_ms = self.skew_ms
        self._skewed = self._skewed or skew_ms != 0
        return time.time_ns() // 1_000_000 + skew_ms

    def begin(self, verb: str, ids: Sequence[str]) -> None:
        self._skewed = self.skew_ms != 0
        self._write("begin", verb, list(ids), time.monotonic(), self._skewed)

    def end(self, verb: str, outcome: str, values: Sequence[Any] = ()) -> None:
        skewed = self._skewed or self.skew_ms != 0
        self._write("end", verb, outcome, time.monotonic(), skewed, list(values))

    def _write(self, *line: Any) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


class Producer:
    """Sends the jobs of a plan."""

    def __init__(self, plan: ProducerPlan):
        self._plan = plan
        self._begun = {
            job_id
            for line in (plan.calls.read_text().splitlines() if plan.calls.exists() else ())
            for job_id in (json.loads(line)[2] if json.loads(line)[0] == "begin" else ())
        }
        self._recorder = CallRecorder(plan)

    def run(self) -> None:
        """Send everything; return when it was sent or refused."""
        plan = self._plan
        with self._queue(plan.queue_name) as queue, self._queue(plan.ordered_queue_name) as ordered:
            if plan.ticks:
                self._until_accepted("repeat", ["tick"], lambda: self._add_repeat(queue))
            half = len(plan.jobs) // 2
            cancels: list[tuple[float, str]] = []
            sent = 0
            for _, group in groupby(plan.jobs, key=lambda spec: (spec.at_s, spec.ordered)):
                specs = list(group)
                self._sleep_until(specs[0].at_s, queue, cancels)
                if plan.batch and sent <= half < sent + len(specs):
                    self._send_batch(queue)
                sent += len(specs)
                self._send(ordered if specs[0].ordered else queue, specs)
                now = time.monotonic()
                cancels += [
                    (now + spec.cancel_after_ms / 1000, spec.id)
                    for spec in specs
                    if spec.cancel_after_ms is not None
                ]
            while cancels:
                self._cancel_due(queue, cancels)
                time.sleep(0.01)

    def _queue(self, name: str) -> Queue:
        plan = self._plan
        return Queue(
            name, plan.url, config=plan.config, dialect=plan.dialect, clock=self._recorder.clock
        )

    def _sleep_until(self, at_s: float, queue: Queue, cancels: list[tuple[float, str]]) -> None:
        while (remaining := self._plan.began + at_s - time.monotonic()) > 0:
            time.sleep(min(0.02, remaining))
            self._cancel_due(queue, cancels)

    def _cancel_due(self, queue: Queue, cancels: list[tuple[float, str]]) -> None:
        now = time.monotonic()
        for at, job_id in [*cancels]:
            if at <= now:
                cancels.remove((at, job_id))
                self._record_call("cancel", [job_id], partial(_cancel, queue, job_id))

    def _send(self, queue: Queue, specs: list[JobSpec]) -> None:
        """Add jobs with one call, unique ones with a second one as well."""
        first = [spec for spec in specs if spec.unique or spec.id not in self._begun]
        for chosen in (first, [spec for spec in specs if spec.unique]):
            if chosen:
                ids = [spec.id for spec in chosen]
                self._record_call("add", ids, partial(_add, queue, chosen))

    def _send_batch(self, queue: Queue) -> None:
        batch = self._plan.batch
        payloads = [spec.payload for spec in batch]
        retry = RetryPolicy(25, BACKOFF)
        self._until_accepted(
            "batch",
            [batch[0].batch_id],
            lambda: queue.add_batch(payloads, batch_id=batch[0].batch_id, retry=retry),
        )

    def _add_repeat(self, queue: Queue) -> None:
        queue.repeat(
            {"work_ms": 0},
            Every(TICK_MS),
            job_name="tick",
            key="t",
            limit=self._plan.ticks,
            misfire=SKIP,
        )

    def _record_call(self, verb: str, ids: Sequence[str], call: Callable[[], list[Any]]) -> None:
        self._recorder.begin(verb, ids)
        outcome, values = "acked", list[Any]()
        try:
            values = call()
        except QueueFull:
            outcome = "refused"
        except ChasquiError:
            outcome = "unknown"
        self._recorder.end(verb, outcome, values)

    def _until_accepted(self, verb: str, ids: Sequence[str], call: Callable[[], Any]) -> None:
        """Repeat an idempotent call until it succeeds."""
        if verb == "repeat" and "tick" in self._begun and self._accepted("repeat"):
            return
        deadline = time.monotonic() + GIVE_UP_S
        self._recorder.begin(verb, ids)
        while True:
            try:
                call()
                break
            except ChasquiError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        self._recorder.end(verb, "acked")

    def _accepted(self, verb: str) -> bool:
        lines = map(json.loads, self._plan.calls.read_text().splitlines())
        return any(line[0] == "end" and line[1] == verb for line in lines)


def _cancel(queue: Queue, job_id: str) -> list[str]:
    return [queue.cancel(job_id)]


def _add(queue: Queue, specs: list[JobSpec]) -> list[bool]:
    if len(specs) == 1:
        return [queue.add(**_arguments(specs[0])).created]
    return [job.created for job in queue.add_many(map(_arguments, specs))]


def _arguments(spec: JobSpec) -> dict[str, Any]:
    return {
        "payload": spec.payload,
        "job_id": spec.id,
        "job_name": "thread" if spec.thread else "job",
        "dedup_ttl": HOUR if spec.unique else None,
        "delay": timedelta(milliseconds=spec.delay_ms) if spec.delay_ms else None,
        "retry": RetryPolicy(spec.max_attempts, BACKOFF),
    }


if __name__ == "__main__":
    Producer(pickle.loads(Path(sys.argv[1]).read_bytes())).run()
