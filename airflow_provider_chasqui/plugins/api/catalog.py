"""Which queues and batches there are: the wire has no list of them, so they are looked for.

A look is a few turns of SCAN, so it costs little however many keys the server holds; the next look
goes on where the last one stopped. What was found is kept until a whole round did not see it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Flow, Op
from airflow_provider_chasqui.core.ops.browsing import Scanned, scan_batches, scan_queues

_COUNT = 2_000
_TURNS = 10
_MOST = 10_000
_EVERY = 5.0


@dataclass
class Round:
    """A walk through the whole keyspace, in several looks."""

    scan: Callable[[str], Op[Scanned]]
    names: set[str] = field(default_factory=set)
    complete: bool = False
    _cursor: str = "0"
    _seen: set[str] = field(default_factory=set)
    _looked_at: float = float("-inf")

    def look(self) -> Flow[None]:
        """Go some steps further, unless the last round has just ended."""
        if self.complete and self._cursor == "0" and time.monotonic() - self._looked_at < _EVERY:
            return
        for _ in range(_TURNS):
            found: Scanned = yield self.scan(self._cursor)
            self._seen.update(found.names[: _MOST - len(self._seen)])
            self._cursor = found.cursor
            if found.cursor == "0":
                self.names, self._seen, self.complete = self._seen, set(), True
                break
        self.names |= self._seen
        self._looked_at = time.monotonic()


class Catalog:
    """What is known of the keys on one server."""

    def __init__(self) -> None:
        self._queues = [
            Round(lambda cursor, kind=kind: scan_queues(cursor, kind, _COUNT))  # type: ignore[misc]
            for kind in ("stream", "zset")
        ]
        self._batches: dict[str, Round] = {}

    def queues(self) -> Flow[tuple[set[str], bool]]:
        """Return the names of queues that were found, and whether all keys were looked at."""
        for each in self._queues:
            yield from each.look()
        names = set().union(*(each.names for each in self._queues))
        return names, all(each.complete for each in self._queues)

    def batches(self, keys: Keys) -> Flow[tuple[set[str], bool]]:
        """Return the ids of batches that were found, and whether all keys were looked at."""
        if keys.queue not in self._batches:
            if len(self._batches) >= 200:
                self._batches.clear()
            self._batches[keys.queue] = Round(lambda cursor: scan_batches(keys, cursor, _COUNT))
        known = self._batches[keys.queue]
        yield from known.look()
        return known.names, known.complete
