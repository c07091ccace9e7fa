"""Encoding and decoding: values survive a round trip, and arbitrary bytes do no harm."""

from __future__ import annotations

import time
from contextlib import suppress

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_provider_chasqui.core.codec import (
    MAX_JOB_NAME_BYTES,
    decode_delayed_member,
    decode_envelope,
    encode_delayed_member,
    encode_envelope,
    encode_job,
    encode_job_name,
)
from airflow_provider_chasqui.core.commands.consumer_group import parse_entry
from airflow_provider_chasqui.core.commands.dead_letters import (
    dead_lettered_at_ms,
    parse_dead_letter,
)
from airflow_provider_chasqui.core.cron import Cron, Every
from airflow_provider_chasqui.core.errors import DecodeError, EncodeError, InvalidArgument
from airflow_provider_chasqui.core.event import parse_event
from airflow_provider_chasqui.core.job import DeadLetter, InvalidEntry, StreamEntry
from airflow_provider_chasqui.core.payload import decode_payload, encode_payload
from airflow_provider_chasqui.core.repeat import (
    FIRE_ONCE,
    SKIP,
    Repeat,
    decode_repeat,
    encode_repeat,
    fire_all,
)
from airflow_provider_chasqui.core.retry import U32_MAX, U64_MAX, Backoff, RetryPolicy

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
payloads = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), U64_MAX)
    | st.floats(allow_nan=False)
    | text
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5),
    max_leaves=20,
)
optional_u64 = st.none() | st.integers(0, U64_MAX)
backoffs = st.builds(
    Backoff,
    st.sampled_from(["fixed", "exponential", "linear"]),
    st.integers(0, U64_MAX),
    optional_u64,
    st.none() | st.floats(allow_nan=False),
    optional_u64,
)
policies = st.none() | st.builds(
    RetryPolicy, st.none() | st.integers(0, U32_MAX), st.none() | backoffs
)


@given(payloads)
def test_payloads_survive_a_round_trip(payload):
    assert decode_payload(encode_payload(payload)) == payload


@given(text, st.binary(max_size=70_000), st.integers(0, U64_MAX), st.integers(0, U32_MAX), policies)
@example("x" * 70_000, b"", 0, 0, None)
def test_envelopes_survive_a_round_trip_and_are_valid_msgpack(job_id, body, at_ms, attempt, retry):
    raw = encode_envelope(job_id, body, at_ms, attempt, retry)
    job = decode_envelope(raw, "name")
    assert (job.id, job.body, job.created_at_ms, job.attempt) == (job_id, body, at_ms, attempt)
    assert job.retry == retry
    assert job.name == "name"
    assert encode_job(job) == raw
    slots = [job_id, body, at_ms, attempt]
    if retry is not None:
        backoff = retry.backoff
        spec = backoff and [
            backoff.kind,
            backoff.delay_ms,
            backoff.max_delay_ms,
            None if backoff.multiplier is None else float(backoff.multiplier),
            backoff.jitter_ms,
        ]
        slots.append([retry.max_attempts, spec])
    assert raw == msgpack.packb(slots)


@given(text.filter(lambda name: len(name.encode()) <= MAX_JOB_NAME_BYTES), st.binary())
def test_delayed_members_survive_a_round_trip(name, body):
    raw = encode_delayed_member(encode_job_name(name), encode_envelope("id", body, 1))
    job = decode_delayed_member(raw)
    assert (job.name, job.id, job.body) == (name, "id", body)


schedules = st.builds(Every, st.integers(1, 2**53 - 1)) | st.builds(
    Cron,
    st.sampled_from(["* * * * *", "0 2 * * *", "*/5 * * * * *", "0 0 1 1 *"]),
    st.sampled_from([None, "UTC", "Europe/Paris", "+05:30"]),
)
bounds = st.none() | st.integers(0, U64_MAX)


@given(
    st.builds(
        Repeat,
        text,
        text,
        schedules,
        st.binary(),
        bounds,
        bounds,
        bounds,
        st.sampled_from([SKIP, FIRE_ONCE]) | st.builds(fire_all, st.integers(1, U32_MAX)),
    )
)
def test_repeats_survive_a_round_trip(repeat):
    assert decode_repeat(encode_repeat(repeat)) == repeat


@pytest.mark.parametrize("form", ["map", "seven", "nine", "ten", "twelve"])
def test_repeats_are_read_in_every_form_that_chasquimq_reads(form):
    slots = ["k", "n", {"Every": [1000]}, b"\xc4\x01\xc0", 3, None, None, 0, "Skip"]
    names = ["key", "job_name", "pattern", "payload", "limit", "start_after_ms", "end_before_ms"]
    shape = {
        "map": dict(zip(names, slots, strict=False)),
        "seven": slots[:7],
        "nine": slots,
        "ten": [*slots, [3, None]],
        "twelve": [*slots[:8], {"Coalesce": [2]}, [3, None], 1, {}],
    }[form]
    assert decode_repeat(msgpack.packb(shape)) == Repeat("k", "n", Every(1000), b"\xc0", 3)


@pytest.mark.parametrize("slots", [[], [1] * 8, ["k", "n", {"Every": [0]}, b"\xc0", 0, 0, 0, 0]])
def test_other_forms_of_repeats_are_rejected(slots):
    with pytest.raises(DecodeError):
        decode_repeat(msgpack.packb(slots))


class FailingDict(dict):  # type: ignore[type-arg]
    def items(self):
        raise RuntimeError("no")


def recursive_list() -> list:  # type: ignore[type-arg]
    items: list = []  # type: ignore[type-arg]
    items.append(items)
    return items


@pytest.mark.parametrize(
    "payload",
    [
        object(),
        {1, 2},
        2**64,
        -(2**63) - 1,
        "\ud800",
        {"a": "\udfff"},
        recursive_list(),
        FailingDict(a=1),
    ],
    ids=[
        "object",
        "set",
        "too big",
        "too small",
        "surrogate",
        "in a dict",
        "recursive list",
        "failing dict",
    ],
)
def test_a_payload_that_cannot_be_encoded_is_an_encode_error(payload):
    with pytest.raises(EncodeError) as raised:
        encode_payload(payload)
    assert raised.value.code == "CMQ-002"


@pytest.mark.parametrize("name", ["x" * 257, "é" * 129, "\ud800", None, b"bytes", 3])
def test_invalid_job_names_are_rejected(name):
    with pytest.raises(InvalidArgument):
        encode_job_name(name)


# Bytes that an attacker or an accident may leave on the server.


def _arrays(raw: bytes) -> bytes:
    return b"".join(b"\xdd" + len(raw).to_bytes(4, "big") for _ in range(len(raw) // 5))


HOSTILE_BYTES = [
    b"\x91" * 100_000,
    b"\x81" * 100_000,
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xffabc",
    b"\xc9\xff\xff\xff\xff\x01",
    b"\x94" + _arrays(b"x" * 1_000_000),
    b"\x94\xa1a" + b"\x91" * 2000 + b"\x01\x00",
    b"\x81\x91\x01\x02",
    b"\xc1",
    b"",
    b"\x94\xa1\xff\xc4\x01\x01\x05\x00",
    b"\x95\xa1a\xc4\x01\x01\x05\x00\x92\x02\x95\xa5fixed\x64\xc0\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00\xc0",
    b"\xd6\xff\xff\xff\xff\xff",
    b"\xc7\x0c\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
]

wire_bytes = (
    st.binary(max_size=200)
    | payloads.map(msgpack.packb)
    | st.lists(payloads, min_size=2, max_size=10).map(msgpack.packb)
    | st.builds(
        lambda raw, index, byte: raw[:index] + bytes([byte]) + raw[index + 1 :],
        st.just(
            encode_envelope("job", b"\x81\xa1a\x01", 1, 2, RetryPolicy(3, Backoff("fixed", 9)))
        ),
        st.integers(0, 60),
        st.integers(0, 255),
    )
)


def read_without_harm(raw: bytes) -> None:
    """Assert that every decoder returns a value or raises DecodeError within seconds."""
    began = time.thread_time()
    for decode in (decode_envelope, decode_delayed_member, decode_payload, decode_repeat):
        with suppress(DecodeError):
            decode(raw)
    for entry in (
        [b"1-0", [b"d", raw, b"n", raw]],
        [b"1-0", [raw, raw, raw]],
        [b"1-0", None, 5, 2],
    ):
        assert isinstance(parse_entry(entry, 2**20), StreamEntry | InvalidEntry)
    for name in (b"d", b"attempts", b"failed_at", b"error", b"reason", b"source_id", b"n"):
        dead_letter = parse_dead_letter([b"7-0", [name, raw]])
        assert isinstance(dead_letter, DeadLetter)
        assert dead_lettered_at_ms(dead_letter) >= 0
    text_value = raw.decode("utf-8", "replace")
    for field in ("ts", "attempt", "id", "e", "reason"):
        parse_event("1-0", {field: text_value})
    assert time.thread_time() - began < 5


@settings(max_examples=500)
@given(wire_bytes)
def test_arbitrary_bytes_do_no_harm(raw):
    read_without_harm(raw)


@pytest.mark.parametrize("raw", HOSTILE_BYTES, ids=lambda raw: f"{raw[:6].hex()}-{len(raw)}")
def test_hostile_bytes_do_no_harm(raw):
    read_without_harm(raw)


def test_numbers_over_the_digit_limit_of_python_do_no_harm():
    read_without_harm(b"9" * 100_000)


slot_values = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), U64_MAX)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=9)
    | st.sampled_from([{"Every": [5]}, {"Cron": ["* * * * *", None]}, "FireOnce", {"FireAll": [2]}])
    | st.integers(-(2**63), U64_MAX).map(lambda number: {"Every": [number]})
    | st.integers(-(2**63), U64_MAX).map(lambda number: {"FireAll": [number]})
)


@settings(max_examples=500)
@given(st.lists(slot_values, min_size=6, max_size=10), st.booleans())
def test_arbitrary_repeats_do_no_harm(slots, plausible):
    shape = ["k", "n", {"Every": [5]}, b"\xc0", *slots[:4], "Skip"] if plausible else slots
    try:
        repeat = decode_repeat(msgpack.packb(shape))
    except DecodeError:
        return
    assert decode_repeat(encode_repeat(repeat)) == repeat
