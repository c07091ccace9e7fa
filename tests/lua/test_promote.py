"""promote: move due jobs; a malformed member does not stop the others."""

from __future__ import annotations

import pytest

from airflow_provider_chasqui.core.codec import decode_job_id, encode_envelope
from airflow_provider_chasqui.core.retry import RetryPolicy

FAR = 99_999_999_999_999


def member(name: bytes, envelope: bytes) -> bytes:
    return len(name).to_bytes(4, "little") + name + envelope


def promote(script_runner, limit=100):
    keys = [script_runner.keys.delayed, script_runner.keys.stream, script_runner.keys.dlq]
    return script_runner.call("promote", keys, limit)


def test_due_jobs_are_promoted_in_order_of_their_due_time(script_runner):
    seeded = {member(b"n", b"two"): 20, member(b"", b"one"): 10, member(b"", b"later"): FAR}
    script_runner.client.zadd(script_runner.keys.delayed, seeded)
    promoted, remaining, late, next_due, now, dead_lettered, envelopes = promote(script_runner)
    assert (promoted, remaining, next_due, dead_lettered, envelopes) == (
        2,
        1,
        FAR,
        0,
        [b"one", b"two"],
    )
    assert late == now - 10
    assert script_runner.stream() == [{b"d": b"one"}, {b"d": b"two", b"n": b"n"}]
    assert script_runner.dump()["delayed"] == [(member(b"", b"later"), float(FAR))]


def test_limit_the_limit_is_processed(script_runner):
    script_runner.client.zadd(
        script_runner.keys.delayed, {member(b"", b"%d" % i): i for i in range(5)}
    )
    assert promote(script_runner, 3)[:4:3] == [3, 3]
    assert promote(script_runner, 3)[0] == 2
    assert [fields[b"d"] for fields in script_runner.stream()] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    "bad", [b"", b"abc", b"\xff\xff\xff\xffx", member(b"name", b""), b"\x09\x00\x00\x00short"]
)
def test_a_malformed_member_becomes_a_dead_letter_and_the_others_are_promoted(script_runner, bad):
    """Any of these members stops the promoter of ChasquiMQ 1.3.0 permanently."""
    script_runner.client.zadd(
        script_runner.keys.delayed, {member(b"", b"one"): 1, bad: 2, member(b"", b"two"): 3}
    )
    promoted, remaining, _, _, now, dead_lettered, _ = promote(script_runner)
    assert (promoted, remaining, dead_lettered) == (2, 0, 1)
    assert [fields[b"d"] for fields in script_runner.stream()] == [b"one", b"two"]
    [dead_letter] = script_runner.stream("dlq")
    assert (dead_letter[b"d"], dead_letter[b"reason"]) == (bad, b"malformed")
    assert int(dead_letter[b"failed_at"]) == now
    assert dead_letter[b"detail"]


def test_infinite_scores_are_handled(script_runner):
    script_runner.client.zadd(
        script_runner.keys.delayed, {member(b"", b"a"): "-inf", member(b"", b"b"): "inf"}
    )
    promoted, remaining, late, next_due, now, _, _ = promote(script_runner)
    assert (promoted, remaining) == (1, 1)
    assert 0 <= late <= now
    assert next_due == 2**53


def test_an_empty_delayed_set_changes_nothing(script_runner):
    promoted, remaining, late, next_due, now, dead_lettered, envelopes = promote(script_runner)
    assert (promoted, remaining, late, next_due, dead_lettered, envelopes) == (0, 0, 0, 0, 0, [])
    assert now > 1_700_000_000_000
    assert script_runner.dump() == {}


def test_a_returned_envelope_is_truncated_after_its_id(script_runner):
    job_id, long_id, longer_id = "01J00000000000000000000000", "x" * 40, "y" * 300
    short = encode_envelope(job_id, b"body", 7)
    retried = encode_envelope("b:1", b"body", 7, 1, RetryPolicy(3))
    long = encode_envelope(long_id, b"body", 7)
    longer = encode_envelope(longer_id, b"body", 7)
    envelopes = {short, retried, long, longer, b"\x94"}
    script_runner.client.zadd(script_runner.keys.delayed, {member(b"", d): 1 for d in envelopes})
    truncated = promote(script_runner)[6]
    assert sorted(truncated) == sorted([short[:28], retried[:5], long[:43], longer[:304], b"\x94"])
    assert sorted(map(decode_job_id, truncated)) == ["", job_id, "b:1", long_id, longer_id]
    assert {fields[b"d"] for fields in script_runner.stream()} == envelopes


def test_a_call_moves_about_4_mib(script_runner):
    """A worker would otherwise block the server while it moves a thousand large jobs."""
    members = {member(b"", b"%02d" % n + b"x" * 1_000_000): n for n in range(12)}
    script_runner.client.zadd(script_runner.keys.delayed, members)
    moved = []
    while (reply := promote(script_runner))[0]:
        moved.append(reply[0])
    assert sum(moved) == 12
    assert max(moved) <= 5
    order = [fields[b"d"][:2] for fields in script_runner.stream()]
    assert order == [b"%02d" % n for n in range(12)]
