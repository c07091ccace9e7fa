"""How a stream is cut into ranges of about equal size, without counting what is in it."""

from __future__ import annotations

from typing import Any

from airflow_provider_chasqui.core import replies
from airflow_provider_chasqui.core.op import Flow, Op, as_is, command

PAGE = 1000
_PROBES = 64
_ROUNDS = 3

Id = tuple[int, int]


def parse_id(text: str) -> Id:
    ms, _, number = text.partition("-")
    return int(ms), int(number or 0)


def page(key: str, start: str, end: str, count: int = PAGE) -> Op[list[Any]]:
    return command("XRANGE", key, start, end, "COUNT", count, parse=as_is)


def last_id(key: str) -> Op[str]:
    """The id that the stream has reached; "0-0" if there is none."""
    return command("XINFO", "STREAM", key, parse=replies.last_id, absent=lambda: "0-0")


def cut(key: str, start: Id, end: Id, parts: int) -> Flow[list[tuple[str, str]]]:
    """Return up to `parts` ranges (XRANGE start, end) that cover everything from start to end.

    Streams do not know ranks, and equal spans of time may be empty or crowded. So it is asked where
    anything is at all, ever more finely, and the time in which something is gets divided.
    """
    first = yield page(key, f"{start[0]}-{start[1]}", f"{end[0]}-{end[1]}", 1)
    if not first:
        return []
    low, high = parse_id(first[0][0].decode())[0], end[0] + 1
    spans = [(low, high)]
    for _ in range(_ROUNDS if parts > 1 else 0):
        spans = (yield from _occupied(key, spans)) or spans
    edges = _divide(spans, parts)
    starts = [f"{start[0]}-{start[1]}", *(f"{edge}-0" for edge in edges)]
    ends = [*(f"({edge}-0" for edge in edges), f"{end[0]}-{end[1]}"]
    return list(zip(starts, ends, strict=True))


def _occupied(key: str, spans: list[tuple[int, int]]) -> Flow[list[tuple[int, int]]]:
    each = max(2, _PROBES // len(spans))
    cells = []
    for low, high in spans:
        step = max(1, -(-(high - low) // each))
        cells += [(at, min(at + step, high)) for at in range(low, high, step)]
    # From both sides, so that the next round looks only where something is.
    edges = yield [
        probe
        for low, high in cells
        for probe in (
            page(key, f"{low}-0", f"({high}-0", 1),
            command("XREVRANGE", key, f"({high}-0", f"{low}-0", "COUNT", 1, parse=as_is),
        )
    ]
    found: list[tuple[int, int]] = []
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        if first and last:
            low, high = (parse_id(each[0][0].decode())[0] for each in (first, last))
            found.append((low, high + 1))
    return found


def _divide(spans: list[tuple[int, int]], parts: int) -> list[int]:
    """Return the times that cut spans into parts of equal length."""
    total = sum(high - low for low, high in spans)
    edges: list[int] = []
    passed, number = 0, 1
    for low, high in spans:
        while number < parts and passed + high - low >= total * number / parts:
            edge = low + int(total * number / parts) - passed
            if edge > (edges[-1] if edges else spans[0][0]) and edge < spans[-1][1]:
                edges.append(edge)
            number += 1
        passed += high - low
    return edges
