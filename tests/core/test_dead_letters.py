"""Letters, batches, events: what they say of themselves."""

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

LETTER = parse_dead_letter(
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


def test_a_letter_is_read():
    assert (LETTER.id, LETTER.source_id, LETTER.job_name) == ("5000-0", "1-0", "send")
    assert (LETTER.job_id, LETTER.reason, LETTER.attempts) == ("batch:b:0:3", "unrecoverable", 3)
    assert (LETTER.error, LETTER.failed_at_ms) == ("ValueError: boom", 4000)


@pytest.mark.parametrize(
    ("choose", "fits"),
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
def test_letters_are_chosen(choose, fits):
    assert choose.matches(LETTER) is fits


def test_the_age_of_a_letter_that_does_not_say_is_that_of_its_entry():
    foreign = dataclasses.replace(LETTER, failed_at_ms=None)
    assert DeadLetterFilter(after_ms=5000).matches(foreign)
    assert not DeadLetterFilter(after_ms=5001).matches(foreign)


def test_a_letter_that_cannot_be_read_has_no_job_and_keeps_its_bytes():
    bad = parse_dead_letter([b"1-0", [b"d", b"\xc1", b"reason", b"decode_failed"]])
    assert isinstance(bad, DeadLetter)
    assert (bad.job, bad.job_id, bad.raw) == (None, None, b"\xc1")


names = st.from_regex(r"[A-Za-z0-9._~@+-]{1,200}", fullmatch=True)


@given(names, st.integers(0, MAX_PARTS - 1), st.integers(0, MAX_INDEX))
def test_a_place_comes_back_from_its_id(batch, part, index):
    assert check_batch_id(batch) == batch
    assert parse_batch_job_id(batch_job_id(batch, part, index)) == BatchPosition(batch, part, index)


@given(st.text())
def test_other_ids_have_no_place(text):
    found = parse_batch_job_id(text)
    assert found is None or batch_job_id(found.batch_id, found.part, found.index) == text


@pytest.mark.parametrize(
    "text",
    ["batch:b:1_0:5", "batch:b:+1:5", "batch:b: 1:5", "batch:b:01:5", "batch:b:٣:5", "batch::0:0",
     "batch:b:0", "batch:b:100000:0", f"batch:b:0:{2**32}", "batch:b:0:" + "9" * 5000],
)  # fmt: skip
def test_only_one_spelling_of_a_place_counts(text):
    """Two ids of one bit would count one job where there are two."""
    assert parse_batch_job_id(text) is None


@pytest.mark.parametrize("bad", ["", "a:b", "a b", "é", "x" * 201, "a\n", None, 5])
def test_bad_batch_ids_are_refused(bad):
    with pytest.raises(InvalidArgument):
        check_batch_id(bad)


@given(st.sets(st.integers(0, 2000)))
def test_set_bits_are_those_that_redis_set(indices):
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


def test_a_batch_of_one_part_knows_its_ids():
    assert list(Batch("q", "b", 2).job_ids()) == ["batch:b:0:0", "batch:b:0:1"]
    with pytest.raises(InvalidArgument):
        Batch("q", "b", 2, parts=2).job_ids()


def test_events_have_the_fields_of_the_wire_in_its_order():
    fields = event_fields("failed", "j", 5, "send", attempt=1, reason="boom", duration_us=9)
    assert fields == [
        *("e", "failed", "id", "j", "ts", 5, "n", "send"),
        *("attempt", 1, "reason", "boom", "duration_us", 9),
    ]
    read = parse_event(
        "1-0", {str(k): str(v) for k, v in zip(fields[::2], fields[1::2], strict=True)}
    )
    assert (read.name, read.job_id, read.ts_ms, read.job_name) == ("failed", "j", 5, "send")
    assert (read.attempt, read.reason, read.duration_us) == (1, "boom", 9)


@given(st.dictionaries(st.sampled_from(["e", "id", "ts", "n", "attempt", "zz"]), st.text()))
def test_any_fields_make_an_event(fields):
    event = parse_event("1-0", fields)
    assert event.name == fields.get("e", "")
    assert isinstance(event.ts_ms, int)


ALL = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.ChasquiError)
]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_errors_survive_a_pickle_and_say_where(kind):
    error = kind("it went wrong", queue_name="q", job_id="j")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error) == f"[{kind.code}] it went wrong (queue 'q', job 'j')"
    assert (again.queue_name, again.job_id) == ("q", "j")
