"""Transfer of messages between RSMQ queues and Chasqui queues, in both directions.

If both queues are on one server, each message is moved by an atomic script: exactly once, also
while other clients receive messages. Between two servers a message is received, added and deleted:
at least once, and a duplicate is detected for `dedup_ttl`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.commands import enqueue
from airflow_provider_chasqui.core.commands.rsmq import (
    JobToMessage,
    MessageToJob,
    TransferReport,
    add_external,
    move_jobs,
    move_messages_page,
)
from airflow_provider_chasqui.core.durations import to_ms
from airflow_provider_chasqui.core.errors import (
    DecodeError,
    EncodeError,
    InvalidArgument,
    LeaseLost,
)
from airflow_provider_chasqui.core.lease import Lease
from airflow_provider_chasqui.core.rsmq_types import RsmqKeys, RsmqMessage
from airflow_provider_chasqui.core.validation import require_int
from airflow_provider_chasqui.lease import LeaseQueue
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.target import RedisTarget
from airflow_provider_chasqui.rsmq.client import RsmqClient

PAGE_SIZE = 100

# A lease with the id and the text of its message, or with the reason why it has none.
Deliverable = list[tuple[Lease, str, str]]
Undeliverable = list[tuple[Lease, str]]
_MESSAGE_TOO_LONG = "Message too long for the RSMQ queue"


def same_server(first: RedisTarget, second: RedisTarget) -> bool:
    """Return whether one script can access the keys of both targets.

    Two names of one host count as two servers, which is slower but safe. In a cluster the queues
    are in different slots.

    :param first: a target.
    :param second: a target.
    """
    if first.cluster or second.cluster:
        return False
    addresses = [
        (target.nodes, target.db, target.unix_path, target.sentinel_master)
        for target in (first, second)
    ]
    return addresses[0] == addresses[1]


def migrate_from_rsmq(
    qname: str,
    queue: Queue,
    rsmq: RsmqClient,
    *,
    job_name: str | None = None,
    max_messages: int | None = None,
    keep_receive_count: bool = False,
    convert: Callable[[str], Any] | None = None,
    vt: timedelta = timedelta(minutes=1),
    dedup_ttl: timedelta = timedelta(days=1),
) -> TransferReport:
    """Move every visible message of an RSMQ queue to a Chasqui queue, oldest first.

    Hidden messages are not moved: they are delayed or in work. A job has the id of its message.

    :param qname: the name of the RSMQ queue.
    :param queue: the Chasqui queue.
    :param rsmq: the client of the RSMQ queue.
    :param job_name: the name of the jobs. Default: `rsmq:<queue>`.
    :param max_messages: the maximum number of messages to move. None: no limit.
    :param keep_receive_count: count the receives of a message as attempts of the job.
    :param convert: the function that makes the payload from the text of a message. If it raises
        ValueError, the text is the payload, and the message is counted as `unconverted`. None keeps
        the text.
    :param vt: how long a message is hidden while it is copied to another server. The default is one
        minute.
    :param dedup_ttl: how long a duplicate is detected if there are two servers. The default is one
        day.
    :return: the counts.
    :raises InvalidArgument: if `max_messages` is below 1.
    :raises RsmqQueueNotFound: if the RSMQ queue does not exist.
    """
    _check_max_messages(max_messages)
    converter = MessageToJob(qname, job_name, keep_receive_count, convert)
    source = rsmq.flows.keys(qname)
    atomic = same_server(rsmq.target, queue.target)
    report = TransferReport()
    while (limit := _page_limit(max_messages, report)) > 0:
        if atomic:
            max_len = queue.config.max_len or 0
            flow = move_messages_page(
                rsmq.flows, source, queue.keys, converter, limit, max_len, current_time_ms()
            )
            count, page = queue.client.run_flow(flow)
        else:
            count, page = _copy_page_from_rsmq(
                source, queue, rsmq, converter, limit, vt, to_ms(dedup_ttl) or 1
            )
        if not count:
            break
        report += page
    return report


def _copy_page_from_rsmq(
    source: RsmqKeys,
    queue: Queue,
    rsmq: RsmqClient,
    converter: MessageToJob,
    limit: int,
    vt: timedelta,
    dedup_ttl_ms: int,
) -> tuple[int, TransferReport]:
    """Copy messages to another server and return their number and the counts."""
    receive = rsmq.flows.receive(source, to_ms(vt) or 1)
    received: list[RsmqMessage | None] = rsmq.client.pipeline([receive] * limit)
    messages = list({message.id: message for message in received if message is not None}.values())
    with_body = [message for message in messages if message.raw is not None]
    created = unconverted = 0
    if with_body:
        encoded = [
            converter.encode_job(message, current_time_ms(), dedup_ttl_ms) for message in with_body
        ]
        jobs = [job for job, _ in encoded]
        # The token is derived from the first message, so the same page sent again adds nothing.
        token = f"rsmq:{with_body[0].id}:{with_body[0].rc}"
        command = enqueue.add_jobs(queue.keys, jobs, queue.config.max_len or 0, token)
        flags: list[bool] = queue.client.execute(command)
        created = sum(flags)
        unconverted = sum(
            flag and not converted for flag, (_, converted) in zip(flags, encoded, strict=True)
        )
    rsmq.client.pipeline([rsmq.flows.delete(source, message.id) for message in messages])
    dropped = len(messages) - len(with_body)
    return len(messages), TransferReport(
        created, dropped, len(with_body) - created, unconverted=unconverted
    )


def migrate_to_rsmq(
    queue: LeaseQueue,
    qname: str,
    rsmq: RsmqClient,
    *,
    max_messages: int | None = None,
    convert: Callable[[Any], str] | None = None,
    dedup_ttl: timedelta = timedelta(days=1),
    consumer: str = "rsmq-bridge",
) -> TransferReport:
    """Move every waiting job of a Chasqui queue to an RSMQ queue, oldest first.

    Workers may process jobs of the queue at the same time. Delayed jobs are moved when they are
    due. A job that cannot be converted to a message, or is too long for the RSMQ queue, is moved to
    the DLQ.

    :param queue: the Chasqui queue, in shared mode.
    :param qname: the name of the RSMQ queue. It must exist.
    :param rsmq: the client of the RSMQ queue.
    :param max_messages: the maximum number of jobs to move. None: no limit.
    :param convert: the function that makes the text of a message from a payload. Default: a
        string is used as it is, and other values are encoded as JSON.
    :param dedup_ttl: how long a duplicate is detected if there are two servers. The default is one
        day.
    :param consumer: the name under which the jobs are leased.
    :return: the counts.
    :raises InvalidArgument: if `max_messages` is below 1, or the queue is exclusive.
    :raises RsmqQueueNotFound: if the RSMQ queue does not exist.
    """
    _check_max_messages(max_messages)
    if queue.config.exclusive:
        raise InvalidArgument(
            "jobs of an exclusive queue cannot be moved to RSMQ; use a shared LeaseConfig",
            queue_name=queue.name,
        )
    converter = JobToMessage(queue.name, convert)
    destination = rsmq.flows.keys(qname)
    atomic = same_server(rsmq.target, queue.target)
    rsmq.get_queue_attributes(qname)  # raises RsmqQueueNotFound before anything is leased
    report = TransferReport()
    while (limit := _page_limit(max_messages, report)) > 0:
        leases = queue.lease(consumer, limit)
        if not leases:
            break
        deliverable, undeliverable = _convert_leases(converter, leases)
        if atomic:
            report += _move_page_to_rsmq(queue, destination, rsmq, deliverable, undeliverable)
        else:
            report += _copy_page_to_rsmq(
                queue, destination, rsmq, deliverable, undeliverable, to_ms(dedup_ttl) or 1
            )
        for lease, reason in undeliverable:
            with suppress(LeaseLost):
                queue.dead_letter(lease, error=reason)
        report += TransferReport(dead_lettered=len(undeliverable))
    return report


def _convert_leases(
    converter: JobToMessage, leases: list[Lease]
) -> tuple[Deliverable, Undeliverable]:
    deliverable: Deliverable = []
    undeliverable: Undeliverable = []
    for lease in leases:
        try:
            deliverable.append((lease, converter.message_id(lease), converter.body(lease.job)))
        except (EncodeError, DecodeError) as error:
            undeliverable.append((lease, error.message))
    return deliverable, undeliverable


def _move_page_to_rsmq(
    queue: LeaseQueue,
    destination: RsmqKeys,
    rsmq: RsmqClient,
    deliverable: Deliverable,
    undeliverable: Undeliverable,
) -> TransferReport:
    """Move messages on one server; those that are too long are added to `undeliverable`."""
    if not deliverable:
        return TransferReport()
    command = move_jobs(queue.keys, queue.config.group, destination, rsmq.flows, deliverable)
    statuses: bytes = queue.client.execute(command)
    for (lease, _, _), status in zip(deliverable, statuses, strict=True):
        if status == ord("x"):
            undeliverable.append((lease, _MESSAGE_TOO_LONG))
    return TransferReport(statuses.count(b"1"))


def _copy_page_to_rsmq(
    queue: LeaseQueue,
    destination: RsmqKeys,
    rsmq: RsmqClient,
    deliverable: Deliverable,
    undeliverable: Undeliverable,
    dedup_ttl_ms: int,
) -> TransferReport:
    """Copy messages to another server; those that are too long are added to `undeliverable`."""
    commands = [
        add_external(destination, rsmq.flows, message_id, body, dedup_ttl_ms)
        for _, message_id, body in deliverable
    ]
    replies: list[int] = rsmq.client.pipeline(commands) if commands else []
    delivered = []
    for (lease, _, _), reply in zip(deliverable, replies, strict=True):
        if reply < 0:
            undeliverable.append((lease, _MESSAGE_TOO_LONG))
        else:
            delivered.append(lease)
    with suppress(LeaseLost):  # the next owner of the lease finds a duplicate
        queue.ack(*delivered)
    return TransferReport(replies.count(1), duplicates=replies.count(0))


def _check_max_messages(max_messages: int | None) -> None:
    if max_messages is not None:
        require_int("max_messages", max_messages, minimum=1)


def _page_limit(max_messages: int | None, report: TransferReport) -> int:
    """Return the size of the next page; 0 or less if the maximum is reached."""
    if max_messages is None:
        return PAGE_SIZE
    return min(PAGE_SIZE, max_messages - report.moved)
