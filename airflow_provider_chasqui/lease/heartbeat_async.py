"""Heartbeat of leases: extends them while work is in progress, and detects lost leases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from airflow_provider_chasqui.core.errors import ChasquiError, ConnectionFailed, LeaseLost
from airflow_provider_chasqui.core.lease import Lease
from airflow_provider_chasqui.core.lease_flows import LeaseOrToken
from airflow_provider_chasqui.lease.periodic_async import AsyncPeriodicTask


class AsyncLeaseHeartbeat:
    """Context manager that extends leases in the background until its block ends.

    :param extend: the function that extends leases.
    :param leases: leases or their tokens.
    :param interval: the seconds between two extensions.
    """

    def __init__(
        self,
        extend: Callable[..., Awaitable[object]],
        leases: Sequence[LeaseOrToken],
        interval: float,
    ):
        self._extend = extend
        self._leases = {_token(lease): lease for lease in leases}
        self._task = AsyncPeriodicTask(self._send, interval, "chasqui-heartbeat")
        #: The tokens of the leases that were lost.
        self.lost_tokens: list[str] = []
        #: The error that ended the heartbeat, if any.
        self.error: ChasquiError | None = None

    def remove(self, *leases: LeaseOrToken) -> None:
        """Stop extending leases, for example because they were acknowledged.

        :param leases: leases or their tokens.
        """
        for lease in leases:
            self._leases.pop(_token(lease), None)

    def check(self) -> None:
        """Raise an error if a lease was lost or the leases can no longer be extended.

        :raises LeaseLost: if a lease was lost. Another consumer may process the job as well.
        :raises ChasquiError: if the server refused to extend the leases.
        """
        if self.lost_tokens:
            raise LeaseLost(
                f"{len(self.lost_tokens)} leases were lost while work was in progress; another "
                "consumer may process the jobs again",
                tokens=tuple(self.lost_tokens),
            )
        if self.error is not None:
            raise self.error

    async def _send(self) -> None:
        leases = list(self._leases.values())
        try:
            if leases:
                await self._extend(*leases)
        except LeaseLost as error:
            for token in error.tokens:
                if self._leases.pop(token, None) is not None:
                    self.lost_tokens.append(token)
        except ConnectionFailed:
            pass  # the next heartbeat may reach the server again
        except ChasquiError as error:
            self.error = error
            self._leases.clear()

    async def __aenter__(self) -> Self:
        await self._task.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._task.stop()


def _token(lease: LeaseOrToken) -> str:
    return lease.token if isinstance(lease, Lease) else lease
