"""Heartbeats: keep leases while work goes on, and notice when one is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Self

from airflow_provider_chasqui.core.errors import ChasquiError, LeaseLost, NotConnected
from airflow_provider_chasqui.core.lease import Lease
from airflow_provider_chasqui.core.lease_plan import AnyLease


class _Beat:
    """What both colours have in common: which leases are kept, and which were lost."""

    def __init__(self, leases: Sequence[AnyLease], every: float):
        self._kept = {_token(lease): lease for lease in leases}
        self._every = every
        self.lost: list[str] = []
        self.error: ChasquiError | None = None

    def forget(self, *leases: AnyLease) -> None:
        """Stop keeping leases that were settled meanwhile."""
        for lease in leases:
            self._kept.pop(_token(lease), None)

    def check(self) -> None:
        """Raise LeaseLost if a lease was lost: what was done since may be done by others too."""
        if self.lost:
            raise LeaseLost(
                f"{len(self.lost)} leases were lost while work went on", tokens=tuple(self.lost)
            )
        if self.error is not None:
            raise self.error

    def _note(self, problem: ChasquiError) -> None:
        if isinstance(problem, LeaseLost):
            for token in problem.tokens:
                if self._kept.pop(token, None) is not None:
                    self.lost.append(token)
        elif not isinstance(problem, NotConnected):  # the next beat may reach the server again
            self.error = problem
            self._kept.clear()


def _token(lease: AnyLease) -> str:
    return lease.token if isinstance(lease, Lease) else lease


class Heartbeat(_Beat):
    """Extends leases in a thread until the block ends; `check` tells whether all still stand."""

    def __init__(self, extend: Callable[..., object], leases: Sequence[AnyLease], every: float):
        super().__init__(leases, every)
        self._extend = extend
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chasqui-heartbeat", daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            kept = list(self._kept.values())
            try:
                if kept:
                    self._extend(*kept)
            except ChasquiError as problem:
                self._note(problem)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class AsyncHeartbeat(_Beat):
    """Extends leases in a task until the block ends; `check` tells whether all still stand."""

    def __init__(
        self,
        extend: Callable[..., Awaitable[object]],
        leases: Sequence[AnyLease],
        every: float,
    ):
        super().__init__(leases, every)
        self._extend = extend
        self._task: asyncio.Task[None] | None = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            kept = list(self._kept.values())
            try:
                if kept:
                    await self._extend(*kept)
            except ChasquiError as problem:
                self._note(problem)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
