"""Administration of a lease queue: block, trim, stats, snapshots, quotas, settings."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.errors import (
    InvalidArgument,
    InvalidLeaseConfig,
    QuotaExceeded,
)
from airflow_provider_chasqui.core.job import NewJob
from airflow_provider_chasqui.core.lease import entry_id_to_version, version_to_entry_id
from airflow_provider_chasqui.lease import (
    LeaseConfig,
    LeaseQueue,
    celeriant_code,
)
from airflow_provider_chasqui.queue import Queue
from tests.lease.conftest import LONG, Leasing


def test_block_removes_an_entry_and_unblock_restores_it(queue: Queue, leasing: Leasing) -> None:
    queue.add("bad", job_id="bad")
    queue.add("worse", job_id="worse")
    leases = leasing()
    leases.block(*leases.lease("me", 2))
    assert leases.lease("me") == []
    assert leases.stats().blocked == 2
    first, second = leases.blocked()
    assert (first.job.id, first.deliveries) == ("bad", 1)
    assert leases.unblock(first.id)
    assert not leases.unblock(first.id)
    assert leases.dead_letter_blocked(second.id)
    assert not leases.dead_letter_blocked(second.id)
    assert [dead_letter.job_id for dead_letter in queue.dead_letters()] == ["worse"]
    assert [lease.payload for lease in leases.lease("me")] == ["bad"]


def test_trim_stops_at_active_leases(queue: Queue, leasing: Leasing) -> None:
    batch = queue.add_batch(range(6), batch_id="b")
    leases = leasing()
    got = leases.lease("me", 3)
    leases.ack(got[0])
    tail = leases.stats().last_entry_id
    assert leases.trim(tail) == 0, "entry 1 is leased and stands before all waiting ones"
    leases.ack(got[1], got[2])
    assert leases.trim(tail) == 2
    assert leases.trim(datetime.now(UTC) + timedelta(days=1)) == 1
    progress = queue.batch_progress(batch.batch_id)
    assert (progress.done, progress.dead, progress.finished) == (3, 3, True)
    with pytest.raises(InvalidArgument):
        leases.trim("soon")


def test_stats_count_entries_by_state(queue: Queue, leasing: Leasing) -> None:
    queue.add_many([{"payload": i} for i in range(6)])
    queue.add("later", delay=timedelta(hours=1))
    leases = leasing()
    got = leases.lease("me", 4)
    leases.ack(got[0])
    leases.nack(got[1])
    leases.nack(got[2], delay=timedelta(seconds=20))
    stats = leases.stats()
    assert (stats.added, stats.delivered, stats.length) == (6, 4, 5)
    assert (stats.waiting, stats.in_flight, stats.available, stats.nacked) == (2, 1, 1, 1)
    assert (stats.unacknowledged, stats.delayed, stats.dead, stats.blocked) == (3, 1, 0, 0)
    assert stats.first_entry_id == got[1].entry_id


def test_a_restored_snapshot_is_identical(
    queue: Queue, leasing: Leasing, server: Any, queue_name: str
) -> None:
    queue.add_many([{"payload": i, "job_name": "n"} for i in range(6)])
    queue.add("later", delay=timedelta(hours=1))
    leases = leasing()
    leases.produce(["p"], client_id="c", client_seq=9)
    held, done, back = leases.lease("me", 3)
    leases.ack(done)
    leases.nack(back)
    image = leases.snapshot()
    with LeaseQueue(f"{queue_name}-copy", server.url, dialect=server.dialect) as copy:
        assert copy.restore(image) == 6
        assert copy.stats() == leases.stats()
        with pytest.raises(InvalidArgument, match="already exists"):
            copy.restore(image)
        assert copy.produce(["p"], client_id="c", client_seq=9) == [None]
        token = json.loads(held.token)
        token[0] = copy.name
        copy.ack(json.dumps(token))
        leased = copy.lease("me", 10)
        assert [lease.payload for lease in leased] == [2, 3, 4, 5, "p"]
        assert [lease.deliveries for lease in leased] == [2, 1, 1, 1, 1]
        assert leased[0].entry_id == back.entry_id


def test_quotas_count_queues_of_an_organisation(server: Any, queue_name: str) -> None:
    def open_one(number: int) -> LeaseQueue:
        return LeaseQueue(f"{queue_name}-{number}", server.url, dialect=server.dialect)

    org = queue_name
    with open_one(1) as one, open_one(2) as two, open_one(3) as three:
        one.create(org=org, max_queues=2)
        one.create(org=org, max_queues=2)
        two.create(org=org, max_queues=2)
        with pytest.raises(QuotaExceeded) as raised:
            three.create(org=org, max_queues=2)
        assert celeriant_code(raised.value) == 12
        assert two.delete(org=org)
        three.create(org=org, max_queues=2)
        three.delete(org=org)
        one.delete(org=org)


def test_invalid_settings_are_refused(leasing: Leasing, queue: Queue) -> None:
    for settings in (
        {"mode": "private"},
        {"on_max_deliveries": "drop"},
        {"ordered": True, "on_max_deliveries": "block"},
        {"on_max_deliveries": "block"},
        {"mode": "exclusive", "ordered": True},
        {"mode": "exclusive", "group": "default"},
        {"visibility_timeout": timedelta(minutes=1)},
        {"visibility_timeout": timedelta(0)},
        {"max_in_flight": 0},
        {"max_deliveries": True},
    ):
        with pytest.raises(InvalidLeaseConfig) as raised:
            LeaseConfig(**settings)
        assert celeriant_code(raised.value) == 3
    leases = leasing()
    queue.add(1)
    for bad in ("", "[]", '["q"]', "[1,2,3,4,5,6,7,8]"):
        with pytest.raises(InvalidArgument):
            leases.ack(bad)
    for call in (
        lambda: leases.lease("me", 0),
        lambda: leases.lease(""),
        lambda: leases.lease("me", visibility_timeout=timedelta(hours=1)),
        lambda: leases.produce([1], client_id="x"),
        lambda: leases.produce([NewJob(1, delay=LONG)]),
    ):
        with pytest.raises(InvalidArgument):
            call()


def test_versions_have_the_order_of_entry_ids() -> None:
    ids = ["1-0", "1-1", "2-0", "1700000000000-5", "1700000000001-0"]
    versions = [entry_id_to_version(entry_id) for entry_id in ids]
    assert versions == sorted(versions)
    assert [version_to_entry_id(version) for version in versions] == ids
    assert max(versions) < 2**64
