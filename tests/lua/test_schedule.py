"""schedule: add each job to the delayed set once, with its index."""

from __future__ import annotations


def schedule(script_runner, *jobs, token="t"):
    """Each job is (run at, member, id or None, deduplicated)."""
    keys, args = (
        [script_runner.keys.delayed, script_runner.keys.idempotency_marker(token)],
        [100_000],
    )
    keys.append(script_runner.keys.cancel_requests)
    for run_at, member, job_id, unique in jobs:
        args += [run_at, member, 3660 if job_id else 0, 5000 if unique else 0]
        keys += (
            [script_runner.keys.delayed_marker(job_id), script_runner.keys.delayed_index(job_id)]
            if job_id
            else []
        )
        if job_id:
            kinds = ("result", "progress", "progress_value")
            keys += [f"{script_runner.keys.hash_tag}:{kind}:{job_id}" for kind in kinds]
        keys += [script_runner.keys.dedup_marker(job_id)] if unique else []
    return script_runner.call("schedule", keys, *args)


def test_one_call_can_schedule_jobs_of_every_kind(script_runner):
    reply = schedule(
        script_runner, (7, "m1", None, False), (5, "m2", "a", False), (6, "m3", "b", True)
    )
    assert reply == b"111"
    assert script_runner.dump() == {
        "delayed": [(b"m2", 5.0), (b"m3", 6.0), (b"m1", 7.0)],
        "idempotency:t": b"111",
        "dlid:a": b"1",
        "didx:a": b"m2",
        "dlid:b": b"1",
        "didx:b": b"m3",
        "dedup:b": b"delayed",
    }
    assert script_runner.client.ttl(script_runner.keys.delayed_marker("a")) in (3660, 3659)
    assert script_runner.client.ttl(script_runner.keys.delayed_index("a")) in (3660, 3659)


def test_a_repeated_call_adds_nothing(script_runner):
    schedule(script_runner, (7, "m1", None, False))
    script_runner.client.delete(script_runner.keys.delayed)  # as if it had been promoted
    assert schedule(script_runner, (7, "m1", None, False)) == b"1"
    assert "delayed" not in script_runner.dump()


def test_an_id_is_scheduled_once_while_its_marker_exists(script_runner):
    schedule(script_runner, (7, "m1", "a", False))
    assert schedule(script_runner, (9, "m2", "a", False), token="u") == b"0"
    assert script_runner.dump()["delayed"] == [(b"m1", 7.0)]
    script_runner.client.delete(script_runner.keys.delayed)
    assert schedule(script_runner, (9, "m2", "a", False), token="v") == b"0"


def test_the_same_id_twice_in_one_call_is_scheduled_once(script_runner):
    assert schedule(script_runner, (7, "m1", "a", False), (8, "m2", "a", False)) == b"10"


def test_a_duplicate_is_refused_for_the_dedup_ttl_and_not_for_that_of_dlid(script_runner):
    """dlid lives for more than an hour; the caller specified five seconds."""
    schedule(script_runner, (7, "m1", "a", True))
    script_runner.client.delete(script_runner.keys.delayed)  # promoted
    assert schedule(script_runner, (9, "m2", "a", True), token="u") == b"0"
    script_runner.client.delete(script_runner.keys.dedup_marker("a"))  # its TTL is over
    assert schedule(script_runner, (9, "m2", "a", True), token="v") == b"1"
    assert script_runner.dump()["delayed"] == [(b"m2", 9.0)]
    assert script_runner.dump()["didx:a"] == b"m2"


def test_a_deduplicated_job_that_is_still_delayed_is_a_duplicate(script_runner):
    schedule(script_runner, (7, "m1", "a", True))
    script_runner.client.delete(script_runner.keys.dedup_marker("a"))
    assert schedule(script_runner, (9, "m2", "a", True), token="u") == b"0"
    assert script_runner.dump()["delayed"] == [(b"m1", 7.0)]
