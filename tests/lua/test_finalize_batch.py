"""seal_batch: the total, last of all."""

from __future__ import annotations

import pytest
import redis


def seal(bench, total, parts):
    return bench.call("finalize_batch", [bench.keys.batch("b")], total, parts, 5, "dag", 60_000)


def seed(bench, *sent):
    for part, count in enumerate(sent):
        bench.client.hset(bench.keys.batch("b"), f"sent:{part}", count)


def test_a_batch_that_adds_up_is_sealed(bench):
    seed(bench, 3, 4)
    assert seal(bench, 7, 2) == 7
    assert bench.all()["batch:b"] == {
        **{b"sent:0": b"3", b"sent:1": b"4", b"total": b"7", b"parts": b"2"},
        **{b"created": b"5", b"source": b"dag"},
    }
    assert 59_000 < bench.life_ms(bench.keys.batch("b")) <= 60_000


def test_sealing_again_says_the_same(bench):
    seed(bench, 3)
    assert [seal(bench, 3, 1), seal(bench, 3, 1)] == [3, 3]


@pytest.mark.parametrize(("total", "parts"), [(6, 2), (8, 2), (7, 1), (7, 3)])
def test_a_batch_that_was_sealed_otherwise_is_a_conflict(bench, total, parts):
    seed(bench, 3, 4)
    seal(bench, 7, 2)
    before = bench.all()
    with pytest.raises(redis.ResponseError, match="CHASQUIFINALIZED 7"):
        seal(bench, total, parts)
    assert bench.all() == before


@pytest.mark.parametrize(("total", "parts"), [(8, 2), (7, 1), (6, 2)])
def test_a_batch_that_does_not_add_up_has_no_total(bench, total, parts):
    seed(bench, 3, 4)
    before = bench.all()
    with pytest.raises(redis.ResponseError, match="CHASQUIGAP"):
        seal(bench, total, parts)
    assert bench.all() == before


def test_an_empty_batch_is_whole(bench):
    assert seal(bench, 0, 1) == 0
    assert bench.all()["batch:b"][b"total"] == b"0"
