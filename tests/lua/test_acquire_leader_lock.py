"""acquire_leader_lock: one leader at a time."""

from __future__ import annotations


def acquire(script_runner, holder, ttl_s=5):
    return script_runner.call(
        "acquire_leader_lock", [script_runner.keys.promoter_lock], holder, ttl_s
    )


def test_the_first_process_becomes_leader_and_can_renew(script_runner):
    assert acquire(script_runner, "a") == 1
    assert acquire(script_runner, "b") == 0
    assert script_runner.dump() == {"promoter:lock": b"a"}
    assert acquire(script_runner, "a", 50) == 1
    assert script_runner.client.ttl(script_runner.keys.promoter_lock) in (50, 49)


def test_another_process_does_not_extend_the_lock(script_runner):
    acquire(script_runner, "a", 5)
    acquire(script_runner, "b", 500)
    assert script_runner.client.ttl(script_runner.keys.promoter_lock) <= 5


def test_the_lock_can_be_acquired_after_it_expired(script_runner):
    acquire(script_runner, "a")
    script_runner.client.delete(script_runner.keys.promoter_lock)
    assert acquire(script_runner, "b") == 1


def test_a_lock_without_a_ttl_gets_one(script_runner):
    lock = script_runner.keys.promoter_lock
    script_runner.client.set(lock, "dead process")
    assert script_runner.call("acquire_leader_lock", [lock], "me", 5) == 0
    assert 0 < script_runner.ttl_ms(lock) <= 5000
    script_runner.client.pexpire(lock, 60_000)
    assert script_runner.call("acquire_leader_lock", [lock], "me", 5) == 0
    assert script_runner.ttl_ms(lock) > 5000
