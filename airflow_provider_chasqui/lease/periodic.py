"""Periodic background task in a thread. `periodic_async.py` has the same for asyncio."""

from __future__ import annotations

import threading
from collections.abc import Callable


class PeriodicTask:
    """Daemon thread that calls a function repeatedly until it is stopped.

    :param function: the function. It must handle its errors.
    :param interval: the seconds before each call.
    :param name: the name of the thread.
    """

    def __init__(self, function: Callable[[], None], interval: float, name: str):
        self._function = function
        self._interval = interval
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Let the current call finish, then end the thread."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            self._function()
