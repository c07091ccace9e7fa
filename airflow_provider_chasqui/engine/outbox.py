"""Outcomes of one kind on their way to the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from airflow_provider_chasqui.core.chunks import CHUNK_BYTES, CHUNK_JOBS, pieces
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.op import AnyOp
from airflow_provider_chasqui.engine.health import Health

T = TypeVar("T")


@dataclass(slots=True)
class Parked:
    """An entry that goes back to the delayed set; after a failure, or because it wished so."""

    row: tuple[str, int, bytes]
    name: str
    failed: bool
    event: Sequence[str | int] | None = None


class Outbox(Generic[T]):
    """Outcomes that become operations chunk by chunk.

    One that is refused (out of memory, say) rests for a while, so that the others go on at full
    speed.
    """

    def __init__(
        self,
        what: str,
        make: Callable[[list[T]], AnyOp[Any]],
        accept: Callable[[list[T], Any], None] | None = None,
        weight: Callable[[T], int] | None = None,
    ):
        self.items: list[T] = []
        self.make = make
        self.under_way = 0
        self.rests_until = 0.0
        self._accept = accept
        self._weight = weight
        self._health = Health(f"settling {what}")

    def take(self) -> list[list[T]]:
        items, self.items = self.items, []
        self.under_way += len(items)
        if self._weight is not None:
            return list(pieces(items, self._weight, CHUNK_JOBS, CHUNK_BYTES))
        return [items[i : i + CHUNK_JOBS] for i in range(0, len(items), CHUNK_JOBS)]

    def accepted(self, chunk: list[T], answer: Any) -> None:
        self.under_way -= len(chunk)
        self._health.fine()
        if self._accept is not None:
            self._accept(chunk, answer)

    def refused(self, chunk: list[T], error: ChasquiError) -> None:
        self.put_back(chunk)
        self.rests_until = time.monotonic() + self._health.note(error)

    def put_back(self, chunk: list[T]) -> None:
        self.under_way -= len(chunk)
        self.items[:0] = chunk
