"""repeat_enqueue_due: enqueue each score once; limit, end and next fire."""

from __future__ import annotations

import pytest

KEY = "k"


def member(name: bytes, envelope: bytes) -> bytes:
    return len(name).to_bytes(4, "little") + name + envelope


def seed(script_runner, score=100, **fields):
    script_runner.client.zadd(script_runner.keys.repeat, {KEY: score})
    script_runner.client.hset(
        script_runner.keys.repeat_spec(KEY), mapping={"spec": "body"} | fields
    )


def enqueue_due(script_runner, *fires, score=100, next_fire=200, limit=0, end=0, now=150):
    keys = script_runner.keys
    names = [keys.stream, keys.delayed, keys.repeat, keys.repeat_spec(KEY)]
    flat = [part for fire in fires for part in fire]
    return script_runner.call(
        "repeat_enqueue_due", names, KEY, score, next_fire, limit, end, now, *flat
    )


def test_a_due_fire_is_added_to_the_stream_and_a_future_one_is_delayed(script_runner):
    seed(script_runner)
    assert enqueue_due(script_runner, (100, member(b"n", b"one")), (160, member(b"", b"two"))) == [
        2,
        0,
    ]
    assert script_runner.stream() == [{b"d": b"one", b"n": b"n"}]
    assert script_runner.dump()["delayed"] == [(member(b"", b"two"), 160.0)]
    assert script_runner.dump()["repeat"] == [(b"k", 200.0)]
    assert script_runner.dump()["repeat:spec:k"] == {b"spec": b"body", b"fired": b"2"}


def test_a_score_fires_once(script_runner):
    seed(script_runner)
    fire = (100, member(b"", b"one"))
    assert enqueue_due(script_runner, fire) == [1, 0]
    before = script_runner.dump()
    assert enqueue_due(script_runner, fire) == [-1, 0]
    assert script_runner.dump() == before


def test_a_deleted_or_rescheduled_repeatable_job_does_not_fire(script_runner):
    assert enqueue_due(script_runner, (100, member(b"", b"one"))) == [-1, 0]
    assert script_runner.dump() == {}
    seed(script_runner, score=101)
    assert enqueue_due(script_runner, (100, member(b"", b"one"))) == [-1, 0]
    assert "stream" not in script_runner.dump()


def test_skipped_fires_only_change_the_score(script_runner):
    seed(script_runner)
    assert enqueue_due(script_runner) == [0, 0]
    assert script_runner.dump() == {"repeat": [(b"k", 200.0)], "repeat:spec:k": {b"spec": b"body"}}


def test_the_limit_stops_the_fires_and_removes_the_repeatable_job(script_runner):
    seed(script_runner, fired=2)
    fires = [(100 + i, member(b"", b"%d" % i)) for i in range(5)]
    assert enqueue_due(script_runner, *fires, limit=4) == [2, 1]
    assert [fields[b"d"] for fields in script_runner.stream()] == [b"0", b"1"]
    assert sorted(script_runner.dump()) == ["stream"]


@pytest.mark.parametrize(
    ("next_fire", "end", "removed"), [(200, 200, 0), (200, 199, 1), (0, 0, 1), (200, 0, 0)]
)
def test_the_end_removes_the_repeatable_job(script_runner, next_fire, end, removed):
    seed(script_runner)
    assert enqueue_due(script_runner, (100, member(b"", b"x")), next_fire=next_fire, end=end) == [
        1,
        removed,
    ]
    assert ("repeat" in script_runner.dump()) is (removed == 0)
    assert ("repeat:spec:k" in script_runner.dump()) is (removed == 0)


def test_an_invalid_counter_does_not_fire_forever(script_runner):
    """An error after XADD would leave the score unchanged, so that the job fires again at once."""
    seed(script_runner, fired="many")
    assert enqueue_due(script_runner, (100, member(b"", b"x"))) == [1, 0]
    assert script_runner.dump()["repeat:spec:k"][b"fired"] == b"1"
    assert script_runner.dump()["repeat"] == [(b"k", 200.0)]
