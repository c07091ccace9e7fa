"""Pages of a stream that are bounded by the number and by the size of their entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_chasqui.core.command import Command, script_command

# The maximum size of the entries in one reply. A larger entry has a page to itself.
MAX_PAGE_BYTES = 8 * 1024 * 1024
# Enough of an envelope to read the job id and other metadata.
METADATA_BYTES = 4096

# The id of an entry, its fields and values, and their size in bytes. Values may be cut.
RawEntry = Sequence[Any]


@dataclass(frozen=True, slots=True)
class StreamPage:
    """Entries of a stream. If `has_more`, the range contains more of them."""

    entries: list[RawEntry]
    has_more: bool


def read_page(
    stream: str,
    start: str,
    end: str,
    count: int,
    *,
    newest_first: bool = False,
    max_value_bytes: int = 0,
) -> Command[StreamPage]:
    """Read a page of a stream: at most `count` entries and about `MAX_PAGE_BYTES`.

    :param stream: the key of the stream.
    :param start: the first id, as XRANGE (or XREVRANGE) takes it.
    :param end: the last id.
    :param count: the maximum number of entries.
    :param newest_first: the direction.
    :param max_value_bytes: cut values that are longer; 0 to return them whole. The size of an entry
        is that of its whole values, and so is the limit of the page.
    """
    command = "XREVRANGE" if newest_first else "XRANGE"
    return script_command(
        "read_page",
        _parse_page,
        [stream],
        [command, start, end, count, MAX_PAGE_BYTES, max_value_bytes],
    )


def read_entry(stream: str, entry_id: str, *, max_value_bytes: int = 0) -> Command[StreamPage]:
    """Read one entry of a stream. The page is empty if it does not exist.

    :param stream: the key of the stream.
    :param entry_id: the id of the entry.
    :param max_value_bytes: cut values that are longer; 0 to return them whole.
    """
    return read_page(stream, entry_id, entry_id, 1, max_value_bytes=max_value_bytes)


def _parse_page(reply: Any) -> StreamPage:
    return StreamPage(reply[1:], bool(reply[0]))


def is_cut(raw_entry: RawEntry) -> bool:
    """Return whether a value of an entry of `read_page` was cut.

    :param raw_entry: the entry.
    """
    size: int = raw_entry[2]
    return sum(map(len, raw_entry[1])) < size
