"""Discovery of queues and batches with SCAN, because ChasquiMQ keeps no list of them.

One call runs a few SCAN commands, so its cost does not depend on the number of keys. The next call
continues at the cursor of the last one. A name is removed when a complete scan does not find it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from airflow_provider_chasqui.core.command import Command, CommandFlow
from airflow_provider_chasqui.core.commands.inspect import ScanPage, scan_batches, scan_queues
from airflow_provider_chasqui.core.keys import Keys

_SCAN_COUNT = 2_000
_SCANS_PER_CALL = 10
_MAX_NAMES = 10_000
_MAX_BATCH_SCANS = 200
_RESCAN_INTERVAL_S = 5.0


@dataclass
class KeyspaceScan:
    """A scan of all keys that is spread over several calls.

    :param scan: returns the SCAN command for a cursor.
    """

    scan: Callable[[str], Command[ScanPage]]
    names: set[str] = field(default_factory=set)
    complete: bool = False
    _cursor: str = "0"
    _current_names: set[str] = field(default_factory=set)
    _scanned_at: float = float("-inf")

    def advance(self) -> CommandFlow[None]:
        """Scan some more keys, unless the last complete scan ended a few seconds ago."""
        if (
            self.complete
            and self._cursor == "0"
            and time.monotonic() - self._scanned_at < _RESCAN_INTERVAL_S
        ):
            return
        for _ in range(_SCANS_PER_CALL):
            page: ScanPage = yield self.scan(self._cursor)
            self._current_names.update(page.names[: _MAX_NAMES - len(self._current_names)])
            self._cursor = page.cursor
            if page.cursor == "0":
                self.names, self._current_names, self.complete = self._current_names, set(), True
                break
        self.names |= self._current_names
        self._scanned_at = time.monotonic()


class QueueDiscovery:
    """The queues and batches that were discovered on one server."""

    def __init__(self) -> None:
        self._queue_scans = [
            KeyspaceScan(partial(scan_queues, key_type=key_type, count=_SCAN_COUNT))
            for key_type in ("stream", "zset")
        ]
        self._batch_scans: dict[str, KeyspaceScan] = {}

    def queue_names(self) -> CommandFlow[tuple[set[str], bool]]:
        """Return the discovered queue names, and whether all keys were scanned at least once."""
        for scan in self._queue_scans:
            yield from scan.advance()
        names = set().union(*(scan.names for scan in self._queue_scans))
        return names, all(scan.complete for scan in self._queue_scans)

    def batch_ids(self, keys: Keys) -> CommandFlow[tuple[set[str], bool]]:
        """Return the discovered batch ids, and whether all keys were scanned at least once.

        :param keys: the keys of the queue.
        """
        if keys.queue_name not in self._batch_scans:
            if len(self._batch_scans) >= _MAX_BATCH_SCANS:
                self._batch_scans.clear()
            self._batch_scans[keys.queue_name] = KeyspaceScan(
                lambda cursor: scan_batches(keys, cursor, _SCAN_COUNT)
            )
        scan = self._batch_scans[keys.queue_name]
        yield from scan.advance()
        return scan.names, scan.complete
