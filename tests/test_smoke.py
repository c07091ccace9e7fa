from datetime import timedelta
import pytest
from airflow_provider_chasqui.queue import Queue, AsyncQueue
from airflow_provider_chasqui.core.schedule import Every
from airflow_provider_chasqui.core.ops import delivery


@pytest.fixture
def queue(server, queue_name):
    with Queue(queue_name, server.url, dialect=server.dialect) as q:
        yield q


def test_all(queue):
    a = queue.add({"a": 1}, name="x")
    assert queue.find(a.id).state == "waiting"
    assert queue.add(1, id="u", unique=timedelta(minutes=1)).fresh
    assert not queue.add(1, id="u", unique=timedelta(minutes=1)).fresh
    r = queue.add_many([{"payload": i} for i in range(1000)])
    assert len(r) == 1000
    queue.add(1, id="d", delay=timedelta(hours=1))
    k = queue.add(1, delay=timedelta(hours=1))
    assert queue.find("d").state == "delayed" and queue.find(k.id).state == "delayed"
    assert queue.reschedule(k.id, delay=timedelta(hours=2))
    assert queue.cancel(k.id) == "cancelled" and queue.cancel("d") == "cancelled"
    b = queue.add_batch(range(600), batch_id="b1")
    assert queue.add_batch(range(600), batch_id="b1") == b
    assert queue.depth().waiting == 1602, queue.depth()
    d = queue.drive
    d.run(delivery.make_group(queue.keys, "default"))
    got = d.run(delivery.read(queue.keys, "default", "c", 5000, 0, 30000))
    ents = [delivery.delivery(g, 10**6) for g in got]
    assert len(ents) == 1602
    s = d.run(
        delivery.settle_with(
            queue.keys, "default", [delivery.Settled(e.id, e.job.id, b"\x01") for e in ents[-600:]]
        )
    )
    assert all(s)
    p = queue.batch("b1")
    assert p.done == 600 and p.finished
    assert all(d.run(delivery.settle(queue.keys, "default", [e.id for e in ents[:10]])))
    assert not any(d.run(delivery.settle(queue.keys, "default", [e.id for e in ents[:10]])))
    e = ents[11]
    from airflow_provider_chasqui.core.codec import encode_job, encode_member

    assert d.run(
        delivery.bury(
            queue.keys,
            "default",
            [
                delivery.Burial(
                    e.id,
                    encode_job(e.job),
                    "nm",
                    "unrecoverable",
                    error="boom",
                    attempts=1,
                    failed_at_ms=5,
                    job_id=e.job.id,
                )
            ],
        )
    ) == [True]
    assert queue.letters()[0].error == "boom"
    assert queue.find(e.job.id).state == "dead"
    assert queue.replay(budget=1).moved == 1
    queue.repeat(1, Every(1000), name="t")
    assert queue.repeats()[0].repeat.name == "t"
    e = ents[12]
    assert d.run(
        delivery.retry(queue.keys, "default", [(e.id, 5, encode_member(b"", encode_job(e.job)))])
    ) == [True]
    from airflow_provider_chasqui.core.ops.delayed import promote

    print(d.run(promote(queue.keys, 10)))
    assert queue.result(ents[-1].job.id) == 1


async def test_async(server, queue_name):
    async with AsyncQueue(queue_name, server.url, dialect=server.dialect) as q:
        assert (await q.add(1)).fresh
        assert (await q.depth()).waiting == 1
        b = await q.add_batch(range(5))
        with pytest.raises(Exception):
            await q.wait_batch(b.id, timeout=timedelta(milliseconds=200))
