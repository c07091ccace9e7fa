"""Ids of stream entries: milliseconds and a sequence number, ordered as Redis orders them."""

from __future__ import annotations

from typing import NamedTuple

from airflow_provider_chasqui.core.errors import InvalidArgument

MAX_PART = 2**64 - 1


class StreamId(NamedTuple):
    """The id of a stream entry. Instances compare in stream order."""

    ms: int
    seq: int = 0

    @classmethod
    def parse(cls, text: str | bytes, name: str = "stream id") -> StreamId:
        """Return the id in `text`, which is `ms` or `ms-seq`.

        :param text: the id as Redis writes it.
        :param name: the name of the argument, for the error message.
        :raises InvalidArgument: if it is not an id.
        """
        value = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        ms, dash, seq = value.partition("-")
        if not (_is_number(ms) and (not dash or _is_number(seq))):
            raise InvalidArgument(f"{name} must have the form <ms> or <ms>-<seq>, not {value!r}")
        return cls(int(ms), int(seq) if dash else 0)

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"

    def next(self) -> StreamId:
        """Return the smallest id after this one."""
        return StreamId(self.ms, self.seq + 1) if self.seq < MAX_PART else StreamId(self.ms + 1)

    def previous(self) -> StreamId:
        """Return the largest id before this one; 0-0 has none and returns itself."""
        if self.seq:
            return StreamId(self.ms, self.seq - 1)
        return StreamId(self.ms - 1, MAX_PART) if self.ms else self


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) <= MAX_PART
