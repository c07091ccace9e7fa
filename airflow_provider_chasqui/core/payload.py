"""MessagePack encoding of payloads."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import msgpack

from airflow_provider_chasqui.core.errors import DecodeError, EncodeError


class _ThreadLocalPacker(threading.local):
    """One packer per thread, because creating one costs as much as packing a small payload."""

    def __init__(self) -> None:
        self.pack = msgpack.Packer(use_bin_type=True).pack


_thread_packer = _ThreadLocalPacker()


def encode_payload(payload: Any) -> bytes:
    """Return the payload as MessagePack.

    :raises EncodeError: if it has a value that MessagePack cannot encode.
    """
    try:
        return _thread_packer.pack(payload)  # type: ignore[no-any-return]
    except Exception as cause:
        raise _encode_error(cause) from cause


def encode_payloads(payloads: Iterable[Any]) -> list[bytes]:
    """Return many payloads as MessagePack; raises as `encode_payload` does."""
    try:
        return list(map(_thread_packer.pack, payloads))
    except Exception as cause:
        raise _encode_error(cause) from cause


def _encode_error(cause: Exception) -> EncodeError:
    return EncodeError(
        f"the payload cannot be encoded as MessagePack: {cause}; use None, bool, int (64 bit), "
        "float, str, bytes, list and dict"
    )


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
