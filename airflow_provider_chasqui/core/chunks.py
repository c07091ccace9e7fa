"""Bulk in pieces that neither the server nor the network chokes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

# What one script call carries.
CHUNK_JOBS, CHUNK_BYTES = 256, 1024 * 1024
# What one pipeline carries; fewer calls than the 100 that Redis remembers of a producer.
WINDOW_CHUNKS, WINDOW_BYTES = 64, 16 * 1024 * 1024


def pieces(
    items: Iterable[T], size: Callable[[T], int], most: int, most_bytes: int
) -> Iterator[list[T]]:
    """Yield runs of items: at most `most`, and `most_bytes` unless one alone is larger."""
    run: list[T] = []
    total = 0
    for item in items:
        weight = size(item)
        if run and (len(run) >= most or total + weight > most_bytes):
            yield run
            run, total = [], 0
        run.append(item)
        total += weight
    if run:
        yield run
