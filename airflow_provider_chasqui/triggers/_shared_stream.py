"""The reader that all watchers of a queue share on Airflow 3.3 and later.

It is a separate module, because Airflow 3.1 and 3.2 have no `airflow.triggers.shared_stream`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Hashable, Sequence

from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from airflow_provider_chasqui.triggers._message_windows import MessageWindow, MessageWindowReader


class MessageWindowProducer(SharedStreamProducer):
    """Shared stream whose messages leave the queue after Airflow has stored their event.

    The number of pending messages is bounded, so a slow database slows the reader down.

    :param reader: the reader of the queue.
    """

    def __init__(self, reader: MessageWindowReader):
        self._reader = reader

    async def open_stream(self) -> AsyncIterator[tuple[MessageWindow, MessageWindow]]:
        """Yield each window as the item for the watchers and as the payload for `advance`."""
        async with contextlib.aclosing(self._reader.read()) as windows:
            async for window in windows:
                yield window, window

    def get_advance_lane(self, broker_payload: MessageWindow) -> Hashable:
        """Return a lane per window, because windows are completed in any order."""
        return id(broker_payload)

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Complete the windows whose events Airflow has stored, and retry the other ones."""
        for window, outcome in batch:
            if outcome.acked and not outcome.failed:
                self._reader.on_stored(window)
            else:
                self._reader.on_failed(window)

    async def aclose(self) -> None:
        await self._reader.close()
