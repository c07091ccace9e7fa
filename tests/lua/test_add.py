"""add: add all jobs or none, each once."""

from __future__ import annotations

import pytest
import redis

from airflow_provider_chasqui.core.codec import decode_envelope, encode_envelope
from airflow_provider_chasqui.core.retry import RetryPolicy

RESULTS = ("result", "progress", "progress_value")


def add(script_runner, *jobs, max_len=0, token="t", ttl_ms=100_000):
    """Each job is (d, n, marker or None)."""
    keys = [script_runner.keys.stream, script_runner.keys.idempotency_marker(token)]
    keys.append(script_runner.keys.cancel_requests)
    args = [max_len, ttl_ms]
    for d, n, marker in jobs:
        args += [d, n, 60_000 if marker else 0, int(bool(marker))]
        if marker:
            keys += [f"{script_runner.keys.hash_tag}:{kind}:{marker}" for kind in RESULTS]
            keys.append(script_runner.keys.dedup_marker(marker))
    return script_runner.call("add", keys, *args)


def test_jobs_are_added_to_the_stream_in_order(script_runner):
    assert add(script_runner, ("one", "", None), ("two", "name", None)) == b"11"
    assert script_runner.stream() == [{b"d": b"one"}, {b"d": b"two", b"n": b"name"}]
    assert sorted(script_runner.dump()) == ["idempotency:t", "stream"]
    assert 99_000 < script_runner.ttl_ms(script_runner.keys.idempotency_marker("t")) <= 100_000


def test_a_repeated_call_adds_nothing_and_returns_the_same_reply(script_runner):
    first = add(script_runner, ("one", "", "a"), ("two", "", "a"))
    before = script_runner.dump()
    assert add(script_runner, ("one", "", "a"), ("two", "", "a")) == first == b"10"
    assert script_runner.dump() == before


def test_only_an_added_job_deletes_the_result_of_an_earlier_one(script_runner):
    keys = script_runner.keys
    script_runner.client.set(keys.dedup_marker("b"), "1-0")
    for job_id in ("a", "b", "c"):
        for kind in RESULTS:
            script_runner.client.set(f"{keys.hash_tag}:{kind}:{job_id}", "old")
    assert add(script_runner, ("one", "", "a"), ("two", "", "b"), ("three", "", None)) == b"101"
    kept = {f"{kind}:{job_id}" for kind in RESULTS for job_id in ("b", "c")}
    assert {name for name in script_runner.dump() if name.startswith(RESULTS)} == kept


def test_another_call_adds_again(script_runner):
    add(script_runner, ("one", "", None))
    assert add(script_runner, ("one", "", None), token="u") == b"1"
    assert len(script_runner.stream()) == 2


def test_a_job_whose_marker_exists_is_not_added(script_runner):
    assert add(script_runner, ("one", "", "a")) == b"1"
    assert add(script_runner, ("two", "", "a"), ("three", "", None), token="u") == b"01"
    assert script_runner.stream() == [{b"d": b"one"}, {b"d": b"three"}]
    [(entry_id, _), _] = script_runner.dump()["stream"]["entries"]
    assert script_runner.dump()["dedup:a"] == entry_id.encode()
    assert 59_000 < script_runner.ttl_ms(script_runner.keys.dedup_marker("a")) <= 60_000


def test_a_full_queue_refuses_all_jobs_and_changes_nothing(script_runner):
    add(script_runner, ("one", "", None), max_len=3)
    before = script_runner.dump()
    with pytest.raises(redis.ResponseError, match="CHASQUIFULL 3"):
        add(
            script_runner,
            ("two", "", "a"),
            ("three", "", None),
            ("four", "", None),
            max_len=3,
            token="u",
        )
    assert script_runner.dump() == before
    # The same call may succeed later: the refusal was not stored.
    assert add(script_runner, ("two", "", "a"), ("three", "", None), max_len=3, token="u") == b"11"


def test_duplicates_do_not_count_against_the_max_length(script_runner):
    add(script_runner, ("one", "", "a"), max_len=2)
    assert (
        add(script_runner, ("x", "", "a"), ("two", "", "b"), ("y", "", "b"), max_len=2, token="u")
        == b"010"
    )
    assert len(script_runner.stream()) == 2


def test_a_key_of_another_type_is_refused_before_anything_is_written(script_runner):
    script_runner.client.set(script_runner.keys.stream, "another type")
    before = script_runner.dump()
    for max_len in (0, 5):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            add(script_runner, ("one", "", "a"), max_len=max_len)
    assert script_runner.dump() == before


@pytest.mark.parametrize("job_id", ["j", "i" * 40, "i" * 300], ids=len)
@pytest.mark.parametrize("size", [1, 300, 70_000])
@pytest.mark.parametrize("retry", [None, RetryPolicy(max_attempts=7)], ids=["", "retry"])
def test_a_job_is_created_after_the_cancel_request_of_an_earlier_one(
    script_runner, job_id, size, retry
):
    requests = script_runner.keys.cancel_requests
    requested_at = 1_700_000_000_000
    for token, created_at in enumerate((5, requested_at, requested_at + 1, requested_at + 9)):
        script_runner.client.hset(requests, job_id, f"{requested_at} 1-1 {requested_at} 0")
        envelope = encode_envelope(job_id, b"x" * size, created_at, 0, retry)
        add(script_runner, (envelope, "", job_id), token=token)
        script_runner.client.delete(script_runner.keys.dedup_marker(job_id))
        job = decode_envelope(script_runner.stream()[-1][b"d"])
        assert (job.id, job.body, job.attempt, job.retry) == (job_id, b"x" * size, 0, retry)
        assert job.created_at_ms == max(created_at, requested_at + 1)
        request = script_runner.client.hget(requests, job_id)
        assert request == f"{requested_at} 1-1 {requested_at} 1".encode()


def test_a_cancel_request_that_is_not_readable_is_ignored(script_runner):
    script_runner.client.hset(script_runner.keys.cancel_requests, "j", "junk")
    envelope = encode_envelope("j", b"x", 5)
    assert add(script_runner, (envelope, "", "j")) == b"1"
    assert script_runner.stream() == [{b"d": envelope}]
