"""The events stream of a queue: write events, read them, and follow one job through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_chasqui.core.command import (
    Command,
    CommandFlow,
    as_event,
    as_int,
    as_last_generated_id,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.event import DEFAULT_MAX_EVENTS, EncodedEvent, Event
from airflow_provider_chasqui.core.ids import ulid_timestamp_ms
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.resp import Arg, EncodedArgs

PAGE_SIZE = 1000
_TIMELINE_PAGE_SIZE = 2_000
_MAX_CLOCK_SKEW_MS = 3600 * 1000


def emit(
    keys: Keys, events: Sequence[Sequence[Arg]], max_events: int = DEFAULT_MAX_EVENTS
) -> Command[int]:
    """Write events in order.

    :param keys: the keys of the queue.
    :param events: the events, each a flat list of fields and values (see `event_fields`).
    :param max_events: the length to which the events stream is trimmed, approximately.
    :return: a command that returns the number of events written.
    """
    args: list[Arg] = [max_events]
    for fields in events:
        args.append(len(fields))
        args += fields
    return script_command("emit", as_int, [keys.events], args)


def emit_encoded(
    keys: Keys, events: Sequence[EncodedEvent], max_events: int = DEFAULT_MAX_EVENTS
) -> Command[int]:
    """Write events that are already encoded as RESP.

    :param keys: the keys of the queue.
    :param events: the events, as `encode_event` and its variants return them.
    :param max_events: the length to which the events stream is trimmed, approximately.
    :return: a command that returns the number of events written.
    """
    encoded = EncodedArgs(sum(count for count, _ in events), b"".join(data for _, data in events))
    return script_command("emit", as_int, [keys.events], [max_events, encoded])


def _parse_events(reply: Any) -> list[Event]:
    return [as_event(raw_entry) for raw_entry in reply]


def events_after(keys: Keys, after: str, count: int = PAGE_SIZE) -> Command[list[Event]]:
    """Read a page of events, oldest first.

    :param keys: the keys of the queue.
    :param after: the id of the entry after which the page begins.
    :param count: the maximum number of events.
    """
    return redis_command(
        "XRANGE", keys.events, f"({after}", "+", "COUNT", count, parse=_parse_events
    )


def events_newest_first(keys: Keys, end: str, count: int = PAGE_SIZE) -> Command[list[Event]]:
    """Read a page of events, newest first.

    :param keys: the keys of the queue.
    :param end: where the page begins, as XREVRANGE takes it: `+`, an entry id, or `(` and an id.
    :param count: the maximum number of events.
    """
    return redis_command("XREVRANGE", keys.events, end, "-", "COUNT", count, parse=_parse_events)


def wait_for_events(keys: Keys, after: str, count: int, block_ms: int) -> Command[list[Event]]:
    """Read events, and wait for the first one if there is none yet.

    :param keys: the keys of the queue.
    :param after: the id of the entry after which to read.
    :param count: the maximum number of events.
    :param block_ms: how long to wait, in milliseconds.
    :return: a command that returns the events, or an empty list after `block_ms`.
    """
    return redis_command(
        "XREAD",
        "COUNT",
        count,
        "BLOCK",
        block_ms,
        "STREAMS",
        keys.events,
        after,
        parse=lambda reply: _parse_events(reply[0][1]) if reply else [],
        block_ms=block_ms,
    )


def last_event_id(keys: Keys) -> Command[str]:
    """Return the id of the newest event, as a position to follow from; `0-0` if there is none.

    :param keys: the keys of the queue.
    """
    return redis_command(
        "XINFO", "STREAM", keys.events, parse=as_last_generated_id, default_if_missing=lambda: "0-0"
    )


@dataclass(frozen=True, slots=True)
class JobEventsPage:
    """The events of one job in one page of the events stream.

    `next_cursor` is the id after which the next page begins, or None if this page is the last.
    """

    events: list[Event]
    next_cursor: str | None


def job_events(keys: Keys, job_id: str, after: str, count: int) -> Command[JobEventsPage]:
    """Read a page of events and return those of one job.

    :param keys: the keys of the queue.
    :param job_id: the id of the job.
    :param after: the id of the entry after which the page begins.
    :param count: the number of events to read, of all jobs.
    """
    needle = job_id.encode("utf-8", "surrogatepass")

    def parse(reply: Any) -> JobEventsPage:
        candidates = [as_event(raw_entry) for raw_entry in reply if needle in raw_entry[1]]
        last_id = reply[-1][0].decode() if len(reply) == count else None
        return JobEventsPage([event for event in candidates if event.job_id == job_id], last_id)

    return redis_command("XRANGE", keys.events, f"({after}", "+", "COUNT", count, parse=parse)


@dataclass(frozen=True, slots=True)
class JobTimeline:
    """The events of one job, oldest first. `complete` is False if a limit ended the search."""

    events: list[Event]
    complete: bool


def job_timeline(
    keys: Keys,
    job_id: str,
    *,
    created_after_ms: int | None = None,
    max_events: int | None = None,
    max_scanned: int | None = None,
) -> CommandFlow[JobTimeline]:
    """Return the events of one job.

    :param keys: the keys of the queue.
    :param job_id: the id of the job.
    :param created_after_ms: skip older events. Default: the time in the id if it is a ULID, minus
        an hour for clocks that differ; otherwise nothing is skipped.
    :param max_events: the maximum number of events to return; None for no limit.
    :param max_scanned: stop after about this many events of all jobs; None for no limit.
    """
    start_ms = earliest_creation_ms(job_id) if created_after_ms is None else created_after_ms
    cursor: str | None = f"{start_ms or 0}-0"
    timeline: list[Event] = []
    scanned = 0
    while cursor is not None:
        if max_scanned is not None and scanned >= max_scanned:
            return JobTimeline(timeline, False)
        page = yield job_events(keys, job_id, cursor, _TIMELINE_PAGE_SIZE)
        timeline += page.events
        scanned += _TIMELINE_PAGE_SIZE
        cursor = page.next_cursor
        if max_events is not None and len(timeline) >= max_events:
            complete = cursor is None and len(timeline) == max_events
            return JobTimeline(timeline[:max_events], complete)
    return JobTimeline(timeline, True)


def earliest_creation_ms(job_id: str) -> int | None:
    """Return the time before which the job cannot have been created, or None if unknown.

    The time comes from the id if it is a ULID. An hour is subtracted because the clock of the
    producer and the clock of the server may differ.

    :param job_id: the id of the job.
    """
    created_ms = ulid_timestamp_ms(job_id)
    return None if created_ms is None else max(0, created_ms - _MAX_CLOCK_SKEW_MS)
