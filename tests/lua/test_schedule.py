"""schedule: into the delayed set, each once, with its index."""

from __future__ import annotations


def schedule(bench, *jobs, token="t"):
    """Each job is (run at, member, id or None, unique)."""
    keys, args = [bench.keys.delayed, bench.keys.idempotency_marker(token)], [100_000]
    for run_at, member, job_id, unique in jobs:
        args += [run_at, member, 3660 if job_id else 0, 5000 if unique else 0]
        keys += (
            [bench.keys.delayed_marker(job_id), bench.keys.delayed_index(job_id)] if job_id else []
        )
        keys += [bench.keys.dedup_marker(job_id)] if unique else []
    return bench.call("schedule", keys, *args)


def test_jobs_of_every_kind_in_one_call(bench):
    said = schedule(bench, (7, "m1", None, False), (5, "m2", "a", False), (6, "m3", "b", True))
    assert said == b"111"
    assert bench.all() == {
        "delayed": [(b"m2", 5.0), (b"m3", 6.0), (b"m1", 7.0)],
        "once:t": b"111",
        "dlid:a": b"1",
        "didx:a": b"m2",
        "dlid:b": b"1",
        "didx:b": b"m3",
        "unique:b": b"delayed",
    }
    assert bench.client.ttl(bench.keys.delayed_marker("a")) in (3660, 3659)
    assert bench.client.ttl(bench.keys.delayed_index("a")) in (3660, 3659)


def test_the_same_call_again_adds_nothing(bench):
    schedule(bench, (7, "m1", None, False))
    bench.client.delete(bench.keys.delayed)  # as if it had been promoted meanwhile
    assert schedule(bench, (7, "m1", None, False)) == b"1"
    assert "delayed" not in bench.all()


def test_an_id_goes_in_once_as_long_as_its_marker_stands(bench):
    schedule(bench, (7, "m1", "a", False))
    assert schedule(bench, (9, "m2", "a", False), token="u") == b"0"
    assert bench.all()["delayed"] == [(b"m1", 7.0)]
    bench.client.delete(bench.keys.delayed)
    assert schedule(bench, (9, "m2", "a", False), token="v") == b"0"


def test_the_same_id_twice_in_one_call_goes_in_once(bench):
    assert schedule(bench, (7, "m1", "a", False), (8, "m2", "a", False)) == b"10"


def test_a_unique_job_is_kept_out_for_its_own_life_not_for_that_of_dlid(bench):
    """dlid stands for more than an hour; the caller said five seconds."""
    schedule(bench, (7, "m1", "a", True))
    bench.client.delete(bench.keys.delayed)  # promoted
    assert schedule(bench, (9, "m2", "a", True), token="u") == b"0"
    bench.client.delete(bench.keys.dedup_marker("a"))  # its life is over
    assert schedule(bench, (9, "m2", "a", True), token="v") == b"1"
    assert bench.all()["delayed"] == [(b"m2", 9.0)]
    assert bench.all()["didx:a"] == b"m2"


def test_a_unique_job_that_is_still_delayed_is_there(bench):
    schedule(bench, (7, "m1", "a", True))
    bench.client.delete(bench.keys.dedup_marker("a"))
    assert schedule(bench, (9, "m2", "a", True), token="u") == b"0"
    assert bench.all()["delayed"] == [(b"m1", 7.0)]
