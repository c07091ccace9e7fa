"""Stories of a queue, told the same way to every server; what each leaves behind is compared."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from airflow_provider_chasqui.core.codec import encode_job, encode_member
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import BatchConflict, JobDead, QueueFull, WaitTimeout
from airflow_provider_chasqui.core.job import Entry, NewJob
from airflow_provider_chasqui.core.ops import delayed, delivery, repeats
from airflow_provider_chasqui.core.ops.delivery import Burial, Settled
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.core.policy import Backoff, RetryPolicy
from airflow_provider_chasqui.core.repeat import FIRE_ONCE, due
from airflow_provider_chasqui.core.schedule import Cron, Every
from airflow_provider_chasqui.queue import Queue
from tests.raw import dump

HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
GROUP = "default"
# An hour ago, so that a delay of a second is over.
NOW = (time.time_ns() // 1_000_000_000 - 3600) * 1000


def open_queue(name: str, url: str, dialect: str, max_len: int | None = None) -> Queue:
    """A queue whose clock stands and whose ids are counted."""
    config = QueueConfig(max_len=max_len, announce=True)
    queue = Queue(name, url, dialect=dialect, config=config, clock=lambda: NOW)
    numbers = count()
    queue._plan._ulids.mint = lambda _: f"job-{next(numbers):022}"  # type: ignore[method-assign]
    return queue


def read(queue: Queue, consumer: str = "me") -> list[Entry]:
    queue.drive.attempt([delivery.make_group(queue.keys, GROUP)])
    raw = queue.drive.run(delivery.read(queue.keys, GROUP, consumer, 100, 0, 60_000))
    found = [delivery.delivery(each, 2**20) for each in raw]
    return [entry for entry in found if isinstance(entry, Entry)]


def bury(queue: Queue, entries: list[Entry], reason: str = "unrecoverable") -> list[bool]:
    burials = [
        Burial(
            entry.id, encode_job(entry.job), entry.job.name, reason,
            error=f"ValueError: {entry.job.payload}", attempts=1, failed_at_ms=NOW,
            job_id=entry.job.id,
        )
        for entry in entries
    ]  # fmt: skip
    return queue.drive.run(delivery.bury(queue.keys, GROUP, burials))


def added(queue: Queue) -> Any:
    retry = RetryPolicy(3, Backoff.exponential(SECOND, max_delay=HOUR))
    return [
        queue.add({"a": 1}),
        queue.add([1], name="named", id="mine", retry=retry),
        queue.add(b"bytes", at=datetime(2020, 1, 1, tzinfo=UTC)),
        queue.find("mine").state,
        queue.depth().waiting,
    ]


def many(queue: Queue) -> Any:
    jobs = [
        NewJob(1),
        NewJob(2, delay=HOUR),
        NewJob(3, name="n", id="three", delay=2 * HOUR),
        NewJob(4, id="four", unique=HOUR),
        NewJob(5, id="four", unique=HOUR),
        NewJob(6, id="six", unique=HOUR, delay=HOUR),
        NewJob(7, id="three", delay=HOUR),
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
    said = [queue.add(i, id="u", unique=HOUR) for i in range(3)]
    said += [queue.add(i, id="d", unique=HOUR, delay=HOUR) for i in range(2)]
    said.append(queue.cancel("d"))
    said.append(queue.add(9, id="d", unique=HOUR))
    return said


def cancelled(queue: Queue) -> Any:
    anonymous = queue.add(1, delay=HOUR).id
    queue.add(2, id="mine", delay=HOUR)
    queue.add(3, id="kept*[?]", delay=HOUR)
    said = [queue.cancel(anonymous), queue.cancel("mine"), queue.cancel("mine")]
    return [*said, queue.find(anonymous).state, queue.find("kept*[?]").state]


def rescheduled(queue: Queue) -> Any:
    anonymous = queue.add(1, delay=HOUR).id
    queue.add(2, id="mine", delay=HOUR)
    said = [
        queue.reschedule(anonymous, delay=2 * HOUR),
        queue.reschedule("mine", at=datetime.fromtimestamp(NOW / 1000 + 60, UTC)),
        queue.reschedule("nobody", delay=HOUR),
    ]
    return [*said, queue.find("mine").due_ms, queue.find(anonymous).due_ms]


def promoted(queue: Queue) -> Any:
    queue.add(1, delay=SECOND, name="n")
    queue.add(2, id="mine", delay=2 * SECOND)
    queue.add(3, delay=2 * HOUR)
    done = queue.drive.run(delayed.promote(queue.keys, 10))
    queue.drive.run(delayed.forget_index(queue.keys, done.job_ids))
    return [done.moved, done.left, done.next_due_ms, done.buried, done.job_ids]


def batch(queue: Queue) -> Any:
    said: list[Any] = [queue.add_batch(range(10), batch_id="b", name="n", source="dag")]
    said.append(queue.add_batch(range(10), batch_id="b", name="n", source="dag"))
    for other in (range(9), range(11)):
        try:
            queue.add_batch(other, batch_id="b")
        except BatchConflict as error:
            said.append(error.message)
    said.append(queue.add_part("p", 0, range(3)))
    said.append(queue.add_part("p", 1, range(3), delay=HOUR))
    said.append(queue.seal_batch("p", total=6, parts=2))
    entries = read(queue)
    results = [Settled(entry.id, entry.job.id, encode_payload("done")) for entry in entries[:6]]
    said.append(queue.drive.run(delivery.settle_with(queue.keys, GROUP, results)))
    said.append(queue.drive.run(delivery.settle_with(queue.keys, GROUP, results)))
    said.append(bury(queue, entries[6:10]))
    said.append(queue.dead_in_batch("b"))
    said.append(queue.replay(batch="b", limit=2))
    said.append(queue.purge(batch="b", limit=1))
    said.append(queue.cancel("batch:p:1:2"))
    said += [queue.find(f"batch:b:0:{i}").state for i in range(10)]
    return [*said, queue.batch("b"), queue.batch("p")]


def settled(queue: Queue) -> Any:
    for i in range(6):
        queue.add(i, id=f"j{i}")
    entries = read(queue)
    kept = [Settled(e.id, e.job.id, encode_payload({"r": e.job.payload})) for e in entries[:2]]
    said: list[Any] = [
        queue.drive.run(delivery.settle_with(queue.keys, GROUP, kept)),
        queue.drive.run(delivery.settle(queue.keys, GROUP, [entries[2].id, "1-0"])),
        queue.drive.run(delivery.settle(queue.keys, GROUP, [entries[2].id])),
        queue.results(["j0", "j1", "j2"]),
        queue.result("j9", "none"),
        queue.wait("j1", timeout=SECOND),
        [queue.find(f"j{i}").state for i in range(7)],
    ]
    try:
        queue._plan.clock = lambda: time.time_ns() // 1_000_000  # waiting needs one that goes
        queue.wait("j5", timeout=timedelta(milliseconds=50))
    except WaitTimeout as error:
        said.append(error.code)
    return said


def retried(queue: Queue) -> Any:
    queue.add(1, id="a", name="n")
    queue.add(2, id="b")
    rows = [
        (e.id, NOW + 1000, encode_member(e.job.name.encode(), encode_job(e.job, attempt=1)))
        for e in read(queue)
    ]
    said = [queue.drive.run(delivery.retry(queue.keys, GROUP, "me", rows)) for _ in range(2)]
    return [*said, queue.find("a").state, queue.find("a").due_ms, queue.cancel("b")]


def buried(queue: Queue) -> Any:
    for i, name in enumerate(["x", "y", "x", "", "z"]):
        queue.add(i, id=f"j{i}", name=name)
    entries = read(queue)
    said: list[Any] = [bury(queue, entries[:4], "retries_exhausted"), bury(queue, entries[:1])]
    said.append(bury(queue, entries[4:]))
    queue.drive.run(_xadd(queue, "dlq", "d", b"\xc1", "reason", "decode_failed"))
    said.append([letter.job_id for letter in queue.letters(name="x")])
    said.append([letter.job_id for letter in queue.letters(newest_first=True, limit=2)])
    said.append(queue.replay(dry_run=True))
    said.append(queue.replay(name="x", budget=1))
    said.append(bury(queue, read(queue)))
    said.append(queue.replay(job_ids=["j0"], budget=1))
    said.append(queue.replay(text="ValueError: 1"))
    said.append(queue.purge(reason="decode_failed"))
    said.append(queue.purge(job_ids=["j3"], dry_run=True))
    said += [queue.find(f"j{i}").state for i in range(5)]
    try:
        queue.wait("j3", timeout=SECOND)
    except JobDead as error:
        said.append(error.code)
    return said


def _xadd(queue: Queue, key: str, *fields: Any) -> Any:
    return delivery.command("XADD", f"{queue.keys.tag}:{key}", "*", *fields, parse=lambda r: r)


def repeated(queue: Queue) -> Any:
    said: list[Any] = [
        queue.repeat({"a": 1}, Every(60_000), name="tick", limit=3, missed=FIRE_ONCE),
        queue.repeat(None, Cron("0 2 * * *", "Europe/Paris"), name="nightly"),
        queue.repeat(1, Every(1000), key="gone"),
        queue.repeat({"a": 1}, Every(60_000), name="tick", limit=3, missed=FIRE_ONCE),
        queue.drop_repeat("gone"),
        queue.drop_repeat("gone"),
    ]
    [tick] = [each for each in queue.repeats() if each.repeat.name == "tick"]
    for late_ms in (60_000, 1_800_000):
        at_ms = tick.next_fire_ms + late_ms
        plan = due(tick.repeat, tick.next_fire_ms, at_ms)
        ids = [f"fire-{late_ms}-{i}" for i in range(len(plan.fires_ms))]
        op = repeats.fire(queue.keys, tick.repeat, tick.next_fire_ms, plan, ids, at_ms)
        said += [queue.drive.run(op), queue.drive.run(op)]
        [tick] = [each for each in queue.repeats() if each.repeat.name == "tick"]
    return [*said, queue.repeats()]


def taken_over(queue: Queue) -> Any:
    """Entries of a dead worker go to another: natively by CLAIM, else by a script."""
    for i in range(3):
        queue.add(i)
    first = read(queue, "dead")
    op = delivery.read(queue.keys, GROUP, "heir", 100, 0, 0)
    raw = queue.drive.run(op)
    if queue.dialect() == "portable":
        raw += queue.drive.run(delivery.claim(queue.keys, GROUP, "heir", 0, 100))
    heirs = [delivery.delivery(each, 2**20) for each in raw]
    assert [entry.id for entry in heirs] == [entry.id for entry in first]
    kept = queue.drive.run(delivery.keep(queue.keys, GROUP, "dead", [e.id for e in first]))
    return [[(each.job.payload, each.deliveries) for each in heirs], kept, queue.depth().running]


STORIES: list[Callable[[Queue], Any]] = [
    added, many, full, unique, cancelled, rescheduled, promoted, batch, settled, retried, buried,
    repeated, taken_over,
]  # fmt: skip


def told(client: Any, queue: Queue, story: Callable[[Queue], Any]) -> tuple[Any, dict[str, Any]]:
    """Tell a story; return what was answered and what is left, without what no two runs share."""
    answers = story(queue)
    left = dump(client, queue.keys)
    # The portable dialect marks every call with a key, the native one single adds with IDMP.
    left = {name: content for name, content in left.items() if not name.startswith("once:")}
    for name in {"dlq", "events"} & set(left):  # their ids may be the same as those of the stream
        left[name]["entries"] = [fields for _, fields in left[name]["entries"]]
    lives = {name: client.pttl(f"{queue.keys.tag}:{name}") > 0 for name in left}
    return _normal(answers, queue.name), _normal({"keys": left, "expire": lives}, queue.name)


def _normal(value: Any, queue: str) -> Any:
    """Entry ids become numbers in the order of their appearance, the queue's name a letter."""
    seen: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return seen.setdefault(match[0], f"entry {len(seen)}")

    # Only the server's own time makes entry ids; ours stands an hour before.
    return re.sub(r"\b1\d{12}-\d+\b", number, repr(value).replace(queue, "q"))
