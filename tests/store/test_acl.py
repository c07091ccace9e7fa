"""The ACL rules in docs/security-acl.md are enough, and none of them is too much."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_chasqui.core.codec import encode_job, encode_member
from airflow_provider_chasqui.core.errors import NotPermitted
from airflow_provider_chasqui.core.ops import delayed, delivery
from airflow_provider_chasqui.core.ops import repeats as repeating
from airflow_provider_chasqui.core.repeat import due
from airflow_provider_chasqui.core.schedule import Every
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.store.target import Target
from tests.servers import RedisServer, valkey_binary
from tests.store.conftest import Open, admin, stream_length

PAGE = Path(__file__).parents[2] / "docs" / "security-acl.md"
# Only on Redis 8.2 and newer.
NEW = {"+xackdel"}


def rules(role: str) -> list[str]:
    """The rules of a role, as the page gives them."""
    block = re.search(rf"<!-- {role} -->\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block, role
    return block[1].split()


@pytest.fixture(scope="module", params=["redis8", "valkey"])
def guarded(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    native = request.param == "redis8"
    binary = request.getfixturevalue("redis86_binary") if native else valkey_binary()
    with RedisServer.start(binary) as server:
        yield server


def known(server: RedisServer, role: str) -> list[str]:
    new = "valkey" not in server.binary.name
    return [rule for rule in rules(role) if new or rule not in NEW]


def let_in(server: RedisServer, user: str, queue: str, granted: list[str]) -> Target:
    key = f"~{{chasqui:{queue}}}:*"
    with admin(server) as client:
        client.execute_command("ACL", "SETUSER", user, "reset", "on", ">pw", key, *granted)
    return Target((("127.0.0.1", server.port),), username=user, password="pw", retries=0)


def produce(queue: Queue) -> None:
    """Every verb of a producer."""
    hour, minute = timedelta(hours=1), timedelta(minutes=1)
    job = queue.add({"a": 1}, name="n")
    queue.add(1, id="u", unique=minute)
    queue.add_many([{"payload": n} for n in range(3)])
    queue.add(1, id="d", delay=hour)
    plain = queue.add(1, delay=hour)
    queue.add(1, id="du", delay=hour, unique=minute)
    queue.reschedule("d", delay=2 * hour)
    queue.cancel("d")
    queue.cancel(plain.id)
    queue.cancel("nobody")
    queue.add_batch(range(3), batch_id="b")
    queue.add_batch(range(3), batch_id="later", delay=hour)
    queue.cancel("batch:later:0:1")
    queue.batch("b")
    queue.dead_in_batch("b")
    queue.find(job.id)
    queue.find("batch:b:0:1")
    queue.find("nobody")
    queue.result(job.id)
    queue.results([job.id])
    queue.depth()
    queue.consumers()
    queue.events()
    queue.events_tail()
    queue.repeat(1, Every(60_000), name="r")
    queue.repeat(1, Every(60_000), name="r", limit=3)
    queue.repeats()
    queue.drop_repeat("r::every:60000")
    queue.replay()
    queue.letters(newest_first=True)
    queue.purge()
    with pytest.raises(TimeoutError):
        queue.wait("nobody", timeout=timedelta(milliseconds=30))


def bury_two(server: RedisServer, name: str) -> None:
    """Two letters, one of them of a batch, written by somebody with all rights."""
    with Queue(name, server.url) as queue:
        queue.add({"doomed": 1})
        queue.add_batch(range(1), batch_id="doomed")
        queue.drive.run(delivery.make_group(queue.keys, "default"))
        raw = queue.drive.run(delivery.read(queue.keys, "default", "c", 10, 0, 30_000))
        burials = []
        for entry in (delivery.delivery(each, 10**6) for each in raw):
            assert isinstance(entry, delivery.Entry)
            burial = delivery.Burial(entry.id, encode_job(entry.job), "", "x", job_id=entry.job.id)
            burials.append(burial)
        queue.drive.run(delivery.bury(queue.keys, "default", burials))


def work(queue: Queue) -> None:
    """Every step of a worker, a promoter and a scheduler."""
    keys, drive, group = queue.keys, queue.drive, "workers"
    drive.run(delivery.make_group(keys, group))
    raw = drive.run(delivery.read(keys, group, "c", 100, 1, 30_000))
    drive.run(delivery.claim(keys, group, "c", 0, 10))
    entries = [delivery.delivery(each, 10**6) for each in raw]
    first, second, third, *rest = [e for e in entries if isinstance(e, delivery.Entry)]
    drive.run(delivery.settle(keys, group, [first.id]))
    settled = [delivery.Settled(each.id, each.job.id, b"\x01") for each in rest]
    drive.run(delivery.settle_with(keys, group, settled))
    member = encode_member(b"", encode_job(second.job))
    drive.run(delivery.retry(keys, group, [(second.id, 1, member)]))
    burial = delivery.Burial(third.id, encode_job(third.job), "", "x", job_id="batch:b:0:0")
    drive.run(delivery.bury(keys, group, [burial], 100))
    drive.run(delayed.promote(keys, 10))
    drive.run(delayed.forget_index(keys, ("nobody",)))
    drive.run(delivery.cancels_asked(keys))
    drive.run(delivery.cancel_marks(keys, ["nobody"]))
    drive.run(delivery.pending_of(keys, group, "c", 10))
    drive.run(delivery.entry_at(keys, first.id))
    drive.run(delivery.keep(keys, group, "c", [first.id]))
    drive.run(delivery.sweep(keys, group, 0, "c"))
    drive.run(delivery.forget_cancelled(keys, ["nobody"]))
    drive.run(delivery.consumers(keys, group))
    drive.run(delivery.lead(keys.promoter_lock, "me", 5))
    drive.run(delivery.lead(keys.promoter_lock, "me", 5))
    drive.run(delivery.resign(keys.promoter_lock, "me"))
    queue.repeat(1, Every(60_000), name="w", limit=1)
    for status in queue.repeats():
        fires = due(status.repeat, status.next_fire_ms, status.next_fire_ms)
        now_ms = status.next_fire_ms
        drive.run(repeating.fire(keys, status.repeat, now_ms, fires, ["j"], now_ms))
    drive.flow(repeating.due_keys(keys, 2**53, 10))


def test_a_producer_can_do_all_its_verbs(guarded: RedisServer, queue_name: str) -> None:
    bury_two(guarded, queue_name)
    target = let_in(guarded, "producer", queue_name, known(guarded, "producer"))
    with Queue(queue_name, target) as queue:
        produce(queue)


def test_a_worker_can_do_all_its_steps(guarded: RedisServer, queue_name: str) -> None:
    granted = known(guarded, "producer") + known(guarded, "worker")
    with Queue(queue_name, let_in(guarded, "worker", queue_name, granted)) as queue:
        produce(queue)
        work(queue)


def test_no_rule_of_a_producer_is_too_much(guarded: RedisServer, queue_name: str) -> None:
    granted = known(guarded, "producer")
    needless = []
    for number, rule in enumerate(granted):
        name = f"{queue_name}-{number}"
        bury_two(guarded, name)
        with admin(guarded) as client:
            client.script_flush()
        target = let_in(guarded, f"p{number}", name, [each for each in granted if each != rule])
        with Queue(name, target) as queue:
            try:
                produce(queue)
            except NotPermitted:
                continue
        needless.append(rule)
    assert needless == []


def test_another_queue_is_out_of_reach(
    open_queue: Open, guarded: RedisServer, queue_name: str
) -> None:
    target = let_in(guarded, "other", f"{queue_name}-other", known(guarded, "producer"))
    queue = open_queue(queue_name, target)
    with pytest.raises(NotPermitted, match=r"^\[CMQ-303\] .*does not let this user do that"):
        queue.add({"a": 1})
    with pytest.raises(NotPermitted):
        queue.add_batch(range(300))
    assert stream_length(guarded, queue_name) == 0


@pytest.mark.parametrize("lost", ["+xadd", "+evalsha", "+script|load", "+hset", "+eval"])
def test_a_missing_right_is_named_and_nothing_is_written(
    open_queue: Open, guarded: RedisServer, queue_name: str, lost: str
) -> None:
    with admin(guarded) as client:
        client.script_flush()
    granted = [rule for rule in known(guarded, "producer") if rule != lost]
    queue = open_queue(queue_name, let_in(guarded, f"no{lost}", queue_name, granted))
    with pytest.raises(NotPermitted) as caught:
        queue.add_batch(range(300), batch_id="b")
    assert lost.removeprefix("+").partition("|")[0] in str(caught.value).lower()
    with admin(guarded) as client:
        assert client.hget(f"{{chasqui:{queue_name}}}:batch:b", "total") is None
