"""Payloads: the caller's value as MessagePack, and back."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import msgpack

from airflow_provider_chasqui.core.errors import DecodeError, EncodeError


class _ThreadLocalPacker(threading.local):
    """A packer for each thread: making one anew costs as much as packing a small payload."""

    def __init__(self) -> None:
        self.pack = msgpack.Packer(use_bin_type=True).pack


_thread_packer = _ThreadLocalPacker()


def encode_payload(payload: Any) -> bytes:
    """Return the payload as MessagePack, or raise EncodeError saying what stands in the way."""
    try:
        return _thread_packer.pack(payload)  # type: ignore[no-any-return]
    except Exception as cause:
        raise _encode_error(cause) from cause


def encode_payloads(payloads: Iterable[Any]) -> list[bytes]:
    """The same for many at once, without a call for each."""
    try:
        return list(map(_thread_packer.pack, payloads))
    except Exception as cause:
        raise _encode_error(cause) from cause


def _encode_error(cause: Exception) -> EncodeError:
    return EncodeError(
        f"the payload cannot be written as MessagePack: {cause}; use None, bool, int (64 bit), "
        "float, str, bytes, list and dict"
    )


def decode_payload(body: bytes) -> Any:
    """Return the value that `body` encodes, or raise DecodeError."""
    try:
        return msgpack.unpackb(body, raw=False, strict_map_key=False)
    except RecursionError as cause:
        raise DecodeError("the payload is nested too deeply") from cause
    except Exception as cause:
        raise DecodeError(
            f"the payload is not MessagePack: {cause or type(cause).__name__}"
        ) from cause
