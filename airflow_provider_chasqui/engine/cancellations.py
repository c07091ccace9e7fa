"""Cancelled jobs and batches: what a worker must drop or interrupt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from airflow_provider_chasqui.core.command import AnyCommand
from airflow_provider_chasqui.core.commands import batches, cancellation
from airflow_provider_chasqui.core.errors import KeyTypeMismatch
from airflow_provider_chasqui.core.job import StreamEntry
from airflow_provider_chasqui.core.keys import BATCH_PREFIX, Keys
from airflow_provider_chasqui.engine.backoff import ErrorBackoff
from airflow_provider_chasqui.redis_client.client_async import AsyncRedisClient

_PAGE_SIZE = 1000


class Cancellations:
    """What one consumer knows about cancelled jobs and batches.

    `refresh` reads which batches were cancelled since the last call, so that `find` sends nothing
    for jobs of other batches. The hash of a batch decides whether it is cancelled, because a batch
    that has expired may have been sent again under the same id.

    `has_requests` tells whether the cancellation of single jobs was requested.

    If another program has written one of the keys, nothing is cancelled until it is deleted, and
    jobs go on running.

    :param keys: the keys of the queue.
    """

    def __init__(self, keys: Keys):
        self._keys = keys
        self.has_requests = False
        # Batches that were cancelled, and those of them whose hash said so.
        self._cancelled_batches: set[str] = set()
        self._confirmed_batches: set[str] = set()
        self._last_cancel = 0
        # The times of the requests that `find` has applied, by job id.
        self._requested_at_ms: dict[str, int] = {}
        self._backoff = ErrorBackoff("cancellations")

    async def reload(self, client: AsyncRedisClient) -> None:
        """Read all cancellations, because a failover may have lost the latest ones.

        :param client: the client to ask.
        """
        self._last_cancel = 0
        self._cancelled_batches.clear()
        self._confirmed_batches.clear()
        await self.refresh(client)

    async def refresh(self, client: AsyncRedisClient) -> None:
        """Read the cancellations since the last call, normally in one round trip.

        :param client: the client to ask.
        """
        try:
            await self._refresh(client)
        except KeyTypeMismatch as error:
            self.has_requests = False
            self._backoff.record(error)
        else:
            self._backoff.reset()

    async def _refresh(self, client: AsyncRedisClient) -> None:
        while True:
            self.has_requests, cancelled = await client.pipeline(
                [
                    cancellation.any_requested(self._keys),
                    batches.cancelled_after(self._keys, self._last_cancel, _PAGE_SIZE),
                ]
            )
            if not self.has_requests:
                self._requested_at_ms.clear()
            for batch_id, score in cancelled:
                self._cancelled_batches.add(batch_id)
                self._last_cancel = max(self._last_cancel, score)
            if len(cancelled) < _PAGE_SIZE:
                return

    async def find(
        self, client: AsyncRedisClient, entries: Sequence[StreamEntry]
    ) -> list[StreamEntry]:
        """Return the entries whose job or batch is cancelled.

        :param client: the client to ask.
        :param entries: the entries.
        """
        batch_ids: dict[str, bool] = {}
        if self._cancelled_batches:
            batch_ids = {
                batch_id: False
                for entry in entries
                if (batch_id := _batch_id(entry.job.id)) in self._cancelled_batches
            }
        commands: list[AnyCommand[Any]] = [
            batches.is_cancelled(self._keys, batch_id) for batch_id in batch_ids
        ]
        if self.has_requests and entries:
            job_ids = [entry.job.id for entry in entries]
            commands.append(cancellation.get_requests(self._keys, job_ids))
        if not commands:
            return []
        replies = await client.pipeline(commands)
        for batch_id, cancelled in zip(batch_ids, replies, strict=False):
            batch_ids[batch_id] = cancelled
            if cancelled:
                self._confirmed_batches.add(batch_id)
            else:
                self._cancelled_batches.discard(batch_id)
                self._confirmed_batches.discard(batch_id)
        requests = replies[-1] if len(replies) > len(batch_ids) else [None] * len(entries)
        cancelled_entries = []
        for entry, request in zip(entries, requests, strict=True):
            if request is not None and request.applies_to(entry):
                self._requested_at_ms[entry.job.id] = request.requested_at_ms
                cancelled_entries.append(entry)
            elif batch_ids and batch_ids.get(_batch_id(entry.job.id)):
                cancelled_entries.append(entry)
        return cancelled_entries

    def pop_requests(self, job_ids: Iterable[str]) -> list[tuple[str, int]]:
        """Return the ids and the times of the requests that `find` has applied, and forget them.

        :param job_ids: the ids of dropped jobs.
        """
        found = self._requested_at_ms
        return [(job_id, found.pop(job_id)) for job_id in job_ids if job_id in found]

    def is_batch_cancelled(self, job_id: str) -> bool:
        """Return whether `find` has found the batch of a job to be cancelled.

        :param job_id: the id of the job.
        """
        return bool(self._confirmed_batches) and _batch_id(job_id) in self._confirmed_batches


def _batch_id(job_id: str) -> str:
    """Return the batch of a job, or an empty string. Faster than `parse_batch_job_id`."""
    return job_id[len(BATCH_PREFIX) :].rsplit(":", 2)[0] if job_id.startswith(BATCH_PREFIX) else ""
