"""RESP encoding of commands. redis-py's encoder is slower (docs/adr, docs/performance.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CRLF = b"\r\n"
# A template of one argument, to be formatted with its length and its bytes.
BULK = b"$%d\r\n%b\r\n"


@dataclass(slots=True)
class EncodedArgs:
    """Arguments already encoded as RESP.

    Used for bulk commands, where encoding each argument separately is too slow.
    """

    count: int
    data: bytes | memoryview


Arg = str | bytes | int | EncodedArgs


def bulk_template(content: bytes) -> bytes:
    """Return a template of one argument whose content is itself a template.

    :param content: the template of the content. The length of the content comes before its values.
    """
    return b"$%d\r\n" + content + CRLF


def encode_args(*values: str | int) -> bytes:
    """Return arguments in RESP, without the array header.

    :param values: the arguments; integers are written in decimal.
    """
    encoded = [str(value).encode("utf-8", "surrogatepass") for value in values]
    return b"".join(BULK % (len(data), data) for data in encoded)


def array_header(count: int) -> bytes:
    """Return the RESP header of a command with this number of arguments."""
    return b"*%d\r\n" % count


# The end of the previous argument and the length of the next one, for short arguments.
_BULK_HEADERS = [b"\r\n$%d\r\n" % size for size in range(1024)]


def encode_command(args: Sequence[Arg]) -> bytes:
    """Return one command in RESP.

    :param args: the arguments; integers are written in decimal.
    """
    try:
        # This runs several times per job of a bulk add.
        encoded = [
            arg
            if type(arg) is bytes
            else arg.encode("utf-8", "surrogatepass")
            if type(arg) is str
            else b"%d" % arg  # type: ignore[str-format]
            for arg in args
        ]
    except TypeError:
        return _encode_mixed(args)
    parts = [b"*%d" % len(encoded), *encoded, *encoded, b"\r\n"]
    try:
        parts[1:-1:2] = [_BULK_HEADERS[len(arg)] for arg in encoded]
    except IndexError:
        parts[1:-1:2] = [b"\r\n$%d\r\n" % len(arg) for arg in encoded]
    parts[2:-1:2] = encoded
    return b"".join(parts)


def _encode_mixed(args: Sequence[Arg]) -> bytes:
    """Return one command in which some arguments are already encoded."""
    parts: list[bytes | memoryview] = [b""]
    count = 0
    for arg in args:
        if isinstance(arg, EncodedArgs):
            parts.append(arg.data)
            count += arg.count
            continue
        if isinstance(arg, str):
            arg = arg.encode("utf-8", "surrogatepass")
        elif not isinstance(arg, bytes):
            arg = b"%d" % arg
        parts.append(BULK % (len(arg), arg))
        count += 1
    parts[0] = array_header(count)
    return b"".join(parts)
