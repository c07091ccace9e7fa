"""lead: one at a time."""

from __future__ import annotations


def lead(bench, holder, life=5):
    return bench.call("acquire_leader_lock", [bench.keys.promoter_lock], holder, life)


def test_the_first_leads_and_keeps_it(bench):
    assert lead(bench, "a") == 1
    assert lead(bench, "b") == 0
    assert bench.all() == {"promoter:lock": b"a"}
    assert lead(bench, "a", 50) == 1
    assert bench.client.ttl(bench.keys.promoter_lock) in (50, 49)


def test_another_does_not_prolong_it(bench):
    lead(bench, "a", 5)
    lead(bench, "b", 500)
    assert bench.client.ttl(bench.keys.promoter_lock) <= 5


def test_who_comes_after_the_end_leads(bench):
    lead(bench, "a")
    bench.client.delete(bench.keys.promoter_lock)
    assert lead(bench, "b") == 1


def test_a_lock_without_an_end_gets_one(bench):
    lock = bench.keys.promoter_lock
    bench.client.set(lock, "nobody")
    assert bench.call("acquire_leader_lock", [lock], "me", 5) == 0
    assert 0 < bench.life_ms(lock) <= 5000
    bench.client.pexpire(lock, 60_000)
    assert bench.call("acquire_leader_lock", [lock], "me", 5) == 0
    assert bench.life_ms(lock) > 5000
