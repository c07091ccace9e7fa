"""finalize_batch: write the total after all parts."""

from __future__ import annotations

import pytest
import redis


def finalize(script_runner, total, parts):
    return script_runner.call(
        "finalize_batch", [script_runner.keys.batch("b")], total, parts, 5, "dag", 60_000, ""
    )


def seed(script_runner, *sent):
    for part, count in enumerate(sent):
        script_runner.client.hset(script_runner.keys.batch("b"), f"sent:{part}", count)


def test_a_complete_batch_is_finalized(script_runner):
    seed(script_runner, 3, 4)
    assert finalize(script_runner, 7, 2) == 7
    assert script_runner.dump()["batch:b"] == {
        **{b"sent:0": b"3", b"sent:1": b"4", b"total": b"7", b"parts": b"2"},
        **{b"created": b"5", b"source": b"dag"},
    }
    assert 59_000 < script_runner.ttl_ms(script_runner.keys.batch("b")) <= 60_000


def test_finalizing_again_returns_the_same_total(script_runner):
    seed(script_runner, 3)
    assert [finalize(script_runner, 3, 1), finalize(script_runner, 3, 1)] == [3, 3]


@pytest.mark.parametrize(("total", "parts"), [(6, 2), (8, 2), (7, 1), (7, 3)])
def test_finalizing_with_another_total_is_a_conflict(script_runner, total, parts):
    seed(script_runner, 3, 4)
    finalize(script_runner, 7, 2)
    before = script_runner.dump()
    with pytest.raises(redis.ResponseError, match="CHASQUIFINALIZED 7"):
        finalize(script_runner, total, parts)
    assert script_runner.dump() == before


@pytest.mark.parametrize(("total", "parts"), [(8, 2), (7, 1), (6, 2)])
def test_an_incomplete_batch_gets_no_total(script_runner, total, parts):
    seed(script_runner, 3, 4)
    before = script_runner.dump()
    with pytest.raises(redis.ResponseError, match="CHASQUIGAP"):
        finalize(script_runner, total, parts)
    assert script_runner.dump() == before


def test_an_empty_batch_can_be_finalized(script_runner):
    assert finalize(script_runner, 0, 1) == 0
    assert script_runner.dump()["batch:b"][b"total"] == b"0"
