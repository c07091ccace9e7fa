"""Partitioning of a stream into id ranges of about equal size."""

from __future__ import annotations

from typing import Any

from airflow_provider_chasqui.core.command import (
    Command,
    CommandFlow,
    as_last_generated_id,
    as_raw,
    redis_command,
)
from airflow_provider_chasqui.core.stream_id import StreamId

PAGE_SIZE = 1000
_MAX_PROBES = 64
_BISECTION_ROUNDS = 3


def read_page(key: str, start: str, end: str, count: int = PAGE_SIZE) -> Command[list[Any]]:
    """Return the command that reads at most `count` entries between two XRANGE bounds."""
    return redis_command("XRANGE", key, start, end, "COUNT", count, parse=as_raw)


def last_id(key: str) -> Command[StreamId]:
    """Return the command for the last generated id of a stream; 0-0 if it does not exist."""
    return redis_command(
        "XINFO",
        "STREAM",
        key,
        parse=lambda reply: StreamId.parse(as_last_generated_id(reply)),
        default_if_missing=lambda: StreamId(0),
    )


def split_range(
    key: str, start: StreamId, end: StreamId, partitions: int
) -> CommandFlow[list[tuple[str, str]]]:
    """Return at most `partitions` ranges that together cover all entries from start to end.

    Redis Streams have no rank index, and entries are not spread evenly over time. The flow probes
    ever smaller intervals to find those that contain entries, and divides their total duration.

    :param key: the key of the stream.
    :param start: the first id, inclusive.
    :param end: the last id, inclusive.
    :param partitions: the maximum number of ranges.
    :return: the XRANGE bounds of each range; an empty list if there are no entries.
    """
    first = yield read_page(key, str(start), str(end), 1)
    if not first:
        return []
    intervals = [(_entry_ms(first), end.ms + 1)]
    for _ in range(_BISECTION_ROUNDS if partitions > 1 else 0):
        intervals = (yield from _nonempty_intervals(key, intervals)) or intervals
    edges = _split_points(intervals, partitions)
    starts = [str(start), *(f"{edge}-0" for edge in edges)]
    ends = [*(f"({edge}-0" for edge in edges), str(end)]
    return list(zip(starts, ends, strict=True))


def _entry_ms(page: list[Any]) -> int:
    return StreamId.parse(page[0][0]).ms


def _nonempty_intervals(
    key: str, intervals: list[tuple[int, int]]
) -> CommandFlow[list[tuple[int, int]]]:
    """Divide each interval, and return the parts that contain entries, trimmed to them."""
    cells_per_interval = max(2, _MAX_PROBES // len(intervals))
    cells = []
    for low, high in intervals:
        step = max(1, -(-(high - low) // cells_per_interval))
        cells += [(ms, min(ms + step, high)) for ms in range(low, high, step)]
    # The first and the last entry of each cell, so that the next round skips its empty edges.
    pages = yield [
        probe
        for low, high in cells
        for probe in (
            read_page(key, f"{low}-0", f"({high}-0", 1),
            redis_command("XREVRANGE", key, f"({high}-0", f"{low}-0", "COUNT", 1, parse=as_raw),
        )
    ]
    return [
        (_entry_ms(first), _entry_ms(last) + 1)
        for first, last in zip(pages[::2], pages[1::2], strict=True)
        if first and last
    ]


def _split_points(intervals: list[tuple[int, int]], partitions: int) -> list[int]:
    """Return the times that divide the intervals into partitions of equal total duration."""
    total = sum(high - low for low, high in intervals)
    edges: list[int] = []
    passed, number = 0, 1
    for low, high in intervals:
        while number < partitions and passed + high - low >= total * number / partitions:
            edge = low + int(total * number / partitions) - passed
            if edge > (edges[-1] if edges else intervals[0][0]) and edge < intervals[-1][1]:
                edges.append(edge)
            number += 1
        passed += high - low
    return edges
