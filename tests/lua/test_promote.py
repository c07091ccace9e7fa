"""promote: what is due moves; what cannot be read stops nobody."""

from __future__ import annotations

import pytest

from airflow_provider_chasqui.core.codec import decode_job_id, encode_envelope
from airflow_provider_chasqui.core.retry import RetryPolicy

FAR = 99_999_999_999_999


def member(name: bytes, envelope: bytes) -> bytes:
    return len(name).to_bytes(4, "little") + name + envelope


def promote(bench, at_most=100):
    keys = [bench.keys.delayed, bench.keys.stream, bench.keys.dlq]
    return bench.call("promote", keys, at_most)


def test_due_jobs_move_in_the_order_of_their_time(bench):
    seeded = {member(b"n", b"two"): 20, member(b"", b"one"): 10, member(b"", b"later"): FAR}
    bench.client.zadd(bench.keys.delayed, seeded)
    moved, left, late, next_due, now, buried, envelopes = promote(bench)
    assert (moved, left, next_due, buried, envelopes) == (2, 1, FAR, 0, [b"one", b"two"])
    assert late == now - 10
    assert bench.stream() == [{b"d": b"one"}, {b"d": b"two", b"n": b"n"}]
    assert bench.all()["delayed"] == [(member(b"", b"later"), float(FAR))]


def test_at_most_so_many(bench):
    bench.client.zadd(bench.keys.delayed, {member(b"", b"%d" % i): i for i in range(5)})
    assert promote(bench, 3)[:4:3] == [3, 3]
    assert promote(bench, 3)[0] == 2
    assert [fields[b"d"] for fields in bench.stream()] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    "bad", [b"", b"abc", b"\xff\xff\xff\xffx", member(b"name", b""), b"\x09\x00\x00\x00short"]
)
def test_a_bad_member_becomes_a_letter_and_the_rest_goes_on(bench, bad):
    """One of these ends the promoter of ChasquiMQ 1.3.0 for good."""
    bench.client.zadd(bench.keys.delayed, {member(b"", b"one"): 1, bad: 2, member(b"", b"two"): 3})
    moved, left, _, _, now, buried, _ = promote(bench)
    assert (moved, left, buried) == (2, 0, 1)
    assert [fields[b"d"] for fields in bench.stream()] == [b"one", b"two"]
    [letter] = bench.stream("dlq")
    assert (letter[b"d"], letter[b"reason"]) == (bad, b"malformed")
    assert int(letter[b"failed_at"]) == now
    assert letter[b"detail"]


def test_scores_that_are_no_time(bench):
    bench.client.zadd(bench.keys.delayed, {member(b"", b"a"): "-inf", member(b"", b"b"): "inf"})
    moved, left, late, next_due, now, _, _ = promote(bench)
    assert (moved, left) == (1, 1)
    assert 0 <= late <= now
    assert next_due == 2**53


def test_nothing_to_do(bench):
    moved, left, late, next_due, now, buried, envelopes = promote(bench)
    assert (moved, left, late, next_due, buried, envelopes) == (0, 0, 0, 0, 0, [])
    assert now > 1_700_000_000_000
    assert bench.all() == {}


def test_what_it_says_of_an_envelope_ends_with_the_id(bench):
    job_id, odd = "01J00000000000000000000000", "x" * 40
    short = encode_envelope(job_id, b"body", 7)
    retried = encode_envelope("b:1", b"body", 7, 1, RetryPolicy(3))
    long = encode_envelope(odd, b"body", 7)
    bench.client.zadd(
        bench.keys.delayed, {member(b"", d): 1 for d in (short, retried, long, b"\x94")}
    )
    said = promote(bench)[6]
    assert sorted(said) == sorted([short[:28], retried[:5], long, b"\x94"])
    assert sorted(map(decode_job_id, said)) == ["", job_id, "b:1", odd]
    assert {fields[b"d"] for fields in bench.stream()} == {short, retried, long, b"\x94"}
