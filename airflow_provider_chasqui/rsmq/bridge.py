"""The bridge: `drain` empties an RSMQ queue into a Chasqui queue, `feed` goes the other way.

On one server a message is moved in one atomic script: exactly once, whoever else receives, pops or
moves. Between two servers it is received, added and deleted: at least once, and one that arrived
before is recognised for `remember`.
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
from airflow_provider_chasqui.lease import LeaseQueue
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.target import RedisTarget
from airflow_provider_chasqui.rsmq.client import RsmqClient

PAGE_SIZE = 100
_DEFAULT_DEDUP_TTL = timedelta(days=1)
_DEFAULT_VISIBILITY_TIMEOUT = timedelta(minutes=1)


def same_server(first: RedisTarget, second: RedisTarget) -> bool:
    """Whether one script can reach the keys of both. Two names of one host count as two servers,
    which is slower but safe; in a cluster the two queues lie in different slots.
    """
    if first.cluster or second.cluster:
        return False
    places = [(t.nodes, t.db, t.unix_path, t.sentinel_master) for t in (first, second)]
    return places[0] == places[1]


def migrate_from_rsmq(
    qname: str,
    queue: Queue,
    rsmq: RsmqClient,
    *,
    job_name: str | None = None,
    max_messages: int | None = None,
    keep_receive_count: bool = False,
    convert: Callable[[str], Any] | None = None,
    vt: timedelta = _DEFAULT_VISIBILITY_TIMEOUT,
    dedup_ttl: timedelta = _DEFAULT_DEDUP_TTL,
) -> TransferReport:
    """Move every visible message of an RSMQ queue to a Chasqui queue, oldest first, and return the
    counts.

    Hidden messages stay where they are: they are delayed or being worked on. Jobs are named `name`,
    or `rsmq:<queue>`, and have the message's id. `vt` and `remember` matter between two servers
    only: how long a message is hidden while it is under way, and how long it is recognised.
    """
    if max_messages is not None and max_messages < 1:
        raise InvalidArgument(
            f"max_messages must be at least 1, or None for all; not {max_messages}"
        )
    shape = MessageToJob(qname, job_name, keep_receive_count, convert)
    source = rsmq.flows.keys(qname)
    atomic = same_server(rsmq.target, queue.target)
    done = TransferReport()
    while True:
        left = PAGE_SIZE if max_messages is None else min(PAGE_SIZE, max_messages - done.moved)
        if left < 1:
            return done
        if atomic:
            max_len = queue.config.max_len or 0
            flow = move_messages_page(
                rsmq.flows, source, queue.keys, shape, left, max_len, current_time_ms()
            )
            seen, page = queue.client.run_flow(flow)
        else:
            seen, page = _copy_page_from_rsmq(
                source, queue, rsmq, shape, left, vt, to_ms(dedup_ttl) or 1
            )
        if not seen:
            return done
        done += page


def _copy_page_from_rsmq(
    source: RsmqKeys,
    queue: Queue,
    rsmq: RsmqClient,
    converter: MessageToJob,
    limit: int,
    vt: timedelta,
    dedup_ttl_ms: int,
) -> tuple[int, TransferReport]:
    receive = rsmq.flows.receive(source, to_ms(vt) or 1)
    got: list[RsmqMessage | None] = rsmq.client.pipeline([receive] * limit)
    messages = list({m.id: m for m in got if m is not None}.values())
    full = [message for message in messages if message.raw is not None]
    fresh = 0
    if full:
        # The first message names the call: sending the same page again adds nothing.
        jobs = [converter.encode_job(message, current_time_ms(), dedup_ttl_ms) for message in full]
        token = f"rsmq:{full[0].id}:{full[0].rc}"
        op = enqueue.add_jobs(queue.keys, jobs, queue.config.max_len or 0, token)
        flags: list[bool] = queue.client.execute(op)
        fresh = sum(flags)
    rsmq.client.pipeline([rsmq.flows.delete(source, message.id) for message in messages])
    dropped = len(messages) - len(full)
    return len(messages), TransferReport(fresh, dropped, len(full) - fresh)


def migrate_to_rsmq(
    queue: LeaseQueue,
    qname: str,
    rsmq: RsmqClient,
    *,
    max_messages: int | None = None,
    convert: Callable[[Any], str] | None = None,
    dedup_ttl: timedelta = _DEFAULT_DEDUP_TTL,
    consumer: str = "rsmq-bridge",
) -> TransferReport:
    """Move every waiting job of a Chasqui queue to an RSMQ queue, oldest first, and return counts.

    Workers may take from the queue at the same time. Delayed jobs follow when they are due. A job
    that cannot become a message, or is too long for the queue, becomes a letter.
    """
    if max_messages is not None and max_messages < 1:
        raise InvalidArgument(
            f"max_messages must be at least 1, or None for all; not {max_messages}"
        )
    if queue.config.exclusive:
        raise InvalidArgument("the bridge leases in shared mode", queue_name=queue.name)
    shape = JobToMessage(queue.name, convert)
    target = rsmq.flows.keys(qname)
    atomic = same_server(rsmq.target, queue.target)
    rsmq.get_queue_attributes(qname)  # before anything is leased: is there such a queue?
    done = TransferReport()
    while True:
        left = PAGE_SIZE if max_messages is None else min(PAGE_SIZE, max_messages - done.moved)
        leases = queue.lease(consumer, left) if left > 0 else []
        if not leases:
            return done
        ready, hopeless = _convert_leases(shape, leases)
        if atomic:
            done += _move_page_to_rsmq(queue, target, rsmq, ready, hopeless)
        else:
            done += _copy_page_to_rsmq(queue, target, rsmq, ready, hopeless, to_ms(dedup_ttl) or 1)
        for lease, why in hopeless:
            with suppress(LeaseLost):
                queue.dead_letter(lease, error=why)
        done += TransferReport(dead_lettered=len(hopeless))


Deliverable = list[tuple[Lease, str, str]]
Undeliverable = list[tuple[Lease, str]]
_MESSAGE_TOO_LONG = "Message too long for the RSMQ queue"


def _convert_leases(
    converter: JobToMessage, leases: list[Lease]
) -> tuple[Deliverable, Undeliverable]:
    ready: Deliverable = []
    hopeless: Undeliverable = []
    for lease in leases:
        try:
            ready.append((lease, converter.message_id(lease), converter.body(lease.job)))
        except (EncodeError, DecodeError) as problem:
            hopeless.append((lease, problem.message))
    return ready, hopeless


def _move_page_to_rsmq(
    queue: LeaseQueue,
    destination: RsmqKeys,
    rsmq: RsmqClient,
    deliverable: Deliverable,
    undeliverable: Undeliverable,
) -> TransferReport:
    if not deliverable:
        return TransferReport()
    op = move_jobs(queue.keys, queue.config.group, destination, rsmq.flows, deliverable)
    signs: bytes = queue.client.execute(op)
    for (lease, _, _), sign in zip(deliverable, signs, strict=True):
        if sign == ord("x"):
            undeliverable.append((lease, _MESSAGE_TOO_LONG))
    return TransferReport(signs.count(b"1"))


def _copy_page_to_rsmq(
    queue: LeaseQueue,
    destination: RsmqKeys,
    rsmq: RsmqClient,
    deliverable: Deliverable,
    undeliverable: Undeliverable,
    dedup_ttl_ms: int,
) -> TransferReport:
    ops = [
        add_external(destination, rsmq.flows, one, body, dedup_ttl_ms)
        for _, one, body in deliverable
    ]
    answers: list[int] = rsmq.client.pipeline(ops) if ops else []
    arrived = []
    for (lease, _, _), answer in zip(deliverable, answers, strict=True):
        if answer < 0:
            undeliverable.append((lease, _MESSAGE_TOO_LONG))
        else:
            arrived.append(lease)
    with suppress(LeaseLost):  # whoever took it over will find it arrived
        queue.ack(*arrived)
    return TransferReport(answers.count(1), duplicates=answers.count(0))
