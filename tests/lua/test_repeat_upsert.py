"""repeat_upsert: create or change a repeatable job, or leave it unchanged."""

from __future__ import annotations


def upsert(script_runner, body="body", next_fire=100):
    keys = [script_runner.keys.repeat, script_runner.keys.repeat_spec("k")]
    return script_runner.call("repeat_upsert", keys, next_fire, "k", body)


def test_a_new_repeatable_job_is_created(script_runner):
    assert upsert(script_runner) == 1
    assert script_runner.dump() == {"repeat": [(b"k", 100.0)], "repeat:spec:k": {b"spec": b"body"}}


def test_an_unchanged_spec_does_not_change_the_next_fire(script_runner):
    """A DAG that registers its repeatable job on every run must not postpone the next fire."""
    upsert(script_runner)
    script_runner.client.hset(script_runner.keys.repeat_spec("k"), "fired", 3)
    before = script_runner.dump()
    assert upsert(script_runner, next_fire=999) == 0
    assert script_runner.dump() == before


def test_a_changed_spec_resets_the_counter(script_runner):
    """ChasquiMQ counts the fires of the old spec against the limit of the new one."""
    upsert(script_runner)
    script_runner.client.hset(script_runner.keys.repeat_spec("k"), "fired", 3)
    assert upsert(script_runner, body="other", next_fire=200) == 2
    assert script_runner.dump() == {"repeat": [(b"k", 200.0)], "repeat:spec:k": {b"spec": b"other"}}


def test_a_missing_score_is_restored(script_runner):
    script_runner.client.hset(script_runner.keys.repeat_spec("k"), "spec", "body")
    assert upsert(script_runner) == 2
    assert script_runner.dump()["repeat"] == [(b"k", 100.0)]
