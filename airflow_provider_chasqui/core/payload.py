"""MessagePack encoding of payloads."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgpack

from airflow_provider_chasqui.core.errors import DecodeError, EncodeError


def convert_value(value: Any) -> Any:
    """Return a MessagePack value for a value that MessagePack cannot encode.

    The results are those of the Spark writer: a date, a Decimal and a UUID become text; a datetime
    becomes ISO 8601 text with microseconds, in UTC with a `Z` if it has a time zone; a time becomes
    ISO 8601 text with microseconds. Scalars and arrays of numpy become Python values, missing
    values of pandas become None. A dataclass and a pydantic model become the map of their fields,
    an enumeration its value.

    :param value: the value.
    :raises TypeError: if there is no conversion.
    :raises OverflowError: if the value is an integer of more than 64 bits.
    """
    if isinstance(value, datetime):
        if value != value:  # NaT of pandas
            return None
        if value.tzinfo is None:
            return value.isoformat(timespec="microseconds")
        in_utc = value.astimezone(UTC).replace(tzinfo=None)
        return in_utc.isoformat(timespec="microseconds") + "Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, time):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, int):
        raise OverflowError("the integer does not fit into 64 bits")
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, type):
        raise TypeError(f"the class {value.__name__!r} is not a value")
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if hasattr(value, "model_dump"):  # pydantic, which is not imported
        return value.model_dump(by_alias=True)
    return _convert_array_value(value)


def _convert_array_value(value: Any) -> Any:
    """Convert a value of numpy or pandas, which are not imported."""
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    if kind == "M" and type(value).__module__.startswith("numpy"):
        value = value.astype("datetime64[us]")
    if kind is not None and kind in "biufMUSO":
        # bool, integer, unsigned, float, datetime64, text, bytes and object
        plain = value.tolist()
        return convert_value(plain) if isinstance(plain, date) else plain
    if type(value).__name__ == "NAType":
        return None
    raise TypeError(f"values of the type {type(value).__name__!r} are not supported")


class _ThreadLocalPacker(threading.local):
    """One packer per thread, because creating one costs as much as packing a small payload."""

    def __init__(self) -> None:
        self.pack = msgpack.Packer(use_bin_type=True, default=convert_value).pack


_thread_packer = _ThreadLocalPacker()


def encode_payload(payload: Any) -> bytes:
    """Return the payload as MessagePack. `convert_value` lists the values that are converted.

    :raises EncodeError: if it has a value that can neither be encoded nor converted.
    """
    try:
        return _thread_packer.pack(payload)  # type: ignore[no-any-return]
    except Exception as cause:
        raise _encode_error(payload, cause) from cause


def encode_payloads(payloads: Sequence[Any]) -> list[bytes]:
    """Return many payloads as MessagePack; raises as `encode_payload` does."""
    try:
        return list(map(_thread_packer.pack, payloads))
    except Exception:
        # Raises for the first payload that cannot be encoded.
        return [encode_payload(payload) for payload in payloads]


def _encode_error(payload: Any, cause: Exception) -> EncodeError:
    try:
        path = _find_invalid_value(payload)
    except Exception:  # a mapping or sequence that cannot be iterated
        path = ""
    subject = f"the value of {path} in the payload" if path else "the payload"
    return EncodeError(
        f"{subject} cannot be encoded as MessagePack: {cause}; use None, bool, int (64 bit), "
        "float, str, bytes, list, dict, datetime, date, time, Decimal, UUID, dataclasses and numpy "
        "values"
    )


def _find_invalid_value(value: Any, path: str = "", depth: int = 0) -> str:
    """Return the path of the first value that cannot be encoded, such as `rows[2].price`."""
    children: Iterable[tuple[str, Any]]
    if isinstance(value, Mapping):
        children = ((f"{path}.{key}" if path else str(key), item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        children = ((f"{path}[{index}]", item) for index, item in enumerate(value))
    else:
        return path
    for child_path, child in children:
        try:
            _thread_packer.pack(child)
        except Exception:
            return _find_invalid_value(child, child_path, depth + 1) if depth < 50 else child_path
    return path


def decode_payload(body: bytes) -> Any:
    """Return the value that `body` encodes.

    :raises DecodeError: if it is not MessagePack.
    """
    try:
        return msgpack.unpackb(body, raw=False, strict_map_key=False)
    except RecursionError as cause:
        raise DecodeError("the payload is nested too deeply") from cause
    except Exception as cause:
        raise DecodeError(
            f"the payload is not MessagePack: {cause or type(cause).__name__}"
        ) from cause
