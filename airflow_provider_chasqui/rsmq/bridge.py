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

from airflow_provider_chasqui.core.errors import BadInput, DecodeError, EncodeError, LeaseLost
from airflow_provider_chasqui.core.lease import Lease
from airflow_provider_chasqui.core.ops import adding
from airflow_provider_chasqui.core.ops.rsmq_bridge import (
    AsJob,
    AsMessage,
    Moved,
    accept,
    give,
    move_page,
)
from airflow_provider_chasqui.core.policy import to_ms
from airflow_provider_chasqui.core.rsmq import RsmqKeys, RsmqMessage
from airflow_provider_chasqui.lease import LeaseQueue
from airflow_provider_chasqui.queue import Queue, wall_clock
from airflow_provider_chasqui.rsmq.client import RsmqClient
from airflow_provider_chasqui.store.target import Target

PAGE = 100
_DAY = timedelta(days=1)
_MINUTE = timedelta(minutes=1)


def same_server(one: Target, other: Target) -> bool:
    """Whether one script can reach the keys of both. Two names of one host count as two servers,
    which is slower but safe; in a cluster the two queues lie in different slots.
    """
    if one.cluster or other.cluster:
        return False
    places = [(t.nodes, t.db, t.unix_path, t.sentinel_master) for t in (one, other)]
    return places[0] == places[1]


def drain(
    rsmq_queue: str,
    queue: Queue,
    rsmq: RsmqClient,
    *,
    name: str | None = None,
    max_messages: int | None = None,
    carry_receive_count: bool = False,
    convert: Callable[[str], Any] | None = None,
    vt: timedelta = _MINUTE,
    remember: timedelta = _DAY,
) -> Moved:
    """Move every visible message of an RSMQ queue to a Chasqui queue, oldest first, and return the
    counts.

    Hidden messages stay where they are: they are delayed or being worked on. Jobs are named `name`,
    or `rsmq:<queue>`, and have the message's id. `vt` and `remember` matter between two servers
    only: how long a message is hidden while it is under way, and how long it is recognised.
    """
    if max_messages is not None and max_messages < 1:
        raise BadInput(f"max_messages must be at least 1, or None for all; not {max_messages}")
    shape = AsJob(rsmq_queue, name, carry_receive_count, convert)
    source = rsmq.verbs.keys(rsmq_queue)
    atomic = same_server(rsmq.target, queue.target)
    done = Moved()
    while True:
        left = PAGE if max_messages is None else min(PAGE, max_messages - done.moved)
        if left < 1:
            return done
        if atomic:
            max_len = queue.config.max_len or 0
            flow = move_page(rsmq.verbs, source, queue.keys, shape, left, max_len, wall_clock())
            seen, page = queue.drive.flow(flow)
        else:
            seen, page = _carry_page(source, queue, rsmq, shape, left, vt, to_ms(remember) or 1)
        if not seen:
            return done
        done += page


def _carry_page(
    source: RsmqKeys,
    queue: Queue,
    rsmq: RsmqClient,
    shape: AsJob,
    limit: int,
    vt: timedelta,
    remember_ms: int,
) -> tuple[int, Moved]:
    receive = rsmq.verbs.receive(source, to_ms(vt) or 1)
    got: list[RsmqMessage | None] = rsmq.drive.many([receive] * limit)
    messages = list({m.id: m for m in got if m is not None}.values())
    full = [message for message in messages if message.raw is not None]
    fresh = 0
    if full:
        # The first message names the call: sending the same page again adds nothing.
        jobs = [shape.ready(message, wall_clock(), remember_ms) for message in full]
        token = f"rsmq:{full[0].id}:{full[0].rc}"
        op = adding.add_chunk(queue.keys, jobs, queue.config.max_len or 0, token)
        flags: list[bool] = queue.drive.run(op)
        fresh = sum(flags)
    rsmq.drive.many([rsmq.verbs.delete(source, message.id) for message in messages])
    dropped = len(messages) - len(full)
    return len(messages), Moved(fresh, dropped, len(full) - fresh)


def feed(
    queue: LeaseQueue,
    rsmq_queue: str,
    rsmq: RsmqClient,
    *,
    max_messages: int | None = None,
    convert: Callable[[Any], str] | None = None,
    remember: timedelta = _DAY,
    consumer: str = "rsmq-bridge",
) -> Moved:
    """Move every waiting job of a Chasqui queue to an RSMQ queue, oldest first, and return counts.

    Workers may take from the queue at the same time. Delayed jobs follow when they are due. A job
    that cannot become a message, or is too long for the queue, becomes a letter.
    """
    if max_messages is not None and max_messages < 1:
        raise BadInput(f"max_messages must be at least 1, or None for all; not {max_messages}")
    if queue.config.exclusive:
        raise BadInput("the bridge leases in shared mode", queue=queue.name)
    shape = AsMessage(queue.name, convert)
    target = rsmq.verbs.keys(rsmq_queue)
    atomic = same_server(rsmq.target, queue.target)
    rsmq.get_queue_attributes(rsmq_queue)  # before anything is leased: is there such a queue?
    done = Moved()
    while True:
        left = PAGE if max_messages is None else min(PAGE, max_messages - done.moved)
        leases = queue.lease(consumer, left) if left > 0 else []
        if not leases:
            return done
        ready, hopeless = _as_messages(shape, leases)
        if atomic:
            done += _give_page(queue, target, rsmq, ready, hopeless)
        else:
            done += _accept_page(queue, target, rsmq, ready, hopeless, to_ms(remember) or 1)
        for lease, why in hopeless:
            with suppress(LeaseLost):
                queue.bury(lease, error=why)
        done += Moved(buried=len(hopeless))


Ready = list[tuple[Lease, str, str]]
Hopeless = list[tuple[Lease, str]]
_TOO_LONG = "Message too long for the RSMQ queue"


def _as_messages(shape: AsMessage, leases: list[Lease]) -> tuple[Ready, Hopeless]:
    ready: Ready = []
    hopeless: Hopeless = []
    for lease in leases:
        try:
            ready.append((lease, shape.message_id(lease), shape.body(lease.job)))
        except (EncodeError, DecodeError) as problem:
            hopeless.append((lease, problem.message))
    return ready, hopeless


def _give_page(
    queue: LeaseQueue, target: RsmqKeys, rsmq: RsmqClient, ready: Ready, hopeless: Hopeless
) -> Moved:
    if not ready:
        return Moved()
    op = give(queue.keys, queue.config.group, target, rsmq.verbs, ready)
    signs: bytes = queue.drive.run(op)
    for (lease, _, _), sign in zip(ready, signs, strict=True):
        if sign == ord("x"):
            hopeless.append((lease, _TOO_LONG))
    return Moved(signs.count(b"1"))


def _accept_page(
    queue: LeaseQueue,
    target: RsmqKeys,
    rsmq: RsmqClient,
    ready: Ready,
    hopeless: Hopeless,
    remember_ms: int,
) -> Moved:
    ops = [accept(target, rsmq.verbs, one, body, remember_ms) for _, one, body in ready]
    answers: list[int] = rsmq.drive.many(ops) if ops else []
    arrived = []
    for (lease, _, _), answer in zip(ready, answers, strict=True):
        if answer < 0:
            hopeless.append((lease, _TOO_LONG))
        else:
            arrived.append(lease)
    with suppress(LeaseLost):  # whoever took it over will find it arrived
        queue.ack(*arrived)
    return Moved(answers.count(1), duplicates=answers.count(0))
