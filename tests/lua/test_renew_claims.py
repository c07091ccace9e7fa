"""renew_claims: renew entries that are still pending for the consumer."""

from __future__ import annotations


def renew_claims(script_runner, *ids, consumer="me"):
    return script_runner.call(
        "renew_claims", [script_runner.keys.stream], "default", consumer, *ids
    )


def test_own_entries_are_renewed_and_keep_their_delivery_count(script_runner):
    first, second, third = script_runner.deliver(1, 2, 3)
    script_runner.client.xclaim(script_runner.keys.stream, "default", "other", 0, [second])
    script_runner.client.xack(script_runner.keys.stream, "default", third)
    script_runner.client.xclaim(
        script_runner.keys.stream, "default", "me", 0, [first], idle=50_000, justid=True
    )
    assert renew_claims(script_runner, first, second, third, "1-0") == [1, 0, 0, 0]
    pending = script_runner.client.xpending_range(
        script_runner.keys.stream, "default", first, first, 1
    )
    assert pending[0]["time_since_delivered"] < 40_000
    assert script_runner.dump()["stream"]["default"] == [(first, "me", 1), (second, "other", 2)]


def test_an_entry_that_was_trimmed_stays_pending(script_runner):
    """XCLAIM would remove it from the pending entries, and the outcome of its job would be lost."""
    first, second = script_runner.deliver(1, 2)
    script_runner.client.xtrim(script_runner.keys.stream, maxlen=1, approximate=False)
    assert renew_claims(script_runner, first, second) == [2, 1]
    assert script_runner.pending() == [first, second]
