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
    BatchProgress,
    Place,
    check_batch_id,
    job_id,
    place_of,
    set_bits,
)
from airflow_provider_chasqui.core.codec import encode_envelope
from airflow_provider_chasqui.core.errors import BadInput
from airflow_provider_chasqui.core.event import event_fields, parse_event
from airflow_provider_chasqui.core.job import Letter
from airflow_provider_chasqui.core.ops.letters import Choose, letter

LETTER = letter(
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
    assert (LETTER.id, LETTER.source_id, LETTER.name) == ("5000-0", "1-0", "send")
    assert (LETTER.job_id, LETTER.reason, LETTER.attempts) == ("batch:b:0:3", "unrecoverable", 3)
    assert (LETTER.error, LETTER.failed_at_ms) == ("ValueError: boom", 4000)


@pytest.mark.parametrize(
    ("choose", "fits"),
    [
        (Choose(), True),
        (Choose(ids=frozenset({"5000-0"})), True),
        (Choose(ids=frozenset({"5000-1"})), False),
        (Choose(ids=frozenset()), False),
        (Choose(job_ids=frozenset({"batch:b:0:3"})), True),
        (Choose(job_ids=frozenset({"x"})), False),
        (Choose(reason="unrecoverable"), True),
        (Choose(reason="unrecov"), False),
        (Choose(name="send"), True),
        (Choose(name=""), False),
        (Choose(before_ms=4001), True),
        (Choose(before_ms=4000), False),
        (Choose(after_ms=4000), True),
        (Choose(after_ms=4001), False),
        (Choose(text="boom"), True),
        (Choose(text="the detail"), True),
        (Choose(text="else"), False),
        (Choose(batch="b"), True),
        (Choose(batch="c"), False),
        (Choose(reason="unrecoverable", name="send", batch="b", text="boom"), True),
        (Choose(reason="unrecoverable", name="other", batch="b", text="boom"), False),
    ],
)
def test_letters_are_chosen(choose, fits):
    assert choose.fits(LETTER) is fits


def test_the_age_of_a_letter_that_does_not_say_is_that_of_its_entry():
    foreign = dataclasses.replace(LETTER, failed_at_ms=None)
    assert Choose(after_ms=5000).fits(foreign)
    assert not Choose(after_ms=5001).fits(foreign)


def test_a_letter_that_cannot_be_read_has_no_job_and_keeps_its_bytes():
    bad = letter([b"1-0", [b"d", b"\xc1", b"reason", b"decode_failed"]])
    assert isinstance(bad, Letter)
    assert (bad.job, bad.job_id, bad.raw) == (None, None, b"\xc1")


names = st.from_regex(r"[A-Za-z0-9._~@+-]{1,200}", fullmatch=True)


@given(names, st.integers(0, MAX_PARTS - 1), st.integers(0, MAX_INDEX))
def test_a_place_comes_back_from_its_id(batch, part, index):
    assert check_batch_id(batch) == batch
    assert place_of(job_id(batch, part, index)) == Place(batch, part, index)


@given(st.text())
def test_other_ids_have_no_place(text):
    found = place_of(text)
    assert found is None or job_id(found.batch, found.part, found.index) == text


@pytest.mark.parametrize(
    "text",
    ["batch:b:1_0:5", "batch:b:+1:5", "batch:b: 1:5", "batch:b:01:5", "batch:b:٣:5", "batch::0:0",
     "batch:b:0", "batch:b:100000:0", f"batch:b:0:{2**32}", "batch:b:0:" + "9" * 5000],
)  # fmt: skip
def test_only_one_spelling_of_a_place_counts(text):
    """Two ids of one bit would count one job where there are two."""
    assert place_of(text) is None


@pytest.mark.parametrize("bad", ["", "a:b", "a b", "é", "x" * 201, "a\n", None, 5])
def test_bad_batch_ids_are_refused(bad):
    with pytest.raises(BadInput):
        check_batch_id(bad)


@given(st.sets(st.integers(0, 2000)))
def test_set_bits_are_those_that_redis_set(indices):
    bits = bytearray(251)
    for index in indices:
        bits[index // 8] |= 128 >> index % 8
    assert list(set_bits(bytes(bits))) == sorted(indices)


def progress(total: int | None, done: int, dead: int) -> BatchProgress:
    return BatchProgress("b", total, 1, done + dead, done, dead, None, "")


def test_a_batch_is_finished_when_its_total_is_known_and_reached():
    assert not progress(None, 5, 0).finished
    assert not progress(5, 3, 1).finished
    assert progress(5, 3, 2).finished
    assert progress(0, 0, 0).finished
    assert (progress(5, 3, 1).left, progress(None, 1, 0).left) == (1, None)


def test_a_batch_of_one_part_knows_its_ids():
    assert list(Batch("q", "b", 2).job_ids()) == ["batch:b:0:0", "batch:b:0:1"]
    with pytest.raises(BadInput):
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
    error = kind("it went wrong", queue="q", job_id="j")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error) == f"[{kind.code}] it went wrong (queue 'q', job 'j')"
    assert (again.queue, again.job_id) == ("q", "j")
