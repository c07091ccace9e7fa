"""keep: renewed if it is still ours."""

from __future__ import annotations


def keep(bench, *ids, consumer="me"):
    return bench.call("renew_claims", [bench.keys.stream], "default", consumer, *ids)


def test_ours_are_renewed_and_counted_as_before(bench):
    first, second, third = bench.deliver(1, 2, 3)
    bench.client.xclaim(bench.keys.stream, "default", "other", 0, [second])
    bench.client.xack(bench.keys.stream, "default", third)
    bench.client.xclaim(bench.keys.stream, "default", "me", 0, [first], idle=50_000, justid=True)
    assert keep(bench, first, second, third, "1-0") == [1, 0, 0, 0]
    found = bench.client.xpending_range(bench.keys.stream, "default", first, first, 1)
    assert found[0]["time_since_delivered"] < 40_000
    assert bench.all()["stream"]["default"] == [(first, "me", 1), (second, "other", 2)]
