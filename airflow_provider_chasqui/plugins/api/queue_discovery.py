"""Which queues and batches there are: the wire has no list of them, so they are looked for.

A look is a few turns of SCAN, so it costs little however many keys the server holds; the next look
goes on where the last one stopped. What was found is kept until a whole round did not see it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_provider_chasqui.core.command import Command, CommandFlow
from airflow_provider_chasqui.core.commands.inspect import ScanPage, scan_batches, scan_queues
from airflow_provider_chasqui.core.keys import Keys

_SCAN_COUNT = 2_000
_SCANS_PER_CALL = 10
_MAX_NAMES = 10_000
_RESCAN_INTERVAL_S = 5.0


@dataclass
class KeyspaceScan:
    """A walk through the whole keyspace, in several looks."""

    scan: Callable[[str], Command[ScanPage]]
    names: set[str] = field(default_factory=set)
    complete: bool = False
    _cursor: str = "0"
    _current_names: set[str] = field(default_factory=set)
    _scanned_at: float = float("-inf")

    def advance(self) -> CommandFlow[None]:
        """Go some steps further, unless the last round has just ended."""
        if (
            self.complete
            and self._cursor == "0"
            and time.monotonic() - self._scanned_at < _RESCAN_INTERVAL_S
        ):
            return
        for _ in range(_SCANS_PER_CALL):
            found: ScanPage = yield self.scan(self._cursor)
            self._current_names.update(found.names[: _MAX_NAMES - len(self._current_names)])
            self._cursor = found.cursor
            if found.cursor == "0":
                self.names, self._current_names, self.complete = self._current_names, set(), True
                break
        self.names |= self._current_names
        self._scanned_at = time.monotonic()


class QueueDiscovery:
    """What is known of the keys on one server."""

    def __init__(self) -> None:
        self._queue_scans = [
            KeyspaceScan(lambda cursor, kind=kind: scan_queues(cursor, kind, _SCAN_COUNT))  # type: ignore[misc]
            for kind in ("stream", "zset")
        ]
        self._batch_scans: dict[str, KeyspaceScan] = {}

    def queue_names(self) -> CommandFlow[tuple[set[str], bool]]:
        """Return the names of queues that were found, and whether all keys were looked at."""
        for each in self._queue_scans:
            yield from each.advance()
        names = set().union(*(each.names for each in self._queue_scans))
        return names, all(each.complete for each in self._queue_scans)

    def batch_ids(self, keys: Keys) -> CommandFlow[tuple[set[str], bool]]:
        """Return the ids of batches that were found, and whether all keys were looked at."""
        if keys.queue_name not in self._batch_scans:
            if len(self._batch_scans) >= 200:
                self._batch_scans.clear()
            self._batch_scans[keys.queue_name] = KeyspaceScan(
                lambda cursor: scan_batches(keys, cursor, _SCAN_COUNT)
            )
        known = self._batch_scans[keys.queue_name]
        yield from known.advance()
        return known.names, known.complete
