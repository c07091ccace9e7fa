"""What happened lately, counted: samples of the events stream, bounded however busy it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Flow, Op, as_int, command


@dataclass(frozen=True, slots=True)
class Beat:
    """One slice of time. With `sampled`, the counts are scaled up from its first events."""

    start_ms: int
    completed: int
    retried: int
    dead: int
    sampled: bool


@dataclass(frozen=True, slots=True)
class _Slice:
    start_ms: int
    counts: Counter[bytes]
    seen: int
    # How many events the slice has if it went on as it began; what was seen, if that was all.
    guess: float
    full: bool


def pulse(keys: Keys, now_ms: int, span_ms: int, beats: int, each: int) -> Flow[list[Beat]]:
    """Count the ends of jobs in `beats` slices of the last `span_ms`, oldest first.

    At most `each` events are read of a slice. Where there are more, their number is guessed from
    how dense the first ones are, and the guesses are fitted to the length of the stream, which is
    known: if all of it lies in the span, their sum is right.
    """
    slice_ms = span_ms // beats
    # Aligned, so that the slices of one look and of the next are the same ones.
    begin_ms = (now_ms // slice_ms - beats + 1) * slice_ms
    starts = [begin_ms + index * slice_ms for index in range(beats)]
    length, first_ms, *slices = yield [
        command("XLEN", keys.events, parse=as_int),
        command("XRANGE", keys.events, "-", "+", "COUNT", 1, parse=_first_ms),
        *(_slice(keys, start, slice_ms, now_ms, each) for start in starts),
    ]
    exact = sum(each.seen for each in slices if not each.full)
    guessed = sum(each.guess for each in slices if each.full)
    fit = max(0, length - exact) / guessed if guessed else 1.0
    if first_ms < begin_ms:  # older events take part in the length, so it is only a bound
        fit = min(1.0, fit)
    return [_beat(each, fit) for each in slices]


def _first_ms(reply: Sequence[Any]) -> int:
    return _ms(reply[0]) if reply else 0


def _ms(raw: Sequence[Any]) -> int:
    return int(raw[0].partition(b"-")[0])


def _slice(keys: Keys, start_ms: int, slice_ms: int, now_ms: int, each: int) -> Op[_Slice]:
    end_ms = start_ms + slice_ms - 1

    def read(reply: Sequence[Any]) -> _Slice:
        counts, seen = Counter(_name(raw[1]) for raw in reply), len(reply)
        guess, full = float(seen), seen == each
        if full:
            took_ms = _ms(reply[-1]) - start_ms + 1
            guess *= max(1.0, (min(end_ms, now_ms) - start_ms + 1) / took_ms)
        return _Slice(start_ms, counts, seen, guess, full)

    return command("XRANGE", keys.events, start_ms, end_ms, "COUNT", each, parse=read)


def _beat(part: _Slice, fit: float) -> Beat:
    scale = max(1.0, part.guess * fit / part.seen) if part.full else 1.0
    completed, retried, dead = (
        round(part.counts[name] * scale) for name in (b"completed", b"retry-scheduled", b"dlq")
    )
    return Beat(part.start_ms, completed, retried, dead, part.full)


def _name(fields: Sequence[bytes]) -> bytes:
    for index in range(0, len(fields) - 1, 2):
        if fields[index] == b"e":
            return fields[index + 1]
    return b""
