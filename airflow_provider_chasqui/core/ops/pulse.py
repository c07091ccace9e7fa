"""What happened lately, counted: samples of the events stream, bounded however busy it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Flow, Op, command


@dataclass(frozen=True, slots=True)
class Beat:
    """One slice of time. With `sampled`, the counts are scaled up from its first events."""

    start_ms: int
    completed: int
    retried: int
    dead: int
    sampled: bool


def pulse(keys: Keys, now_ms: int, span_ms: int, beats: int, each: int) -> Flow[list[Beat]]:
    """Count the ends of jobs in `beats` slices of the last `span_ms`, oldest first.

    At most `each` events are read of a slice. Where there are more, the slice is taken to have
    gone on as it began, and says that it was sampled.
    """
    slice_ms = span_ms // beats
    # Aligned, so that the slices of one look and of the next are the same ones.
    first = (now_ms // slice_ms - beats + 1) * slice_ms
    starts = [first + index * slice_ms for index in range(beats)]
    found: list[Beat] = yield [_slice(keys, start, slice_ms, now_ms, each) for start in starts]
    return found


def _slice(keys: Keys, start_ms: int, slice_ms: int, now_ms: int, each: int) -> Op[Beat]:
    end_ms = start_ms + slice_ms - 1

    def read(reply: Sequence[Any]) -> Beat:
        counts = Counter(_name(raw[1]) for raw in reply)
        scale, sampled = 1.0, len(reply) == each
        if sampled:
            seen_ms = int(reply[-1][0].partition(b"-")[0]) - start_ms + 1
            scale = max(1.0, (min(end_ms, now_ms) - start_ms + 1) / seen_ms)
        completed, retried, dead = (
            round(counts[name] * scale) for name in (b"completed", b"retry-scheduled", b"dlq")
        )
        return Beat(start_ms, completed, retried, dead, sampled)

    return command("XRANGE", keys.events, start_ms, end_ms, "COUNT", each, parse=read)


def _name(fields: Sequence[bytes]) -> bytes:
    for index in range(0, len(fields) - 1, 2):
        if fields[index] == b"e":
            return fields[index + 1]
    return b""
