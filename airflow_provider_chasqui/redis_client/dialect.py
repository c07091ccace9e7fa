"""Detection of the server's dialect: native (stream commands of Redis 8.6) or portable (Lua).

The probes have no effect. Detection is by behaviour and not by version, because Valkey reports the
version Redis 7.2.4 whatever it supports, and managed servers may forbid COMMAND and INFO.
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
    """Return the dialect that a caller selected.

    :param dialect: "native", "portable", or None to detect it.
    :raises InvalidArgument: if it is another value.
    """
    if dialect not in (None, NATIVE, PORTABLE):
        raise InvalidArgument(
            f"dialect must be {NATIVE!r}, {PORTABLE!r}, or None to detect it, not {dialect!r}"
        )
    return dialect


def probe_commands(hash_tag: str) -> list[Command[Any]]:
    """Return the commands that detect the dialect. None of them creates or changes a key.

    :param hash_tag: the hash tag of the queue, which decides the node that is probed.
    """
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
    """Return the dialect that the replies to `probe_commands` indicate.

    :param replies: one reply or ChasquiError per probe.
    :param server_name: the name of the server, for the error message.
    :raises ServerTooOld: if the server is older than Redis 7.
    :raises PermissionDenied: if the user may not run a probe.
    """
    xackdel_reply, xadd_reply, xreadgroup_reply, eval_reply = replies
    for reply in replies:
        if isinstance(reply, PermissionDenied):
            raise reply
    if isinstance(eval_reply, ChasquiError):
        if "compiling script" in eval_reply.message:
            raise ServerTooOld(
                f"{server_name} is older than Redis 7.0; use Redis 7.0 or newer, or Valkey 8"
            )
        raise eval_reply
    native = (
        isinstance(xackdel_reply, list)
        and xadd_reply is None
        and isinstance(xreadgroup_reply, ChasquiError)
        and "NOGROUP" in xreadgroup_reply.message
    )
    return NATIVE if native else PORTABLE
