"""Check of a server and of the ACL user's permissions, with commands that change nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.errors import ChasquiError, ConnectionFailed, PermissionDenied
from airflow_provider_chasqui.core.resp import Arg

if TYPE_CHECKING:
    from airflow_provider_chasqui.queue import Queue

_UNKNOWN_SCRIPT_SHA = "0" * 40


def permission_probes(hash_tag: str) -> list[tuple[Arg, ...]]:
    """Return one command per permission that a queue needs.

    The commands use a key that does not exist, and they do not create it.

    :param hash_tag: the hash tag of the queue's keys.
    """
    key = f"{hash_tag}:probe"
    return [
        ("XADD", key, "NOMKSTREAM", "*", "d", "x"),
        ("XLEN", key),
        ("XRANGE", key, "-", "+", "COUNT", 1),
        ("XREVRANGE", key, "+", "-", "COUNT", 1),
        ("XREAD", "COUNT", 1, "STREAMS", key, "0"),
        ("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", key, ">"),
        ("XGROUP", "CREATE", key, "g", "0"),
        ("XINFO", "STREAM", key),
        ("XINFO", "GROUPS", key),
        ("XINFO", "CONSUMERS", key, "g"),
        ("XPENDING", key, "g"),
        ("XCLAIM", key, "g", "c", 0, "0-1"),
        ("XACK", key, "g", "0-1"),
        ("XDEL", key, "0-1"),
        ("ZADD", key, "XX", 0, "m"),
        ("ZREM", key, "m"),
        ("ZRANGE", key, 0, 0),
        ("ZSCORE", key, "m"),
        ("ZCARD", key),
        ("HGETALL", key),
        ("GET", key),
        ("SET", key, "x", "XX"),
        ("DEL", key),
        ("EXISTS", key),
        ("PEXPIRE", key, 1),
        ("GETBIT", key, 0),
        ("BITCOUNT", key),
        ("EVALSHA", _UNKNOWN_SCRIPT_SHA, 0),
        ("SCRIPT", "LOAD", "return 1"),
    ]


def check_connection(queue: Queue, server_name: str) -> str:
    """Check that the server can be used for queues.

    :param queue: a queue on the server.
    :param server_name: the name of the server, without a password.
    :return: one line with the server's version, the dialect and warnings.
    :raises ChasquiError: if the server cannot be used. The message contains what to change.
    """
    dialect = queue.dialect()
    denied = [
        args for args in permission_probes(queue.keys.hash_tag) if not _is_allowed(queue, args)
    ]
    if denied:
        names = sorted({_command_name(args) for args in denied})
        grants = " ".join(f"+{name.lower().replace(' ', '|')}" for name in names)
        raise PermissionDenied(
            f"the login succeeded, but this user may not run {', '.join(names)} on the keys of a "
            f"queue; grant the permissions with: ACL SETUSER <user> ~{{chasqui:*}}* {grants}"
        )
    version, eviction_policy = _server_info(queue)
    summary = (
        f"Connected to {server_name}: {version}, {dialect} dialect, all permissions are granted."
    )
    if eviction_policy.startswith(("allkeys", "volatile")):
        summary += (
            f" Warning: the server's maxmemory-policy is {eviction_policy}, so it may delete jobs "
            "when memory is short. Set it to noeviction."
        )
    return summary


def _command_name(args: tuple[Arg, ...]) -> str:
    words = [str(args[0])]
    if args[0] in ("XGROUP", "XINFO", "SCRIPT"):
        words.append(str(args[1]))
    return " ".join(words)


def _is_allowed(queue: Queue, args: tuple[Arg, ...]) -> bool:
    try:
        queue.client.execute(redis_command(*args, parse=as_raw))
    except PermissionDenied:
        return False
    except ConnectionFailed:
        raise
    except ChasquiError:
        pass  # "no such key" and "no such group" are expected: the user may run the command
    return True


def _server_info(queue: Queue) -> tuple[str, str]:
    """Return the server's version and eviction policy. Managed servers may hide both."""
    try:
        info: bytes = queue.client.execute(redis_command("INFO", parse=as_raw))
    except ChasquiError:
        return "a server of unknown version", ""
    text = info.decode("utf-8", "replace") if isinstance(info, bytes) else str(info)
    valkey = re.search(r"^valkey_version:(\S+)", text, re.M)
    redis = re.search(r"^redis_version:(\S+)", text, re.M)
    policy = re.search(r"^maxmemory_policy:(\S+)", text, re.M)
    if valkey:
        version = f"Valkey {valkey[1]}"
    else:
        version = f"Redis {redis[1]}" if redis else "a server of unknown version"
    return version, policy[1] if policy else ""
