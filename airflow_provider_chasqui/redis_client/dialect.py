"""Which of the two dialects a server speaks, told by three harmless questions.

Asked by behaviour, not by version: Valkey answers Redis 7.2.4 whatever it can do, and managed
servers may forbid COMMAND and INFO.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_chasqui.core.command import Command, as_raw, redis_command
from airflow_provider_chasqui.core.errors import (
    ChasquiError,
    InvalidArgument,
    PermissionDenied,
    ServerTooOld,
)

NATIVE = "native"
PORTABLE = "portable"


def check_dialect(dialect: str | None) -> str | None:
    """Return what a caller asks for; None is to ask the server."""
    if dialect not in (None, NATIVE, PORTABLE):
        raise InvalidArgument(f"dialect is {NATIVE!r}, {PORTABLE!r}, or None to ask the server")
    return dialect


def probe_commands(hash_tag: str) -> list[Command[Any]]:
    """Return commands that change nothing: the key does not exist and is not made."""
    key = f"{hash_tag}:probe"
    return [
        redis_command("XACKDEL", key, "g", "IDS", 1, "0-1", parse=as_raw),
        redis_command("XADD", key, "NOMKSTREAM", "IDMP", "p", "i", "*", "d", "x", parse=as_raw),
        redis_command(
            "XREADGROUP", "GROUP", "g", "c", "CLAIM", 0, "STREAMS", key, ">", parse=as_raw
        ),
        redis_command("EVAL", "#!lua\nreturn 1", 0, parse=as_raw),
    ]


def detect(replies: list[Any], server_name: str) -> str:
    """Return the dialect that the answers show, or raise for a server older than Redis 7."""
    acked, added, read, scripted = replies
    for answer in replies:
        if isinstance(answer, PermissionDenied):
            raise answer
    if isinstance(scripted, ChasquiError):
        if "compiling script" in scripted.message:
            raise ServerTooOld(
                f"{server_name} is older than Redis 7.0; use Redis 7.0 or newer, or Valkey 8"
            )
        raise scripted
    native = (
        isinstance(acked, list)
        and added is None
        and isinstance(read, ChasquiError)
        and "NOGROUP" in read.message
    )
    return NATIVE if native else PORTABLE
