"""Cancel single jobs: remove a delayed job, or request that workers drop or interrupt the job.

The order of a cancel and of the adds with the same job id is decided on the server, not by the
clocks of the producers. A request has the id of the last entry of the stream: every entry up to it
existed before the cancel. A retry of such an entry has a later id, but was created before the time
of the request. The scripts that add a job give it a later creation time than the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_chasqui.core.batch import parse_batch_job_id
from airflow_provider_chasqui.core.command import (
    Command,
    CommandFlow,
    as_bool,
    as_int,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.commands.batch_keys import BatchKeyIndexer
from airflow_provider_chasqui.core.commands.delayed import find_member
from airflow_provider_chasqui.core.commands.idempotency import (
    IDEMPOTENCY_TTL_MS,
    marker_of_new_call,
)
from airflow_provider_chasqui.core.job import StreamEntry
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.resp import Arg
from airflow_provider_chasqui.core.stream_id import StreamId

REQUEST_TTL_MS = 24 * 3600 * 1000

NOT_DELAYED, REMOVED, REQUESTED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """A request that workers drop or interrupt the jobs with an id.

    :param requested_at_ms: the time of the request, in milliseconds.
    :param last_entry_id: the last entry of the stream at that time.
    :param superseded: whether a job with the id was added after the request.
    """

    requested_at_ms: int
    last_entry_id: StreamId
    superseded: bool

    def applies_to(self, entry: StreamEntry) -> bool:
        """Return whether the job of an entry was added before the request.

        :param entry: the entry.
        """
        return (
            self.requested_at_ms >= entry.job.created_at_ms
            or StreamId.parse(entry.id) <= self.last_entry_id
        )


def parse_request(raw: bytes | None) -> CancelRequest | None:
    """Parse a cancel request. None if there is none, or if another program has written it.

    :param raw: `<time in ms> <last entry id> <expiry in ms> <0 or 1: superseded>`.
    """
    fields = (raw or b"").split(b" ")
    if len(fields) != 4 or not fields[0].isdigit():
        return None
    ms, _, seq = fields[1].partition(b"-")
    if not (ms.isdigit() and seq.isdigit()):
        return None
    return CancelRequest(int(fields[0]), StreamId(int(ms), int(seq)), fields[3] == b"1")


def cancel(keys: Keys, job_id: str) -> CommandFlow[bool]:
    """Remove a job from the delayed set, or request that workers drop or interrupt it.

    :param keys: the keys of the queue.
    :param job_id: the id of the job.
    :return: True if the job was delayed and is removed, False if its cancellation is requested.
    """
    if (yield cancel_member(keys, job_id)) == REMOVED:
        return True
    found = yield from find_member(keys, job_id)
    member, created_at_ms = (b"", 0) if found is None else (found[0], found[2].created_at_ms)
    result: int = yield cancel_member(keys, job_id, member, created_at_ms, REQUEST_TTL_MS)
    return result == REMOVED


def cancel_member(
    keys: Keys,
    job_id: str,
    member: bytes = b"",
    created_at_ms: int = 0,
    request_ttl_ms: int = 0,
) -> Command[int]:
    """Remove a member from the delayed set. A job of a batch counts as dead afterwards.

    :param keys: the keys of the queue.
    :param job_id: the id of the job.
    :param member: the member; empty to take it from the index.
    :param created_at_ms: when the job was created, in milliseconds; 0 if it is not known.
    :param request_ttl_ms: if the job is not delayed, request that workers drop or interrupt it, for
        this time in milliseconds; 0 for no request.
    :return: a command that returns REMOVED, REQUESTED or NOT_DELAYED.
    """
    key_names = [
        marker_of_new_call(keys),
        keys.delayed,
        keys.delayed_index(job_id),
        keys.delayed_marker(job_id),
        keys.dedup_marker(job_id),
        keys.stream,
        keys.cancel_requests,
    ]
    args: list[Arg] = [IDEMPOTENCY_TTL_MS, member, job_id, request_ttl_ms]
    args += BatchKeyIndexer(keys, key_names).args(parse_batch_job_id(job_id), created_at_ms)
    return script_command("cancel", as_int, key_names, args)


def any_requested(keys: Keys) -> Command[bool]:
    """Return whether the cancellation of any job was requested.

    :param keys: the keys of the queue.
    """
    return redis_command("HLEN", keys.cancel_requests, parse=as_bool)


def get_requests(keys: Keys, job_ids: Sequence[str]) -> Command[list[CancelRequest | None]]:
    """Return the cancel request of each job, or None.

    :param keys: the keys of the queue.
    :param job_ids: the ids of the jobs.
    """
    return redis_command(
        "HMGET",
        keys.cancel_requests,
        *job_ids,
        parse=lambda reply: [parse_request(raw) for raw in reply],
    )


def clear_requests(keys: Keys, requests: Sequence[tuple[str, int]]) -> Command[int]:
    """Delete cancel requests of dropped jobs.

    A request stays as long as the stream has an entry from before it, which may be another job with
    the same id, and if a job with the id was cancelled again meanwhile.

    :param keys: the keys of the queue.
    :param requests: per request the id of the job and the time in milliseconds.
    :return: a command that returns the number of deleted requests.
    """
    args: list[Arg] = [arg for request in requests for arg in request]
    return script_command(
        "clear_cancel_requests", as_int, [keys.cancel_requests, keys.stream], args
    )
