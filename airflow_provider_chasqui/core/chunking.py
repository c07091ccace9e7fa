"""Bulk in pieces that neither the server nor the network chokes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

# What one script call carries.
MAX_CHUNK_JOBS, MAX_CHUNK_BYTES = 256, 1024 * 1024
# What one pipeline carries; fewer calls than the 100 that Redis remembers of a producer.
MAX_PIPELINE_CHUNKS, MAX_PIPELINE_BYTES = 64, 16 * 1024 * 1024


def chunked(
    items: Iterable[T], size_of: Callable[[T], int], max_items: int, max_bytes: int
) -> Iterator[list[T]]:
    """Yield runs of items: at most `most`, and `most_bytes` unless one alone is larger."""
    run: list[T] = []
    total = 0
    for item in items:
        weight = size_of(item)
        if run and (len(run) >= max_items or total + weight > max_bytes):
            yield run
            run, total = [], 0
        run.append(item)
        total += weight
    if run:
        yield run
