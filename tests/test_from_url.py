"""Any URL is either parsed or rejected with InvalidArgument, and no secret is shown."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.redis_client.target import RedisTarget, from_url

schemes = st.sampled_from(
    [
        "redis://",
        "rediss://",
        "unix://",
        "redis+sentinel://",
        "redis+cluster://",
        "rediss+cluster://",
    ]
)
options = st.sampled_from(
    ["timeout", "connect_timeout", "retries", "client_name", "db", "ssl_cert_reqs"]
)
unusual_text = st.text(st.sampled_from("abc:/@[]?#&=%,.0123456789é\x00\ud800 -+"), max_size=40)


@settings(max_examples=500)
@given(st.text() | st.builds(lambda scheme, location: scheme + location, schemes, unusual_text))
def test_any_text_is_a_target_or_an_invalid_argument(text):
    try:
        target = from_url(text)
    except InvalidArgument as error:
        assert "secret" not in str(error)  # noqa: PT017
        return
    assert isinstance(target, RedisTarget)
    assert target.display_name


@given(schemes, options, unusual_text | st.sampled_from(["nan", "inf", "-1", "1e999", "9" * 5000]))
def test_any_option_is_valid_or_an_invalid_argument(scheme, name, text):
    url = f"{scheme}user:secret@host:1/0?{name}={text}"
    try:
        target = from_url(url)
    except InvalidArgument as error:
        assert "secret" not in str(error)  # noqa: PT017
        return
    assert 0 < target.timeout < 10**9
    assert 0 < target.connect_timeout < 10**9
    assert "secret" not in repr(target) + target.display_name


@given(st.sampled_from(["9" * 5000, "٣", "1_0", "-1", " 1", "99999"]))
def test_any_number_is_valid_or_an_invalid_argument(number):
    for url in (
        f"redis://host:{number}",
        f"redis://host/{number}",
        f"redis://host?retries={number}",
    ):
        try:
            assert isinstance(from_url(url), RedisTarget)
        except InvalidArgument:
            continue


@given(st.none() | st.integers() | st.binary() | st.lists(st.text()))
def test_a_value_that_is_not_text_is_an_invalid_argument(value):
    try:
        from_url(value)
    except InvalidArgument:
        return
    raise AssertionError(f"{value!r} was accepted as a URL")
