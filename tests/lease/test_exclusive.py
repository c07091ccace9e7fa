"""Exclusive mode: deadlines, strict order, one holder, three actions after the last delivery."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.errors import (
    InvalidLeaseConfig,
    LeaseLost,
    QueueExists,
    TooManyInFlight,
)
from airflow_provider_chasqui.lease import LeaseConfig, LeaseQueue, celeriant_code
from airflow_provider_chasqui.queue import Queue
from tests.conftest import ONE_OF_EACH
from tests.lease.conftest import LONG, MS, ORDERED, Leasing
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]


def test_an_exclusive_lease_can_be_longer_than_claim_after(queue: Queue, leasing: Leasing) -> None:
    queue.add(1)
    leases = leasing(mode="exclusive", visibility_timeout=timedelta(hours=1))
    (lease,) = leases.lease("me")
    assert lease.fencing_token == 1
    assert leases.lease("thief") == []
    assert leases.stats().in_flight == 1
    leases.extend(lease, visibility_timeout=1 * MS)
    (stolen,) = leases.lease("thief", wait=LONG)
    assert (stolen.entry_id, stolen.deliveries, stolen.fencing_token) == (lease.entry_id, 2, 2)
    for verb in (leases.ack, leases.extend, leases.nack, leases.dead_letter, leases.block):
        with pytest.raises(LeaseLost):
            verb(lease)
    leases.ack(stolen.token)
    stats = leases.stats()
    assert (stats.unacknowledged, stats.in_flight, stats.length) == (0, 0, 0)


def test_jobs_of_ordinary_producers_and_delayed_jobs_are_leased(
    queue: Queue, leasing: Leasing
) -> None:
    leases = leasing(mode="exclusive")
    queue.add("later", delay=200 * MS)
    queue.add("now")
    assert [lease.payload for lease in leases.lease("me", 5)] == ["now"]
    (later,) = leases.lease("me", 5, wait=LONG)
    assert later.payload == "later"


def test_a_foreign_group_is_refused_at_the_start_and_later(queue: Queue, leasing: Leasing) -> None:
    queue.add(1)
    queue.client.execute(consumer_group.create(queue.keys, "default"))
    leases = leasing(mode="exclusive")
    for verb in (leases.create, lambda: leases.lease("me")):
        with pytest.raises(InvalidLeaseConfig, match="'default'") as raised:
            verb()
        assert celeriant_code(raised.value) == 3
    queue.client.execute(
        redis_command("XGROUP", "DESTROY", queue.keys.stream, "default", parse=as_raw)
    )
    (lease,) = leases.lease("me")
    queue.client.execute(consumer_group.create(queue.keys, "default"))
    with pytest.raises(InvalidLeaseConfig):
        leases.lease("me")
    leases.ack(lease)


def test_all_clients_must_use_the_same_configuration(leasing: Leasing) -> None:
    leasing(**ORDERED).create()
    leasing(**ORDERED).create()
    other = leasing(**ORDERED | {"max_deliveries": 7})
    for verb in (other.create, lambda: other.lease("me")):
        with pytest.raises(QueueExists, match="max_deliveries") as raised:
            verb()
        assert celeriant_code(raised.value) == 2
    other.delete()
    other.create()


def test_order_is_preserved_after_nacks_and_expired_leases(queue: Queue, leasing: Leasing) -> None:
    queue.add_many([{"payload": i} for i in range(6)])
    leases = leasing(**ORDERED)
    first, second, third = leases.lease("me", 3)
    assert leases.lease("other", 3) == []
    leases.nack(first, delay=300 * MS)
    # The following entries were released: no consumer may process them before the first.
    for lease in (second, third):
        with pytest.raises(LeaseLost):
            leases.ack(lease)
    assert leases.lease("me") == leases.lease("other") == []
    again = leases.lease("other", 4, wait=LONG)
    assert [lease.payload for lease in again] == [0, 1, 2, 3]
    assert [lease.deliveries for lease in again] == [2, 1, 1, 1]
    leases.extend(*again, visibility_timeout=1 * MS)
    leased = wait_until(lambda: leases.lease("third", 10))
    assert [lease.payload for lease in leased] == [0, 1, 2, 3, 4, 5]
    assert min(lease.fencing_token for lease in leased) > max(
        lease.fencing_token for lease in again
    )


def test_the_same_consumer_can_lease_more_entries(queue: Queue, leasing: Leasing) -> None:
    queue.add_many([{"payload": i} for i in range(3)])
    leases = leasing(**ORDERED)
    (first,) = leases.lease("me")
    (second,) = leases.lease("me")
    assert (first.payload, second.payload) == (0, 1)
    leases.ack(first)
    assert leases.lease("other") == []
    leases.ack(second)
    assert leases.lease("other")[0].payload == 2


def test_a_waiting_consumer_leases_when_the_holder_has_finished(
    queue: Queue, leasing: Leasing
) -> None:
    queue.add_many([{"payload": i} for i in range(2)])
    leases = leasing(**ORDERED)
    (first,) = leases.lease("me")
    threading.Timer(0.2, lambda: leases.ack(first)).start()
    began = time.monotonic()
    (second,) = leases.lease("other", wait=LONG)
    assert second.payload == 1
    assert time.monotonic() - began < 3


def wear_out(leases: LeaseQueue, times: int) -> str:
    for _ in range(times):
        (lease,) = leases.lease("me")
        leases.nack(lease)
    return lease.entry_id


def test_a_blocked_entry_stops_an_ordered_queue_until_it_is_unblocked(
    queue: Queue, leasing: Leasing
) -> None:
    queue.add_many([{"payload": i} for i in range(2)])
    leases = leasing(**ORDERED, max_deliveries=2)
    entry_id = wear_out(leases, 2)
    assert leases.lease("me") == leases.lease("other") == []
    assert leases.stats().blocked == 1
    (blocked,) = leases.blocked()
    assert (blocked.id, blocked.deliveries, blocked.job.payload) == (entry_id, 2, 0)
    assert queue.dead_letters() == []
    assert leases.unblock(entry_id)
    (lease,) = leases.lease("me")
    assert (lease.payload, lease.deliveries) == (0, 3)
    leases.nack(lease)
    assert leases.lease("me") == []
    assert leases.unblock(entry_id, extra_attempts=2)
    for count in (4, 5):
        (lease,) = leases.lease("me")
        assert lease.deliveries == count
        leases.nack(lease)
    assert leases.lease("me") == []
    assert leases.dead_letter_blocked(entry_id)
    assert not leases.dead_letter_blocked(entry_id)
    assert [dead_letter.source_id for dead_letter in queue.dead_letters()] == [entry_id]
    (lease,) = leases.lease("me")
    assert lease.payload == 1


def test_a_blocked_entry_does_not_stop_an_unordered_queue(queue: Queue, leasing: Leasing) -> None:
    queue.add_many([{"payload": i} for i in range(2)])
    leases = leasing(mode="exclusive", on_max_deliveries="block", max_deliveries=1)
    entry_id = wear_out(leases, 1)
    (lease,) = leases.lease("me", 5)
    assert lease.payload == 1
    assert [entry.id for entry in leases.blocked()] == [entry_id]


def test_block_and_dead_letter_blocks_and_writes_a_dead_letter(
    queue: Queue, leasing: Leasing
) -> None:
    added = queue.add("bad", job_name="mail")
    leases = leasing(mode="exclusive", on_max_deliveries="block_and_dead_letter", max_deliveries=1)
    entry_id = wear_out(leases, 1)
    assert leases.lease("me") == []
    assert [entry.id for entry in leases.blocked()] == [entry_id]
    raw = queue.client.execute(redis_command("XRANGE", queue.keys.dlq, "-", "+", parse=as_raw))
    names = [field.decode() for field in raw[0][1][::2]]
    assert names[:4] == ["d", "n", "source_id", "reason"], "stock ChasquiMQ's order"
    (dead_letter,) = queue.dead_letters()
    assert (dead_letter.job_id, dead_letter.job_name, dead_letter.source_id) == (
        added.job_id,
        "mail",
        entry_id,
    )
    assert (dead_letter.reason, dead_letter.attempts) == ("retries_exhausted", 1)
    assert leases.unblock(entry_id)
    (lease,) = leases.lease("me")
    leases.ack(lease)


def test_dead_letter_writes_a_dead_letter_and_continues(queue: Queue, leasing: Leasing) -> None:
    queue.add_batch(["bad", "good"], batch_id="b")
    leases = leasing(mode="exclusive", max_deliveries=1)
    wear_out(leases, 1)
    (good,) = leases.lease("me", 5)
    assert good.payload == "good"
    leases.ack(good)
    progress = queue.batch_progress("b")
    assert (progress.done, progress.dead) == (1, 1)
    assert queue.dead_letters()[0].attempts == 1


def test_a_consumer_can_block_a_lease(queue: Queue, leasing: Leasing) -> None:
    queue.add_many([{"payload": i} for i in range(3)])
    leases = leasing(**ORDERED)
    first, second, third = leases.lease("me", 3)
    leases.ack(first)
    leases.block(second)
    with pytest.raises(LeaseLost):
        leases.ack(third)
    assert leases.lease("me") == []
    assert leases.unblock(second.entry_id)
    assert [lease.deliveries for lease in leases.lease("me", 5)] == [2, 1]


def test_limits(queue: Queue, leasing: Leasing) -> None:
    queue.add_many([{"payload": i} for i in range(5)])
    leases = leasing(mode="exclusive", max_in_flight=2, max_unacknowledged=3)
    got = leases.lease("me", 5)
    assert len(got) == 2
    with pytest.raises(TooManyInFlight):
        leases.lease("me")
    leases.nack(got[0], delay=timedelta(hours=1))
    assert len(leases.lease("me", 5)) == 1


def test_trim_stops_at_blocked_and_nacked_entries(queue: Queue, leasing: Leasing) -> None:
    queue.add_many([{"payload": i} for i in range(4)])
    leases = leasing(mode="exclusive")
    (first,) = leases.lease("me")
    leases.block(first)
    tail = leases.stats().last_entry_id
    assert leases.trim(tail) == 0
    assert leases.dead_letter_blocked(first.entry_id)
    assert leases.trim(tail) == 2


def test_a_snapshot_contains_deadlines_fencing_tokens_and_blocked_entries(
    queue: Queue, leasing: Leasing, server: Any, queue_name: str
) -> None:
    queue.add_many([{"payload": i} for i in range(4)])
    leases = leasing(mode="exclusive", on_max_deliveries="block")
    held, bad, back = leases.lease("me", 3)
    leases.block(bad)
    leases.nack(back, delay=timedelta(hours=1))
    image = leases.snapshot()
    name = f"{queue_name}-copy"
    with LeaseQueue(name, server.url, dialect=server.dialect, config=leases.config) as copy:
        copy.restore(image)
        assert copy.stats() == leases.stats()
        token = json.loads(held.token)
        token[0] = name
        copy.ack(json.dumps(token))
        assert [entry.id for entry in copy.blocked()] == [bad.entry_id]
        (fresh,) = copy.lease("me", 5)
        assert (fresh.payload, fresh.fencing_token) == (3, 2)


_CONSUME = """
import sys, time
from datetime import timedelta
from airflow_provider_chasqui.core.errors import LeaseLost
from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.lease import LeaseConfig, LeaseQueue

url, dialect, name, consumer, total, careful = sys.argv[1:]
config = LeaseConfig(
    mode="exclusive", ordered=True, on_max_deliveries="block", max_deliveries=1000,
    visibility_timeout=timedelta(milliseconds=400),
)
GUARD = '''
local seen = tonumber(redis.call('GET', KEYS[1]) or '0')
if tonumber(ARGV[1]) < seen then return 'stale' end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('RPUSH', KEYS[2], ARGV[2])
return 'ok'
'''
with LeaseQueue(name, url, dialect=dialect, config=config) as queue:
    tag = queue.keys.hash_tag
    def done():
        return queue.client.execute(redis_command('LLEN', tag + ':log', parse=int)) >= int(total)
    turn = 0
    while not done():
        for lease in queue.lease(consumer, 3, wait=timedelta(milliseconds=200)):
            turn += 1
            if turn % int(careful) == 0:
                time.sleep(0.6)   # the lease expires during the work
            # The resource refuses a fencing token smaller than the last one.
            guard = redis_command('EVAL', GUARD, 2, tag + ':guard', tag + ':log',
                            lease.fencing_token,
                            f'{lease.fencing_token} {lease.payload} {consumer}', parse=as_raw)
            if queue.client.execute(guard) == b'stale':
                print('stale', flush=True)
                break
            try:
                queue.ack(lease)
            except LeaseLost:
                print('lost', flush=True)
                break
"""


@pytest.mark.chaos
@pytest.mark.timeout(180)
@ONE_OF_EACH
def test_eight_consumers_of_an_ordered_queue_never_hold_it_together(
    server: Any, queue: Queue, leasing: Leasing
) -> None:
    """Eight processes consume 200 ordered jobs, and each sometimes sleeps longer than its lease.

    Every write contains its fencing token, and the log refuses a smaller token than the last one.
    Two holders at the same time would be visible as a decreasing token or as a job out of order.
    """
    queue.add_many([{"payload": i} for i in range(200)])
    arguments = [sys.executable, "-c", _CONSUME, server.url, server.dialect, queue.name]
    consumers = [
        subprocess.Popen(
            [*arguments, f"c{i}", "200", str(5 + i)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for i in range(8)
    ]
    outputs = [process.communicate(timeout=100)[0] for process in consumers]
    assert [process.returncode for process in consumers] == [0] * 8
    log = queue.client.execute(
        redis_command("LRANGE", f"{queue.keys.hash_tag}:log", 0, -1, parse=as_raw)
    )
    tokens = [int(line.split()[0]) for line in log]
    jobs = [int(line.split()[1]) for line in log]
    assert tokens == sorted(tokens)
    # A job that was acknowledged too late is written again by the next holder, before later jobs.
    first_seen = list(dict.fromkeys(jobs))
    assert first_seen == list(range(200))
    assert jobs == sorted(jobs)
    assert len({line.split()[2] for line in log}) > 1, (
        "only one consumer wrote to the log, so nothing was raced"
    )
    assert "stale" in "".join(outputs) or "lost" in "".join(outputs), "no lease was lost"


_CRASH = """
import os, sys
from datetime import timedelta
from airflow_provider_chasqui.lease import LeaseConfig, LeaseQueue
url, dialect, name, step, mode = sys.argv[1:]
action = "block" if mode == "exclusive" else "dead_letter"
config = LeaseConfig(mode=mode, ordered=mode == "exclusive", on_max_deliveries=action,
                     visibility_timeout=timedelta(milliseconds=300))
queue = LeaseQueue(name, url, dialect=dialect, config=config)
leases = queue.lease("crash", 2)
if step == "extended":
    queue.extend(*leases)
elif step == "one acked":
    queue.ack(leases[0])
elif step == "nacked":
    queue.nack(*leases)
os._exit(9)
"""


@pytest.mark.chaos
@pytest.mark.timeout(180)
@ONE_OF_EACH
@pytest.mark.parametrize("mode", ["shared", "exclusive"])
def test_a_crash_at_any_step_loses_nothing(
    server: Any, queue: Queue, leasing: Leasing, mode: str
) -> None:
    action = "block" if mode == "exclusive" else "dead_letter"
    leases = leasing(mode=mode, ordered=mode == "exclusive", on_max_deliveries=action)
    left = 0
    for step in ("leased", "extended", "one acked", "nacked"):
        queue.add_many([{"payload": step}] * 2)
        arguments = [server.url, server.dialect, queue.name, step, mode]
        ran = subprocess.run(
            [sys.executable, "-c", _CRASH, *arguments], cwd=ROOT, timeout=60, check=False
        )
        assert ran.returncode == 9
        left = 1 if step == "one acked" else 2
        got: list[Any] = []
        began = time.monotonic()
        while len(got) < left:
            got += leases.lease("next consumer", 2, wait=LONG)
        assert time.monotonic() - began < 10, f"{step}: the next consumer leased the jobs too late"
        assert [lease.deliveries for lease in got] == [2] * left
        leases.ack(*got)
        assert leases.stats().length == 0


def test_config_is_checked_before_anything_is_sent() -> None:
    with pytest.raises(InvalidLeaseConfig):
        LeaseConfig(mode="exclusive", ordered=True)
