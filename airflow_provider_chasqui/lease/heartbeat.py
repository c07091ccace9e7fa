"""Heartbeats: keep leases while work goes on, and notice when one is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Self

from airflow_provider_chasqui.core.errors import ChasquiError, ConnectionFailed, LeaseLost
from airflow_provider_chasqui.core.lease import Lease
from airflow_provider_chasqui.core.lease_flows import LeaseOrToken


class _HeartbeatBase:
    """What both colours have in common: which leases are kept, and which were lost."""

    def __init__(self, leases: Sequence[LeaseOrToken], interval: float):
        self._leases = {_token(lease): lease for lease in leases}
        self._interval = interval
        self.lost_tokens: list[str] = []
        self.error: ChasquiError | None = None

    def remove(self, *leases: LeaseOrToken) -> None:
        """Stop keeping leases that were settled meanwhile."""
        for lease in leases:
            self._leases.pop(_token(lease), None)

    def check(self) -> None:
        """Raise LeaseLost if a lease was lost: what was done since may be done by others too."""
        if self.lost_tokens:
            raise LeaseLost(
                f"{len(self.lost_tokens)} leases were lost while work went on",
                tokens=tuple(self.lost_tokens),
            )
        if self.error is not None:
            raise self.error

    def _record_error(self, error: ChasquiError) -> None:
        if isinstance(error, LeaseLost):
            for token in error.tokens:
                if self._leases.pop(token, None) is not None:
                    self.lost_tokens.append(token)
        elif not isinstance(error, ConnectionFailed):  # the next beat may reach the server again
            self.error = error
            self._leases.clear()


def _token(lease: LeaseOrToken) -> str:
    return lease.token if isinstance(lease, Lease) else lease


class LeaseHeartbeat(_HeartbeatBase):
    """Extends leases in a thread until the block ends; `check` tells whether all still stand."""

    def __init__(
        self, extend: Callable[..., object], leases: Sequence[LeaseOrToken], interval: float
    ):
        super().__init__(leases, interval)
        self._extend = extend
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chasqui-heartbeat", daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            kept = list(self._leases.values())
            try:
                if kept:
                    self._extend(*kept)
            except ChasquiError as problem:
                self._record_error(problem)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class AsyncLeaseHeartbeat(_HeartbeatBase):
    """Extends leases in a task until the block ends; `check` tells whether all still stand."""

    def __init__(
        self,
        extend: Callable[..., Awaitable[object]],
        leases: Sequence[LeaseOrToken],
        interval: float,
    ):
        super().__init__(leases, interval)
        self._extend = extend
        self._task: asyncio.Task[None] | None = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            kept = list(self._leases.values())
            try:
                if kept:
                    await self._extend(*kept)
            except ChasquiError as problem:
                self._record_error(problem)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
