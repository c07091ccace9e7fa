"""How a stream is cut into ranges of about equal size, without counting what is in it."""

from __future__ import annotations

from typing import Any

from airflow_provider_chasqui.core import command
from airflow_provider_chasqui.core.command import Command, CommandFlow, as_raw, redis_command

PAGE_SIZE = 1000
_MAX_PROBES = 64
_BISECTION_ROUNDS = 3

StreamId = tuple[int, int]


def parse_stream_id(text: str) -> StreamId:
    ms, _, number = text.partition("-")
    return int(ms), int(number or 0)


def read_page(key: str, start: str, end: str, count: int = PAGE_SIZE) -> Command[list[Any]]:
    return redis_command("XRANGE", key, start, end, "COUNT", count, parse=as_raw)


def last_id(key: str) -> Command[str]:
    """The id that the stream has reached; "0-0" if there is none."""
    return redis_command(
        "XINFO", "STREAM", key, parse=command.as_last_generated_id, default_if_missing=lambda: "0-0"
    )


def split_range(
    key: str, start: StreamId, end: StreamId, partitions: int
) -> CommandFlow[list[tuple[str, str]]]:
    """Return up to `parts` ranges (XRANGE start, end) that cover everything from start to end.

    Streams do not know ranks, and equal spans of time may be empty or crowded. So it is asked where
    anything is at all, ever more finely, and the time in which something is gets divided.
    """
    first = yield read_page(key, f"{start[0]}-{start[1]}", f"{end[0]}-{end[1]}", 1)
    if not first:
        return []
    low, high = parse_stream_id(first[0][0].decode())[0], end[0] + 1
    spans = [(low, high)]
    for _ in range(_BISECTION_ROUNDS if partitions > 1 else 0):
        spans = (yield from _nonempty_ranges(key, spans)) or spans
    edges = _split_points(spans, partitions)
    starts = [f"{start[0]}-{start[1]}", *(f"{edge}-0" for edge in edges)]
    ends = [*(f"({edge}-0" for edge in edges), f"{end[0]}-{end[1]}"]
    return list(zip(starts, ends, strict=True))


def _nonempty_ranges(key: str, ranges: list[tuple[int, int]]) -> CommandFlow[list[tuple[int, int]]]:
    each = max(2, _MAX_PROBES // len(ranges))
    cells = []
    for low, high in ranges:
        step = max(1, -(-(high - low) // each))
        cells += [(at, min(at + step, high)) for at in range(low, high, step)]
    # From both sides, so that the next round looks only where something is.
    edges = yield [
        probe
        for low, high in cells
        for probe in (
            read_page(key, f"{low}-0", f"({high}-0", 1),
            redis_command("XREVRANGE", key, f"({high}-0", f"{low}-0", "COUNT", 1, parse=as_raw),
        )
    ]
    found: list[tuple[int, int]] = []
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        if first and last:
            low, high = (parse_stream_id(each[0][0].decode())[0] for each in (first, last))
            found.append((low, high + 1))
    return found


def _split_points(ranges: list[tuple[int, int]], partitions: int) -> list[int]:
    """Return the times that cut spans into parts of equal length."""
    total = sum(high - low for low, high in ranges)
    edges: list[int] = []
    passed, number = 0, 1
    for low, high in ranges:
        while number < partitions and passed + high - low >= total * number / partitions:
            edge = low + int(total * number / partitions) - passed
            if edge > (edges[-1] if edges else ranges[0][0]) and edge < ranges[-1][1]:
                edges.append(edge)
            number += 1
        passed += high - low
    return edges
