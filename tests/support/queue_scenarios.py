"""Stories of a queue, told the same way to every server; what each leaves behind is compared."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from airflow_provider_chasqui.core.codec import encode_delayed_member, encode_job
from airflow_provider_chasqui.core.commands import consumer_group, delayed
from airflow_provider_chasqui.core.commands import delayed as delayed_commands
from airflow_provider_chasqui.core.commands.consumer_group import Completion, NewDeadLetter
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.cron import Cron, Every
from airflow_provider_chasqui.core.errors import BatchConflict, JobFailed, QueueFull, WaitTimeout
from airflow_provider_chasqui.core.job import NewJob, StreamEntry
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.core.repeat import FIRE_ONCE, due_fires
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.queue import Queue
from tests.support.redis_state import dump

HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
GROUP = "default"
# An hour ago, so that a delay of a second is over.
NOW = (time.time_ns() // 1_000_000_000 - 3600) * 1000


def open_queue(name: str, url: str, dialect: str, max_len: int | None = None) -> Queue:
    """A queue whose clock stands and whose ids are counted."""
    config = QueueConfig(max_len=max_len, emit_enqueue_events=True)
    queue = Queue(name, url, dialect=dialect, config=config, clock=lambda: NOW)
    numbers = count()
    queue._flows._ulid_generator.next = lambda _: f"job-{next(numbers):022}"  # type: ignore[method-assign]
    return queue


def read(queue: Queue, consumer: str = "me") -> list[StreamEntry]:
    queue.client.pipeline_with_errors([consumer_group.create(queue.keys, GROUP)])
    raw = queue.client.execute(consumer_group.read(queue.keys, GROUP, consumer, 100, 0, 60_000))
    found = [consumer_group.parse_entry(each, 2**20) for each in raw]
    return [entry for entry in found if isinstance(entry, StreamEntry)]


def bury(queue: Queue, entries: list[StreamEntry], reason: str = "unrecoverable") -> list[bool]:
    burials = [
        NewDeadLetter(
            entry.id, encode_job(entry.job), entry.job.name, reason,
            error=f"ValueError: {entry.job.payload}", attempts=1, failed_at_ms=NOW,
            job_id=entry.job.id,
        )
        for entry in entries
    ]  # fmt: skip
    return queue.client.execute(consumer_group.move_to_dlq(queue.keys, GROUP, burials))


def added(queue: Queue) -> Any:
    retry = RetryPolicy(3, Backoff.exponential(SECOND, max_delay=HOUR))
    return [
        queue.add({"a": 1}),
        queue.add([1], job_name="named", job_id="mine", retry=retry),
        queue.add(b"bytes", run_at=datetime(2020, 1, 1, tzinfo=UTC)),
        queue.job_status("mine").state,
        queue.depth().waiting,
    ]


def many(queue: Queue) -> Any:
    jobs = [
        NewJob(1),
        NewJob(2, delay=HOUR),
        NewJob(3, job_name="n", job_id="three", delay=2 * HOUR),
        NewJob(4, job_id="four", dedup_ttl=HOUR),
        NewJob(5, job_id="four", dedup_ttl=HOUR),
        NewJob(6, job_id="six", dedup_ttl=HOUR, delay=HOUR),
        NewJob(7, job_id="three", delay=HOUR),
    ]
    return [queue.add_many(jobs), queue.add_many(jobs), queue.add_many([])]


def full(queue: Queue) -> Any:
    said: list[Any] = [len(queue.add_many({"payload": i} for i in range(98)))]
    for jobs in (3, 2, 1):
        try:
            said.append(len(queue.add_many({"payload": i} for i in range(jobs))))
        except QueueFull as error:
            said.append(str(error).replace(queue.name, "q"))
    return said


def unique(queue: Queue) -> Any:
    said = [queue.add(i, job_id="u", dedup_ttl=HOUR) for i in range(3)]
    said += [queue.add(i, job_id="d", dedup_ttl=HOUR, delay=HOUR) for i in range(2)]
    said.append(queue.cancel("d"))
    said.append(queue.add(9, job_id="d", dedup_ttl=HOUR))
    return said


def cancelled(queue: Queue) -> Any:
    anonymous = queue.add(1, delay=HOUR).job_id
    queue.add(2, job_id="mine", delay=HOUR)
    queue.add(3, job_id="kept*[?]", delay=HOUR)
    said = [queue.cancel(anonymous), queue.cancel("mine"), queue.cancel("mine")]
    return [*said, queue.job_status(anonymous).state, queue.job_status("kept*[?]").state]


def rescheduled(queue: Queue) -> Any:
    anonymous = queue.add(1, delay=HOUR).job_id
    queue.add(2, job_id="mine", delay=HOUR)
    said = [
        queue.reschedule(anonymous, delay=2 * HOUR),
        queue.reschedule("mine", run_at=datetime.fromtimestamp(NOW / 1000 + 60, UTC)),
        queue.reschedule("nobody", delay=HOUR),
    ]
    return [*said, queue.job_status("mine").due_ms, queue.job_status(anonymous).due_ms]


def promoted(queue: Queue) -> Any:
    queue.add(1, delay=SECOND, job_name="n")
    queue.add(2, job_id="mine", delay=2 * SECOND)
    queue.add(3, delay=2 * HOUR)
    done = queue.client.execute(delayed.promote(queue.keys, 10))
    queue.client.execute(delayed.delete_index(queue.keys, done.job_ids))
    return [done.moved, done.remaining, done.next_due_ms, done.dead_lettered, done.job_ids]


def batch(queue: Queue) -> Any:
    said: list[Any] = [queue.add_batch(range(10), batch_id="b", job_name="n", source="dag")]
    said.append(queue.add_batch(range(10), batch_id="b", job_name="n", source="dag"))
    for other in (range(9), range(11)):
        try:
            queue.add_batch(other, batch_id="b")
        except BatchConflict as error:
            said.append(error.message)
    said.append(queue.add_batch_part("p", 0, range(3)))
    said.append(queue.add_batch_part("p", 1, range(3), delay=HOUR))
    said.append(queue.finalize_batch("p", total=6, parts=2))
    entries = read(queue)
    results = [Completion(entry.id, entry.job.id, encode_payload("done")) for entry in entries[:6]]
    said.append(queue.client.execute(consumer_group.ack_with_results(queue.keys, GROUP, results)))
    said.append(queue.client.execute(consumer_group.ack_with_results(queue.keys, GROUP, results)))
    said.append(bury(queue, entries[6:10]))
    said.append(queue.dead_job_ids("b"))
    said.append(queue.replay_dead_letters(batch_id="b", limit=2))
    said.append(queue.purge_dead_letters(batch_id="b", limit=1))
    said.append(queue.cancel("batch:p:1:2"))
    said += [queue.job_status(f"batch:b:0:{i}").state for i in range(10)]
    return [*said, queue.batch_progress("b"), queue.batch_progress("p")]


def settled(queue: Queue) -> Any:
    for i in range(6):
        queue.add(i, job_id=f"j{i}")
    entries = read(queue)
    kept = [Completion(e.id, e.job.id, encode_payload({"r": e.job.payload})) for e in entries[:2]]
    said: list[Any] = [
        queue.client.execute(consumer_group.ack_with_results(queue.keys, GROUP, kept)),
        queue.client.execute(consumer_group.ack(queue.keys, GROUP, [entries[2].id, "1-0"])),
        queue.client.execute(consumer_group.ack(queue.keys, GROUP, [entries[2].id])),
        queue.results(["j0", "j1", "j2"]),
        queue.result("j9", "none"),
        queue.wait("j1", timeout=SECOND),
        [queue.job_status(f"j{i}").state for i in range(7)],
    ]
    try:
        queue._flows.clock = lambda: time.time_ns() // 1_000_000  # waiting needs one that goes
        queue.wait("j5", timeout=timedelta(milliseconds=50))
    except WaitTimeout as error:
        said.append(error.code)
    return said


def retried(queue: Queue) -> Any:
    queue.add(1, job_id="a", job_name="n")
    queue.add(2, job_id="b")
    rows = [
        (e.id, NOW + 1000, encode_delayed_member(e.job.name.encode(), encode_job(e.job, attempt=1)))
        for e in read(queue)
    ]
    said = [
        queue.client.execute(consumer_group.schedule_retries(queue.keys, GROUP, "me", rows))
        for _ in range(2)
    ]
    return [*said, queue.job_status("a").state, queue.job_status("a").due_ms, queue.cancel("b")]


def buried(queue: Queue) -> Any:
    for i, name in enumerate(["x", "y", "x", "", "z"]):
        queue.add(i, job_id=f"j{i}", job_name=name)
    entries = read(queue)
    said: list[Any] = [bury(queue, entries[:4], "retries_exhausted"), bury(queue, entries[:1])]
    said.append(bury(queue, entries[4:]))
    queue.client.execute(_xadd(queue, "dlq", "d", b"\xc1", "reason", "decode_failed"))
    said.append([letter.job_id for letter in queue.dead_letters(job_name="x")])
    said.append([letter.job_id for letter in queue.dead_letters(newest_first=True, limit=2)])
    said.append(queue.replay_dead_letters(dry_run=True))
    said.append(queue.replay_dead_letters(job_name="x", max_replays=1))
    said.append(bury(queue, read(queue)))
    said.append(queue.replay_dead_letters(job_ids=["j0"], max_replays=1))
    said.append(queue.replay_dead_letters(text="ValueError: 1"))
    said.append(queue.purge_dead_letters(reason="decode_failed"))
    said.append(queue.purge_dead_letters(job_ids=["j3"], dry_run=True))
    said += [queue.job_status(f"j{i}").state for i in range(5)]
    try:
        queue.wait("j3", timeout=SECOND)
    except JobFailed as error:
        said.append(error.code)
    return said


def _xadd(queue: Queue, key: str, *fields: Any) -> Any:
    return consumer_group.redis_command(
        "XADD", f"{queue.keys.hash_tag}:{key}", "*", *fields, parse=lambda r: r
    )


def repeated(queue: Queue) -> Any:
    said: list[Any] = [
        queue.repeat({"a": 1}, Every(60_000), job_name="tick", limit=3, misfire=FIRE_ONCE),
        queue.repeat(None, Cron("0 2 * * *", "Europe/Paris"), job_name="nightly"),
        queue.repeat(1, Every(1000), key="gone"),
        queue.repeat({"a": 1}, Every(60_000), job_name="tick", limit=3, misfire=FIRE_ONCE),
        queue.delete_repeat("gone"),
        queue.delete_repeat("gone"),
    ]
    [tick] = [each for each in queue.repeats() if each.repeat.job_name == "tick"]
    for late_ms in (60_000, 1_800_000):
        at_ms = tick.next_fire_ms + late_ms
        plan = due_fires(tick.repeat, tick.next_fire_ms, at_ms)
        ids = [f"fire-{late_ms}-{i}" for i in range(len(plan.fires_ms))]
        op = delayed_commands.enqueue_due_repeats(
            queue.keys, tick.repeat, tick.next_fire_ms, plan, ids, at_ms
        )
        said += [queue.client.execute(op), queue.client.execute(op)]
        [tick] = [each for each in queue.repeats() if each.repeat.job_name == "tick"]
    return [*said, queue.repeats()]


def taken_over(queue: Queue) -> Any:
    """Entries of a dead worker go to another: natively by CLAIM, else by a script."""
    for i in range(3):
        queue.add(i)
    first = read(queue, "dead")
    op = consumer_group.read(queue.keys, GROUP, "heir", 100, 0, 0)
    raw = queue.client.execute(op)
    if queue.dialect() == "portable":
        raw += queue.client.execute(consumer_group.claim(queue.keys, GROUP, "heir", 0, 100))
    heirs = [consumer_group.parse_entry(each, 2**20) for each in raw]
    assert [entry.id for entry in heirs] == [entry.id for entry in first]
    kept = queue.client.execute(
        consumer_group.renew_claims(queue.keys, GROUP, "dead", [e.id for e in first])
    )
    return [
        [(each.job.payload, each.previous_deliveries) for each in heirs],
        kept,
        queue.depth().running,
    ]


STORIES: list[Callable[[Queue], Any]] = [
    added, many, full, unique, cancelled, rescheduled, promoted, batch, settled, retried, buried,
    repeated, taken_over,
]  # fmt: skip


def told(client: Any, queue: Queue, story: Callable[[Queue], Any]) -> tuple[Any, dict[str, Any]]:
    """Tell a story; return what was answered and what is left, without what no two runs share."""
    answers = story(queue)
    left = dump(client, queue.keys)
    # The portable dialect marks every call with a key, the native one single adds with IDMP.
    left = {name: content for name, content in left.items() if not name.startswith("idempotency:")}
    for name in {"dlq", "events"} & set(left):  # their ids may be the same as those of the stream
        left[name]["entries"] = [fields for _, fields in left[name]["entries"]]
    lives = {name: client.pttl(f"{queue.keys.hash_tag}:{name}") > 0 for name in left}
    return _normal(answers, queue.name), _normal({"keys": left, "expire": lives}, queue.name)


def _normal(value: Any, queue: str) -> Any:
    """Entry ids become numbers in the order of their appearance, the queue's name a letter."""
    seen: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return seen.setdefault(match[0], f"entry {len(seen)}")

    # Only the server's own time makes entry ids; ours stands an hour before.
    return re.sub(r"\b1\d{12}-\d+\b", number, repr(value).replace(queue, "q"))
