"""The wire format of ChasquiMQ 1.3.0: the job envelope and the member of the delayed set.

tests/wire compares both with bytes that ChasquiMQ wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgpack

from airflow_provider_chasqui.core.errors import DecodeError, InvalidArgument
from airflow_provider_chasqui.core.job import Job
from airflow_provider_chasqui.core.retry import U32_MAX, U64_MAX, Backoff, RetryPolicy

MAX_JOB_NAME_BYTES = 256

_U32_LE = struct.Struct("<I")
_PACK_U64 = struct.Struct(">BQ").pack
_ENVELOPE_FIELDS = ("id", "payload", "created_at_ms", "attempt", "retry")
_STR_HEADERS = [bytes((0xA0 | size,)) if size < 32 else bytes((0xD9, size)) for size in range(256)]
_BIN_HEADERS = [bytes((0xC4, size)) for size in range(256)]


def encode_text(text: str, label: str) -> bytes:
    """Return text as UTF-8.

    :param text: the text.
    :param label: what the text is, for the error message.
    :raises InvalidArgument: if it is not a string, or has an unpaired surrogate.
    """
    if not isinstance(text, str):
        raise InvalidArgument(f"{label} must be a string, not {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as cause:
        raise InvalidArgument(
            f"{label} contains an unpaired surrogate and cannot be encoded as UTF-8"
        ) from cause


def encode_job_name(job_name: str) -> bytes:
    """Return a job name as UTF-8.

    :raises InvalidArgument: if it has more than 256 bytes.
    """
    raw = encode_text(job_name, "a job name")
    if len(raw) > MAX_JOB_NAME_BYTES:
        raise InvalidArgument(
            f"a job name may have at most {MAX_JOB_NAME_BYTES} bytes, this one has {len(raw)}"
        )
    return raw


def _encode_uint(value: int) -> bytes:
    return _PACK_U64(0xCF, value) if value > U32_MAX else msgpack.packb(value)


def _str_header(size: int) -> bytes:
    if size < 256:
        return _STR_HEADERS[size]
    return struct.pack(">BH", 0xDA, size) if size < 65536 else struct.pack(">BI", 0xDB, size)


def bin_header(size: int) -> bytes:
    """Return the MessagePack header of binary data of this size."""
    if size < 256:
        return _BIN_HEADERS[size]
    return struct.pack(">BH", 0xC5, size) if size < 65536 else struct.pack(">BI", 0xC6, size)


def _encode_retry(retry: RetryPolicy) -> bytes:
    backoff = retry.backoff
    if backoff is None:
        return msgpack.packb([retry.max_attempts, None])  # type: ignore[no-any-return]
    multiplier = None if backoff.multiplier is None else float(backoff.multiplier)
    spec = [backoff.kind, backoff.delay_ms, backoff.max_delay_ms, multiplier, backoff.jitter_ms]
    return msgpack.packb([retry.max_attempts, spec])  # type: ignore[no-any-return]


def encode_envelope(
    job_id: str, body: bytes, created_at_ms: int, attempt: int = 0, retry: RetryPolicy | None = None
) -> bytes:
    """Return the `d` field of a job.

    The bytes are joined by hand because packing a list is slower (docs/performance.md).
    """
    raw_id = job_id.encode()
    head = b"\x94" if retry is None else b"\x95"
    suffix = encode_envelope_suffix(created_at_ms, attempt, retry)
    return b"".join((head, _str_header(len(raw_id)), raw_id, bin_header(len(body)), body, suffix))


def encode_envelopes(
    job_ids: Iterable[str], bodies: Iterable[bytes], created_at_ms: int, retry: RetryPolicy | None
) -> list[bytes]:
    """Return the `d` fields of new jobs with the same creation time and retry policy."""
    head = b"\x94" if retry is None else b"\x95"
    suffix = encode_envelope_suffix(created_at_ms, 0, retry)
    raw_ids = [job_id.encode() for job_id in job_ids]
    return [
        b"".join((head, _str_header(len(raw_id)), raw_id, bin_header(len(body)), body, suffix))
        for raw_id, body in zip(raw_ids, bodies, strict=True)
    ]


@lru_cache(maxsize=256)
def encode_envelope_suffix(created_at_ms: int, attempt: int, retry: RetryPolicy | None) -> bytes:
    """Return the bytes after the payload, which the jobs of one call share."""
    encoded_retry = b"" if retry is None else _encode_retry(retry)
    return _encode_uint(created_at_ms) + _encode_uint(attempt) + encoded_retry


def encode_job(job: Job, *, attempt: int | None = None) -> bytes:
    """Return the `d` field of a job.

    :param attempt: the attempt number to write instead of the job's own.
    """
    count = job.attempt if attempt is None else attempt
    return encode_envelope(job.id, job.body, job.created_at_ms, count, job.retry)


def decode_envelope(raw: bytes, job_name: str = "") -> Job:
    """Return the job in a `d` field. Accepts the same bytes as ChasquiMQ 1.3.0.

    :param raw: the value of the `d` field.
    :param job_name: the value of the `n` field.
    :raises DecodeError: if the bytes are not an envelope.
    """
    try:
        # Text and binary data stay distinct, because a payload must be binary. Bytes that are not
        # UTF-8 do no harm in a field that is ignored.
        value = msgpack.unpackb(raw, unicode_errors="surrogateescape", strict_map_key=False)
    except msgpack.ExtraData as extra:  # ChasquiMQ ignores bytes after the envelope
        value = extra.unpacked
    except RecursionError as cause:
        raise DecodeError("the envelope is nested too deeply") from cause
    except Exception as cause:
        raise DecodeError(
            f"the envelope is not MessagePack: {cause or type(cause).__name__}"
        ) from cause
    if type(value) is list and len(value) == 4:
        # Fast path for the layout that every known producer writes.
        job_id, body, created, attempt = value
        if (
            type(job_id) is str
            and type(body) is bytes
            and type(created) is int
            and type(attempt) is int
            and created >= 0
            and 0 <= attempt <= U32_MAX
            and job_id.isascii()
        ):
            return Job(job_id, body, created, attempt, None, job_name)
    if isinstance(value, dict):
        value = _fields_from_map(value)
    if not isinstance(value, list) or not 3 <= len(value) <= 5:
        raise DecodeError("the envelope is not an array of three to five elements")
    attempt = _check_uint(value[3], "attempt", U32_MAX) if len(value) > 3 else 0
    retry = _decode_retry(value[4]) if len(value) > 4 else None
    return Job(
        _decode_text(value[0], "id"),
        _check_body(value[1]),
        _check_uint(value[2], "created_at_ms", U64_MAX),
        attempt,
        retry,
        job_name,
    )


def decode_job_id(raw: bytes) -> str:
    """Return the job id in a `d` field, or an empty string if it cannot be decoded.

    If the envelope is an array and its id a string, the field may be truncated after the id.
    """
    try:
        if 0x93 <= raw[0] <= 0x95:
            if 0xA0 <= raw[1] <= 0xBF:
                return raw[2 : raw[1] - 0x9E].decode()
            if raw[1] == 0xD9 and len(raw) >= 3 + raw[2]:
                return raw[3 : 3 + raw[2]].decode()
            if raw[1] == 0xDA and len(raw) >= 4 + (size := int.from_bytes(raw[2:4], "big")):
                return raw[4 : 4 + size].decode()
        return decode_envelope(raw).id
    except (DecodeError, UnicodeDecodeError, IndexError):
        return ""


def _fields_from_map(value: dict[Any, Any]) -> list[Any]:
    named = {name: value[name] for name in _ENVELOPE_FIELDS if name in value}
    # ChasquiMQ also accepts names that are binary data.
    named |= {name: value[raw] for name in _ENVELOPE_FIELDS if (raw := name.encode()) in value}
    for name in _ENVELOPE_FIELDS[:3]:
        if name not in named:
            raise DecodeError(f"the envelope has no field {name!r}")
    return [named.get(name, 0 if name == "attempt" else None) for name in _ENVELOPE_FIELDS]


def _decode_text(value: Any, field: str) -> str:
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    if not isinstance(value, bytes):
        raise DecodeError(f"the envelope's {field} is not a string")
    try:
        return value.decode()
    except UnicodeDecodeError as cause:
        raise DecodeError(f"the envelope's {field} is not UTF-8") from cause


def _check_body(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, list):
        try:
            return bytes(value)
        except (TypeError, ValueError) as cause:
            raise DecodeError("the envelope's payload is not bytes") from cause
    raise DecodeError("the envelope's payload is not bytes")


def _check_uint(value: Any, field: str, maximum: int) -> int:
    if type(value) is not int or not 0 <= value <= maximum:
        raise DecodeError(f"the envelope's {field} is not an integer from 0 to {maximum}")
    return value


def _decode_retry(value: Any) -> RetryPolicy | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise DecodeError("the envelope's retry is not an array of two elements")
    attempts = None if value[0] is None else _check_uint(value[0], "max_attempts", U32_MAX)
    return RetryPolicy(attempts, _decode_backoff(value[1]))


def _decode_backoff(value: Any) -> Backoff | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 5:
        raise DecodeError("the envelope's backoff is not an array of five elements")
    kind, delay, max_delay, multiplier, jitter = value
    if multiplier is not None and not isinstance(multiplier, int | float):
        raise DecodeError("the backoff's multiplier is not a number")
    try:
        return Backoff(
            _decode_text(kind, "backoff kind"),
            _check_uint(delay, "backoff delay", U64_MAX),
            None if max_delay is None else _check_uint(max_delay, "backoff max_delay", U64_MAX),
            multiplier,
            None if jitter is None else _check_uint(jitter, "backoff jitter", U64_MAX),
        )
    except InvalidArgument as cause:
        raise DecodeError(cause.message) from cause


def encode_delayed_member(job_name: bytes, envelope: bytes) -> bytes:
    """Return a member of the delayed set: length of the name, name, envelope."""
    return _U32_LE.pack(len(job_name)) + job_name + envelope


def decode_delayed_member(member: bytes) -> Job:
    """Return the job in a member of the delayed set.

    :raises DecodeError: if the bytes are not such a member.
    """
    if len(member) < 4:
        raise DecodeError("the delayed member is shorter than its length prefix")
    end = 4 + _U32_LE.unpack_from(member)[0]
    if end > len(member):
        raise DecodeError("the delayed member is shorter than its name")
    return decode_envelope(member[end:], decode_job_name(member[4:end]))


def decode_job_name(raw: bytes) -> str:
    """Return a job name. Bytes that are not UTF-8 become an empty name, as in ChasquiMQ."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return ""
