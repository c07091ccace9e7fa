"""Reads the parts of a history: the files of the processes, and the keys on the server."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgpack

from tests.chaos.harness.history import (
    Add,
    BatchState,
    Cancel,
    DeadLetter,
    FaultEvent,
    History,
    Run,
)
from tests.chaos.harness.plan import JobSpec


def read_runs(folder: Path) -> list[Run]:
    """Return the runs of all worker processes, ordered by start."""
    runs: list[Run] = []
    for file in folder.glob("*.runs"):
        runs += _pair(int(file.stem), _lines(file))
    return sorted(runs, key=lambda run: run.start)


def read_stalls(folder: Path) -> list[FaultEvent]:
    """Return the times in which worker processes did not run, as they recorded them."""
    return [
        FaultEvent("stall", began, ended, (int(file.stem),))
        for file in folder.glob("*.runs")
        for action, began, ended, *_ in _lines(file)
        if action == "stall"
    ]


def read_calls(folder: Path, history: History) -> None:
    """Add the calls of all producers to the history. A call without an end has no known outcome."""
    for file in sorted(folder.glob("producer-*.calls")):
        lines = list(_lines(file))
        for line, following in zip(lines, [*lines[1:], None], strict=True):
            if line[0] != "begin":
                continue
            _, verb, ids, began, skewed = line
            outcome, ended, values = "unknown", time.monotonic(), list[Any]()
            if following is not None:
                ended = following[3]
                skewed = skewed or following[4]
            if following is not None and following[0] == "end":
                outcome, values = following[2], following[5]
            _add_call(history, verb, ids, (began, ended), outcome, values, skewed)


def _add_call(
    history: History,
    verb: str,
    ids: list[str],
    interval: tuple[float, float],
    outcome: str,
    values: list[Any],
    skewed: bool,
) -> None:
    if verb == "repeat":
        history.repeat_added = interval[0]
        history.repeat_skewed = skewed
    elif verb == "batch":
        history.batches_sent += ids if outcome == "acked" else []
    elif verb == "cancel":
        result = values[0] if outcome == "acked" else "unknown"
        history.cancels.append(Cancel(ids[0], *interval, result))
    else:
        # A call for several jobs may have added the first ones before it was refused.
        if outcome == "refused" and len(ids) > 1:
            outcome = "unknown"
        for job_id, created in zip(ids, values or [True] * len(ids), strict=True):
            history.adds.append(Add(job_id, *interval, outcome, created, skewed))


def _lines(file: Path) -> Iterator[list[Any]]:
    for line in file.read_bytes().splitlines():
        yield json.loads(line)


def _pair(pid: int, lines: Iterable[list[Any]]) -> list[Run]:
    """Combine the start and end lines of a process into runs.

    If runs of one attempt overlap, the one that started first ends first.
    """
    active: dict[tuple[str, int], list[Run]] = defaultdict(list)
    complete: list[Run] = []
    for action, job_id, attempt, *rest in lines:
        if action == "stall":
            continue
        at, name, extra = rest
        if action == "start":
            run = Run(job_id, attempt, pid, at, name=name, digest=extra)
            active[job_id, attempt].append(run)
        else:
            run = active[job_id, attempt].pop(0)
            complete.append(
                Run(job_id, attempt, pid, run.start, at, action, name, run.digest, extra)
            )
    return complete + [run for runs in active.values() for run in runs]


def read_server(client: Any, queue_name: str, history: History) -> None:
    """Add the final state of a queue on the server to the history."""
    tag = f"{{chasqui:{queue_name}}}"
    # The server's clock is the system clock, which the tests do not change.
    wall_clock_ahead_s = time.time() - time.monotonic()

    def time_of(entry_id: bytes) -> float:
        return int(entry_id.partition(b"-")[0]) / 1000 - wall_clock_ahead_s

    for entry_id, fields in client.xrange(f"{tag}:dlq"):
        history.dead_letters.append(
            DeadLetter(
                job_id_of(fields[b"d"]),
                fields[b"reason"].decode(),
                int(fields.get(b"attempts", 0)),
                time_of(entry_id),
            )
        )
    for _, fields in client.xrange(f"{tag}:stream"):
        history.remaining.append(job_id_of(fields[b"d"]))
    for member in client.zrange(f"{tag}:delayed", 0, -1):
        history.remaining.append(repr(member[-80:]))
    history.repeat_remains |= bool(client.zcard(f"{tag}:repeat"))
    for entry_id, fields in client.xrange(f"{tag}:events"):
        if fields.get(b"e") == b"completed":
            key = (fields[b"id"].decode(), int(fields[b"attempt"]) - 1)
            history.acked_at.setdefault(key, time_of(entry_id))
    _read_results(client, tag, history)


def read_batches(client: Any, queue_name: str, history: History) -> None:
    """Add the final state of the batches of a queue to the history."""
    tag = f"{{chasqui:{queue_name}}}"
    for batch_id in history.batches_sent:
        key = f"{tag}:batch:{batch_id}"
        total = client.hget(key, "total")
        done, dead = (set_bits(client.get(f"{key}:0:{state}") or b"") for state in ("done", "dead"))
        history.batches[batch_id] = BatchState(None if total is None else int(total), done, dead)


def _read_results(client: Any, tag: str, history: History) -> None:
    specs: list[JobSpec] = [spec for spec in history.scenario.specs if spec.stores_result]
    values = client.mget([f"{tag}:result:{spec.id}" for spec in specs]) if specs else []
    for spec, value in zip(specs, values, strict=True):
        if value is not None:
            history.results[spec.id] = msgpack.unpackb(value, raw=False, strict_map_key=False)


def set_bits(bitmap: bytes) -> frozenset[int]:
    """Return the positions of the bits that are set."""
    return frozenset(
        8 * position + bit
        for position, byte in enumerate(bitmap)
        for bit in range(8)
        if byte & (0x80 >> bit)
    )


def job_id_of(envelope: bytes) -> str:
    """Return the job id in an envelope."""
    return str(msgpack.unpackb(envelope, raw=False, strict_map_key=False)[0])
