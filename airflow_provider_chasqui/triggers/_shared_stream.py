"""The reader that all watchers of a queue share, told by Airflow what it has stored (3.3+)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Hashable, Sequence

from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from airflow_provider_chasqui.triggers._message_windows import MessageWindow, MessageWindowReader


class MessageWindowProducer(SharedStreamProducer):
    """Messages leave the queue only once Airflow says that their event is in its database.

    What is read and not yet judged is bounded by the inbox, so a slow database slows the reading.
    """

    def __init__(self, reader: MessageWindowReader):
        self._reader = reader

    async def open_stream(self) -> AsyncIterator[tuple[MessageWindow, MessageWindow]]:
        async with contextlib.aclosing(self._reader.read()) as stream:
            async for window in stream:
                yield window, window

    def get_advance_lane(self, broker_payload: MessageWindow) -> Hashable:
        return id(broker_payload)

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        for window, outcome in batch:
            if outcome.acked and not outcome.failed:
                self._reader.on_stored(window)
            else:
                self._reader.on_failed(window)

    async def aclose(self) -> None:
        await self._reader.close()
