"""Tests that the fast event encoders produce the same bytes as the general one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_chasqui.core.event import (
    encode_active,
    encode_completed,
    encode_event,
    event_fields,
)

texts = st.text(max_size=40).filter(lambda text: text.encode("utf-8", "ignore") == _encoded(text))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


numbers = st.integers(0, 2**53)


@given(texts, numbers, texts, numbers, numbers)
def test_the_fast_encoders_match_the_general_encoder(
    job_id, ts_ms, name, attempt, duration_us
) -> None:
    active = event_fields("active", job_id, ts_ms, name, attempt=attempt)
    assert encode_active(job_id, ts_ms, name, attempt) == encode_event(active)
    completed = event_fields(
        "completed", job_id, ts_ms, name, attempt=attempt, duration_us=duration_us
    )
    assert encode_completed(job_id, ts_ms, name, attempt, duration_us) == encode_event(completed)


def test_an_encoded_event_is_the_number_of_fields_and_the_fields() -> None:
    count, data = encode_event(["e", "drained", "id", "", "ts", 7])
    assert count == 7
    assert (
        data
        == b"$1\r\n6\r\n$1\r\ne\r\n$7\r\ndrained\r\n$2\r\nid\r\n$0\r\n\r\n$2\r\nts\r\n$1\r\n7\r\n"
    )
