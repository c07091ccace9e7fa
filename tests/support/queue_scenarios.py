"""Scenarios of a queue that run on every server, and the normalised results to compare.

A scenario returns its results as a list of (label, value) pairs, so that an expectation can name
the step it is about.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from airflow_provider_chasqui.core.codec import encode_delayed_member, encode_job
from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.commands import consumer_group, dead_letters, delayed
from airflow_provider_chasqui.core.commands.consumer_group import Completion, NewDeadLetter
from airflow_provider_chasqui.core.commands.dead_letters import DeadLetterFilter, PageRange
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
# An hour ago, so that a job with a delay of a second is already due on the server.
NOW = (time.time_ns() // 1_000_000_000 - 3600) * 1000

Results = list[tuple[str, Any]]
Scenario = Callable[[Queue], Results]


def open_queue(name: str, url: str, dialect: str, max_len: int | None = None) -> Queue:
    """Return a queue with a fixed clock and numbered job ids."""
    config = QueueConfig(max_len=max_len, emit_enqueue_events=True)
    queue = Queue(name, url, dialect=dialect, config=config, clock=lambda: NOW)
    numbers = count()
    queue._flows._ulid_generator.next = lambda _: f"job-{next(numbers):022}"  # type: ignore[method-assign]
    return queue


def read(queue: Queue, consumer: str = "me") -> list[StreamEntry]:
    """Read entries for a consumer, creating the group if necessary."""
    queue.client.pipeline_with_errors([consumer_group.create(queue.keys, GROUP)])
    raw_entries = queue.client.execute(consumer_group.read(queue.keys, GROUP, consumer, 100, 0))
    entries = [consumer_group.parse_entry(raw_entry, 2**20) for raw_entry in raw_entries]
    return [entry for entry in entries if isinstance(entry, StreamEntry)]


def move_to_dlq(
    queue: Queue,
    entries: list[StreamEntry],
    reason: str = "unrecoverable",
    consumer: str = "me",
) -> list[bool]:
    """Move entries to the DLQ; return per entry whether it was still pending."""
    new_dead_letters = [
        NewDeadLetter(
            entry.id,
            encode_job(entry.job),
            entry.job.name,
            reason,
            error=f"ValueError: {entry.job.payload}",
            attempts=1,
            failed_at_ms=NOW,
            job_id=entry.job.id,
        )
        for entry in entries
    ]
    return queue.client.execute(
        consumer_group.move_to_dlq(queue.keys, GROUP, consumer, new_dead_letters)
    )


def add_single_jobs(queue: Queue) -> Results:
    retry = RetryPolicy(3, Backoff.exponential(SECOND, max_delay=HOUR))
    return [
        ("plain", queue.add({"a": 1})),
        ("with options", queue.add([1], job_name="named", job_id="mine", retry=retry)),
        ("due in the past", queue.add(b"bytes", run_at=datetime(2020, 1, 1, tzinfo=UTC))),
        ("state", queue.job_status("mine").state),
        ("waiting", queue.depth().waiting),
    ]


def add_many_jobs(queue: Queue) -> Results:
    jobs = [
        NewJob(1),
        NewJob(2, delay=HOUR),
        NewJob(3, job_name="n", job_id="three", delay=2 * HOUR),
        NewJob(4, job_id="four", dedup_ttl=HOUR),
        NewJob(5, job_id="four", dedup_ttl=HOUR),
        NewJob(6, job_id="six", dedup_ttl=HOUR, delay=HOUR),
        NewJob(7, job_id="three", delay=HOUR),
    ]
    return [
        ("first call", queue.add_many(jobs)),
        ("second call", queue.add_many(jobs)),
        ("no jobs", queue.add_many([])),
    ]


def fill_the_queue(queue: Queue) -> Results:
    """Add jobs to a queue that may hold 100."""
    results: Results = []
    for job_count in (98, 3, 2, 1):
        label = f"add {job_count}"
        try:
            results.append((label, len(queue.add_many({"payload": i} for i in range(job_count)))))
        except QueueFull as error:
            results.append((label, str(error).replace(queue.name, "q")))
    return results


def deduplicate(queue: Queue) -> Results:
    return [
        ("add u", queue.add(0, job_id="u", dedup_ttl=HOUR)),
        ("add u again", queue.add(1, job_id="u", dedup_ttl=HOUR)),
        ("add u a third time", queue.add(2, job_id="u", dedup_ttl=HOUR)),
        ("add d, delayed", queue.add(0, job_id="d", dedup_ttl=HOUR, delay=HOUR)),
        ("add d again", queue.add(1, job_id="d", dedup_ttl=HOUR, delay=HOUR)),
        ("cancel d", queue.cancel("d")),
        ("add d after the cancel", queue.add(9, job_id="d", dedup_ttl=HOUR)),
    ]


def cancel_jobs(queue: Queue) -> Results:
    generated_id = queue.add(1, delay=HOUR).job_id
    queue.add(2, job_id="mine", delay=HOUR)
    queue.add(3, job_id="other*[?]", delay=HOUR)
    return [
        ("cancel generated id", queue.cancel(generated_id)),
        ("cancel given id", queue.cancel("mine")),
        ("cancel again", queue.cancel("mine")),
        ("state of the cancelled", queue.job_status(generated_id).state),
        ("state of the other", queue.job_status("other*[?]").state),
    ]


def reschedule_jobs(queue: Queue) -> Results:
    generated_id = queue.add(1, delay=HOUR).job_id
    queue.add(2, job_id="mine", delay=HOUR)
    in_a_minute = datetime.fromtimestamp(NOW / 1000 + 60, UTC)
    return [
        ("generated id", queue.reschedule(generated_id, delay=2 * HOUR)),
        ("given id", queue.reschedule("mine", run_at=in_a_minute)),
        ("no such job", queue.reschedule("unknown", delay=HOUR)),
        ("due time of the given id", queue.job_status("mine").due_ms),
        ("due time of the generated id", queue.job_status(generated_id).due_ms),
    ]


def promote_due_jobs(queue: Queue) -> Results:
    queue.add(1, delay=SECOND, job_name="n")
    queue.add(2, job_id="mine", delay=2 * SECOND)
    queue.add(3, delay=2 * HOUR)
    promotion = queue.client.execute(delayed.promote(queue.keys, 10))
    queue.client.execute(delayed.delete_index(queue.keys, promotion.job_ids))
    return [
        ("moved", promotion.moved),
        ("remaining", promotion.remaining),
        ("next due", promotion.next_due_ms),
        ("dead-lettered", promotion.dead_lettered),
        ("job ids", promotion.job_ids),
    ]


def process_batches(queue: Queue) -> Results:
    results: Results = [
        (label, queue.add_batch(range(10), batch_id="b", job_name="n", source="dag"))
        for label in ("add batch", "add batch again")
    ]
    for size in (9, 11):
        try:
            queue.add_batch(range(size), batch_id="b")
        except BatchConflict as error:
            results.append((f"add {size} jobs under the same id", error.message))
    results += [
        ("add part 0", queue.add_batch_part("p", 0, range(3))),
        ("add part 1, delayed", queue.add_batch_part("p", 1, range(3), delay=HOUR)),
        ("finalize", queue.finalize_batch("p", total=6, parts=2)),
    ]
    entries = read(queue)
    completions = [
        Completion(entry.id, entry.job.id, encode_payload("done")) for entry in entries[:6]
    ]
    ack = consumer_group.ack_with_results(queue.keys, GROUP, completions)
    results += [
        ("ack", queue.client.execute(ack)),
        ("ack again", queue.client.execute(ack)),
        ("move to the DLQ", move_to_dlq(queue, entries[6:10])),
        ("dead job ids", queue.dead_job_ids("b")),
        ("replay two", queue.replay_dead_letters(batch_id="b", limit=2)),
        ("purge one", queue.purge_dead_letters(batch_id="b", limit=1)),
        ("cancel a delayed job", queue.cancel("batch:p:1:2")),
    ]
    for index in range(10):
        results.append((f"state of job {index}", queue.job_status(f"batch:b:0:{index}").state))
    return [
        *results,
        ("progress of b", queue.batch_progress("b")),
        ("progress of p", queue.batch_progress("p")),
    ]


def acknowledge_jobs(queue: Queue) -> Results:
    for i in range(6):
        queue.add(i, job_id=f"j{i}")
    entries = read(queue)
    completions = [
        Completion(entry.id, entry.job.id, encode_payload({"r": entry.job.payload}))
        for entry in entries[:2]
    ]
    third_id = entries[2].id
    results: Results = [
        (
            "ack with results",
            queue.client.execute(consumer_group.ack_with_results(queue.keys, GROUP, completions)),
        ),
        (
            "ack one, and an unknown id",
            queue.client.execute(consumer_group.ack(queue.keys, GROUP, [third_id, "1-0"])),
        ),
        (
            "ack again",
            queue.client.execute(consumer_group.ack(queue.keys, GROUP, [third_id])),
        ),
        ("results", queue.results(["j0", "j1", "j2"])),
        ("result of an unknown job", queue.result("j9", "none")),
        ("wait for a done job", queue.wait("j1", timeout=SECOND)),
        ("states", [queue.job_status(f"j{i}").state for i in range(7)]),
    ]
    try:
        queue._flows.clock = lambda: time.time_ns() // 1_000_000  # a timeout needs a running clock
        queue.wait("j5", timeout=timedelta(milliseconds=50))
    except WaitTimeout as error:
        results.append(("wait for a running job", error.code))
    return results


def retry_jobs(queue: Queue) -> Results:
    queue.add(1, job_id="a", job_name="n")
    queue.add(2, job_id="b")
    retries = []
    for entry in read(queue):
        envelope = encode_job(entry.job, attempt=1)
        member = encode_delayed_member(entry.job.name.encode(), envelope)
        retries.append((entry.id, NOW + 1000, member))
    command = consumer_group.schedule_retries(queue.keys, GROUP, "me", retries)
    return [
        ("schedule", queue.client.execute(command)),
        ("schedule again", queue.client.execute(command)),
        ("state", queue.job_status("a").state),
        ("due time", queue.job_status("a").due_ms),
        ("cancel", queue.cancel("b")),
    ]


def process_dead_letters(queue: Queue) -> Results:
    for i, name in enumerate(["x", "y", "x", "", "z"]):
        queue.add(i, job_id=f"j{i}", job_name=name)
    entries = read(queue)
    results: Results = [
        ("move four to the DLQ", move_to_dlq(queue, entries[:4], "retries_exhausted")),
        ("move one again", move_to_dlq(queue, entries[:1])),
        ("move the fifth", move_to_dlq(queue, entries[4:])),
    ]
    queue.client.execute(_add_entry(queue, "dlq", "d", b"\xc1", "reason", "decode_failed"))
    by_name = queue.dead_letters(job_name="x")
    newest = queue.dead_letters(newest_first=True, limit=2)
    results += [
        ("filter by name", [dead_letter.job_id for dead_letter in by_name]),
        ("two newest", [dead_letter.job_id for dead_letter in newest]),
        ("replay dry run", queue.replay_dead_letters(dry_run=True)),
        ("replay by name", queue.replay_dead_letters(job_name="x", max_replays=1)),
        ("the replayed die again", move_to_dlq(queue, read(queue))),
        ("replay over the limit", queue.replay_dead_letters(job_ids=["j0"], max_replays=1)),
        ("replay by text", queue.replay_dead_letters(text="ValueError: 1")),
        ("purge by reason", queue.purge_dead_letters(reason="decode_failed")),
        ("purge dry run", queue.purge_dead_letters(job_ids=["j3"], dry_run=True)),
        ("states", [queue.job_status(f"j{i}").state for i in range(5)]),
    ]
    try:
        queue.wait("j3", timeout=SECOND)
    except JobFailed as error:
        results.append(("wait for a dead job", error.code))
    return results


def process_dead_letters_by_page(queue: Queue) -> Results:
    """Purge the three `x` of five dead letters, two per page."""
    for i, name in enumerate(["x", "y", "x", "x", "y"]):
        queue.add(i, job_id=f"j{i}", job_name=name)
    move_to_dlq(queue, read(queue))
    results: Results = []
    page_range: PageRange | None = PageRange()
    while page_range is not None:
        page = queue.client.run_flow(
            dead_letters.purge_page(
                queue.keys, DeadLetterFilter(job_name="x"), page_range, dry_run=False, limit=2
            )
        )
        results.append((f"page {len(results)}", page.report))
        page_range = page.next_range
        # A dead letter that is written during the operation is not part of it.
        queue.add(len(results), job_name="x")
        move_to_dlq(queue, read(queue))
    remaining = queue.dead_letters()
    ids = [remaining[0].id, "1-1", "not an id"]
    return [
        *results,
        ("remaining", [dead_letter.job_name for dead_letter in remaining]),
        ("replay by id", queue.replay_dead_letters(ids=ids)),
        ("replay by id again", queue.replay_dead_letters(ids=ids)),
        ("no ids", queue.replay_dead_letters(ids=[])),
        ("limit 0", queue.purge_dead_letters(limit=0)),
    ]


def _add_entry(queue: Queue, key: str, *fields: Any) -> Any:
    return redis_command("XADD", f"{queue.keys.hash_tag}:{key}", "*", *fields, parse=as_raw)


def run_repeats(queue: Queue) -> Results:
    def upsert_tick() -> str:
        return queue.repeat({"a": 1}, Every(60_000), job_name="tick", limit=3, misfire=FIRE_ONCE)

    def find_tick() -> Any:
        [tick] = [status for status in queue.repeats() if status.repeat.job_name == "tick"]
        return tick

    nightly = Cron("0 2 * * *", "Europe/Paris")
    results: Results = [
        ("create every minute", upsert_tick()),
        ("create nightly", queue.repeat(None, nightly, job_name="nightly")),
        ("create every second", queue.repeat(1, Every(1000), key="removed")),
        ("replace every minute", upsert_tick()),
        ("delete", queue.delete_repeat("removed")),
        ("delete again", queue.delete_repeat("removed")),
    ]
    for late_ms in (60_000, 1_800_000):
        tick = find_tick()
        now_ms = tick.next_fire_ms + late_ms
        due = due_fires(tick.repeat, tick.next_fire_ms, now_ms)
        job_ids = [f"fire-{late_ms}-{i}" for i in range(len(due.fires_ms))]
        command = delayed.enqueue_due_repeats(
            queue.keys, tick.repeat, tick.next_fire_ms, due, job_ids, now_ms
        )
        results += [
            (f"enqueue {late_ms} ms late", queue.client.execute(command)),
            (f"enqueue {late_ms} ms late again", queue.client.execute(command)),
        ]
    find_tick()
    return [*results, ("repeats", queue.repeats())]


def claim_entries_of_a_dead_worker(queue: Queue) -> Results:
    """Claim with XREADGROUP CLAIM in the native dialect, with XCLAIM in the portable one."""
    for i in range(3):
        queue.add(i)
    first = read(queue, "dead")
    _, raw_entries = queue.client.execute(
        consumer_group.claim_and_read(queue.keys, GROUP, "successor", 0, 100)
    )
    claimed = [consumer_group.parse_entry(raw_entry, 2**20) for raw_entry in raw_entries]
    assert [entry.id for entry in claimed] == [entry.id for entry in first]
    renew = consumer_group.renew_claims(queue.keys, GROUP, "dead", [entry.id for entry in first])
    return [
        (
            "payloads and previous deliveries",
            [(entry.job.payload, entry.previous_deliveries) for entry in claimed],
        ),
        ("the dead worker renews its claims", queue.client.execute(renew)),
        ("running", queue.depth().running),
    ]


SCENARIOS: list[Scenario] = [
    add_single_jobs,
    add_many_jobs,
    fill_the_queue,
    deduplicate,
    cancel_jobs,
    reschedule_jobs,
    promote_due_jobs,
    process_batches,
    acknowledge_jobs,
    retry_jobs,
    process_dead_letters,
    process_dead_letters_by_page,
    run_repeats,
    claim_entries_of_a_dead_worker,
]


def run_scenario(client: Any, queue: Queue, scenario: Scenario) -> tuple[dict[str, str], str]:
    """Return the results by label and the keys afterwards, as text that is equal on all servers."""
    results = scenario(queue)
    state = dump(client, queue.keys)
    # Idempotency markers: the portable dialect writes one per call, the native one uses IDMP.
    state = {
        name: content for name, content in state.items() if not name.startswith("idempotency:")
    }
    requests = state.get("cancel_requests", {})
    for job_id, request in requests.items():  # the server's times of the request and its expiry
        requested_at, entry_id, expires_at, superseded = request.split(b" ")
        ttl_ms = int(expires_at) - int(requested_at)
        requests[job_id] = (entry_id.decode(), round(ttl_ms, -4), superseded)
    for name in {"dlq", "events"} & set(state):  # their ids may equal those of the stream
        state[name]["entries"] = [fields for _, fields in state[name]["entries"]]
    expires = {name: client.pttl(f"{queue.keys.hash_tag}:{name}") > 0 for name in state}
    normalize = _normalizer(queue.name)
    normalized = {label: normalize(value) for label, value in results}
    assert len(normalized) == len(results), "two steps of the scenario have the same label"
    return normalized, _normalizer(queue.name)({"keys": state, "expire": expires})


def _normalizer(queue_name: str) -> Callable[[Any], str]:
    """Return a function that replaces entry ids by numbers and the queue name by `q`."""
    numbers: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return numbers.setdefault(match[0], f"entry {len(numbers)}")

    # Only ids of the server have this form. The fixed clock of the queue is an hour earlier.
    return lambda value: re.sub(r"\b1\d{12}-\d+\b", number, repr(value).replace(queue_name, "q"))
