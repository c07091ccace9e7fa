"""Dead letters, batches, events and errors: parsing, filters and derived values."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_chasqui.core import errors
from airflow_provider_chasqui.core.batch import (
    MAX_INDEX,
    MAX_PARTS,
    Batch,
    BatchPosition,
    BatchProgress,
    batch_job_id,
    check_batch_id,
    iter_set_bits,
    parse_batch_job_id,
)
from airflow_provider_chasqui.core.codec import encode_envelope
from airflow_provider_chasqui.core.commands.dead_letters import DeadLetterFilter, parse_dead_letter
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.event import event_fields, parse_event
from airflow_provider_chasqui.core.job import DeadLetter

DEAD_LETTER = parse_dead_letter(
    [
        b"5000-0",
        [
            *(b"d", encode_envelope("batch:b:0:3", b"\xc0", 1)),
            *(b"n", b"send", b"source_id", b"1-0", b"reason", b"unrecoverable"),
            *(b"detail", b"the detail", b"error", b"ValueError: boom", b"attempts", b"3"),
            *(b"failed_at", b"4000", b"unknown", b"field"),
        ],
    ]
)


def test_a_dead_letter_is_parsed():
    assert (DEAD_LETTER.id, DEAD_LETTER.source_id, DEAD_LETTER.job_name) == (
        "5000-0",
        "1-0",
        "send",
    )
    assert (DEAD_LETTER.job_id, DEAD_LETTER.reason, DEAD_LETTER.attempts) == (
        "batch:b:0:3",
        "unrecoverable",
        3,
    )
    assert (DEAD_LETTER.error, DEAD_LETTER.failed_at_ms) == ("ValueError: boom", 4000)


@pytest.mark.parametrize(
    ("dead_letter_filter", "expected"),
    [
        (DeadLetterFilter(), True),
        (DeadLetterFilter(ids=frozenset({"5000-0"})), True),
        (DeadLetterFilter(ids=frozenset({"5000-1"})), False),
        (DeadLetterFilter(ids=frozenset()), False),
        (DeadLetterFilter(job_ids=frozenset({"batch:b:0:3"})), True),
        (DeadLetterFilter(job_ids=frozenset({"x"})), False),
        (DeadLetterFilter(reason="unrecoverable"), True),
        (DeadLetterFilter(reason="unrecov"), False),
        (DeadLetterFilter(job_name="send"), True),
        (DeadLetterFilter(job_name=""), False),
        (DeadLetterFilter(before_ms=4001), True),
        (DeadLetterFilter(before_ms=4000), False),
        (DeadLetterFilter(after_ms=4000), True),
        (DeadLetterFilter(after_ms=4001), False),
        (DeadLetterFilter(text="boom"), True),
        (DeadLetterFilter(text="the detail"), True),
        (DeadLetterFilter(text="else"), False),
        (DeadLetterFilter(batch_id="b"), True),
        (DeadLetterFilter(batch_id="c"), False),
        (
            DeadLetterFilter(reason="unrecoverable", job_name="send", batch_id="b", text="boom"),
            True,
        ),
        (
            DeadLetterFilter(reason="unrecoverable", job_name="other", batch_id="b", text="boom"),
            False,
        ),
    ],
)
def test_a_filter_matches_dead_letters(dead_letter_filter, expected):
    assert dead_letter_filter.matches(DEAD_LETTER) is expected


def test_a_dead_letter_without_failed_at_has_the_time_of_its_entry():
    foreign = dataclasses.replace(DEAD_LETTER, failed_at_ms=None)
    assert DeadLetterFilter(after_ms=5000).matches(foreign)
    assert not DeadLetterFilter(after_ms=5001).matches(foreign)


def test_an_undecodable_dead_letter_has_no_job_and_keeps_its_bytes():
    bad = parse_dead_letter([b"1-0", [b"d", b"\xc1", b"reason", b"decode_failed"]])
    assert isinstance(bad, DeadLetter)
    assert (bad.job, bad.job_id, bad.raw) == (None, None, b"\xc1")


names = st.from_regex(r"[A-Za-z0-9._~@+-]{1,200}", fullmatch=True)


@given(names, st.integers(0, MAX_PARTS - 1), st.integers(0, MAX_INDEX))
def test_a_batch_position_survives_a_round_trip(batch, part, index):
    assert check_batch_id(batch) == batch
    assert parse_batch_job_id(batch_job_id(batch, part, index)) == BatchPosition(batch, part, index)


@given(st.text())
def test_other_ids_have_no_batch_position(text):
    position = parse_batch_job_id(text)
    assert position is None or text == batch_job_id(
        position.batch_id, position.part, position.index
    )


@pytest.mark.parametrize(
    "text",
    [
        *("batch:b:1_0:5", "batch:b:+1:5", "batch:b: 1:5", "batch:b:01:5", "batch:b:٣:5"),
        *("batch::0:0", "batch:b:0", "batch:b:100000:0", f"batch:b:0:{2**32}"),
        "batch:b:0:" + "9" * 5000,
    ],
)
def test_a_batch_position_has_only_one_spelling(text):
    """If two ids had the same bit, the batch would count two jobs as one."""
    assert parse_batch_job_id(text) is None


@pytest.mark.parametrize("bad", ["", "a:b", "a b", "é", "x" * 201, "a\n", None, 5])
def test_invalid_batch_ids_are_rejected(bad):
    with pytest.raises(InvalidArgument):
        check_batch_id(bad)


@given(st.sets(st.integers(0, 2000)))
def test_the_bits_that_redis_sets_are_found(indices):
    bits = bytearray(251)
    for index in indices:
        bits[index // 8] |= 128 >> index % 8
    assert list(iter_set_bits(bytes(bits))) == sorted(indices)


def progress(total: int | None, done: int, dead: int) -> BatchProgress:
    return BatchProgress("b", total, 1, done + dead, done, dead, None, "")


def test_a_batch_is_finished_when_its_total_is_known_and_reached():
    assert not progress(None, 5, 0).finished
    assert not progress(5, 3, 1).finished
    assert progress(5, 3, 2).finished
    assert progress(0, 0, 0).finished
    assert (progress(5, 3, 1).remaining, progress(None, 1, 0).remaining) == (1, None)


def test_a_batch_of_one_part_has_job_ids():
    assert list(Batch("q", "b", 2).job_ids()) == ["batch:b:0:0", "batch:b:0:1"]
    with pytest.raises(InvalidArgument):
        Batch("q", "b", 2, parts=2).job_ids()


def test_events_have_the_fields_in_the_order_of_the_wire_format():
    fields = event_fields("failed", "j", 5, "send", attempt=1, reason="boom", duration_us=9)
    assert fields == [
        *("e", "failed", "id", "j", "ts", 5, "n", "send"),
        *("attempt", 1, "reason", "boom", "duration_us", 9),
    ]
    event = parse_event(
        "1-0", {str(k): str(v) for k, v in zip(fields[::2], fields[1::2], strict=True)}
    )
    assert (event.name, event.job_id, event.ts_ms, event.job_name) == ("failed", "j", 5, "send")
    assert (event.attempt, event.reason, event.duration_us) == (1, "boom", 9)


@given(st.dictionaries(st.sampled_from(["e", "id", "ts", "n", "attempt", "zz"]), st.text()))
def test_arbitrary_fields_give_an_event(fields):
    event = parse_event("1-0", fields)
    assert event.name == fields.get("e", "")
    assert isinstance(event.ts_ms, int)


ERROR_CLASSES = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.ChasquiError)
]


@pytest.mark.parametrize("kind", ERROR_CLASSES, ids=lambda kind: kind.__name__)
def test_errors_can_be_pickled_and_name_queue_and_job(kind):
    error = kind("it went wrong", queue_name="q", job_id="j")
    unpickled = pickle.loads(pickle.dumps(error))
    assert type(unpickled) is kind
    assert str(unpickled) == str(error) == f"[{kind.code}] it went wrong (queue 'q', job 'j')"
    assert (unpickled.queue_name, unpickled.job_id) == ("q", "j")
