"""schedule_retries: acknowledge entries and add their jobs to the delayed set in one step."""

from __future__ import annotations

import pytest
import redis


def schedule_retries(script_runner, *entries):
    flat = [part for entry in entries for part in entry]
    return script_runner.call(
        "schedule_retries",
        [script_runner.keys.stream, script_runner.keys.delayed],
        "default",
        "me",
        *flat,
    )


def test_each_retry_is_scheduled_once(script_runner):
    first, second = script_runner.deliver("one", "two")
    assert schedule_retries(
        script_runner, (first, 5, "m1"), (second, 6, "m2"), ("1-0", 7, "m3")
    ) == [1, 1, 0]
    assert script_runner.dump()["delayed"] == [(b"m1", 5.0), (b"m2", 6.0)]
    assert script_runner.stream() == []
    assert script_runner.pending() == []
    assert schedule_retries(script_runner, (first, 9, "m1")) == [0]
    assert script_runner.dump()["delayed"][0] == (b"m1", 5.0)


def test_an_entry_claimed_by_another_consumer_is_not_changed(script_runner):
    first, second = script_runner.deliver("one", "two")
    script_runner.client.xclaim(script_runner.keys.stream, "default", "other", 0, [first])
    assert schedule_retries(script_runner, (first, 5, "m1"), (second, 6, "m2")) == [0, 1]
    assert script_runner.dump()["delayed"] == [(b"m2", 6.0)]
    assert script_runner.pending() == [first]


def test_no_retry_is_scheduled_if_the_group_does_not_exist(script_runner):
    [entry] = script_runner.deliver("one")
    script_runner.client.delete(script_runner.keys.stream)
    assert schedule_retries(script_runner, (entry, 5, "m1")) == [0]
    assert script_runner.dump() == {}


def test_no_job_is_lost_if_the_delayed_set_has_the_wrong_type(script_runner):
    [entry] = script_runner.deliver("one")
    script_runner.client.set(script_runner.keys.delayed, "another type")
    before = script_runner.dump()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        schedule_retries(script_runner, (entry, 5, "m1"))
    assert script_runner.dump() == before


def test_identical_jobs_are_not_merged(script_runner):
    """Two jobs with the same id, payload and millisecond are two jobs after a failure as well."""
    entries = script_runner.deliver(*["same"] * 3)
    assert schedule_retries(script_runner, *((entry, 5, "m") for entry in entries)) == [1, 1, 1]
    assert script_runner.dump()["delayed"] == [(b"m", 5.0), (b"m\0", 5.0), (b"m\0\0", 5.0)]
