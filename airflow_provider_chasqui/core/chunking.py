"""Split bulk writes into chunks that are bounded by number and size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

# Limits of one script call.
MAX_CHUNK_JOBS, MAX_CHUNK_BYTES = 256, 1024 * 1024
# Limits of one pipeline. Redis remembers the last 100 idempotent ids of a producer by default, so a
# pipeline that is sent again must have fewer chunks.
MAX_PIPELINE_CHUNKS, MAX_PIPELINE_BYTES = 64, 16 * 1024 * 1024


def chunked(
    items: Iterable[T], size_of: Callable[[T], int], max_items: int, max_bytes: int
) -> Iterator[list[T]]:
    """Yield the items in lists of bounded length and size.

    :param items: the items.
    :param size_of: returns the size of an item in bytes.
    :param max_items: the maximum number of items per list.
    :param max_bytes: the maximum size of a list. An item that is larger has a list to itself.
    """
    chunk: list[T] = []
    chunk_bytes = 0
    for item in items:
        item_bytes = size_of(item)
        if chunk and (len(chunk) >= max_items or chunk_bytes + item_bytes > max_bytes):
            yield chunk
            chunk, chunk_bytes = [], 0
        chunk.append(item)
        chunk_bytes += item_bytes
    if chunk:
        yield chunk
