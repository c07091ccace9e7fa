"""Conversion of redis-py's errors and of error replies to Chasqui's errors."""

from __future__ import annotations

import errno
import os
import ssl
from typing import Any

import redis.asyncio.sentinel as async_sentinel
import redis.sentinel as sentinel
from redis import exceptions as redis

from airflow_provider_chasqui.core import batch, lease, rsmq_types
from airflow_provider_chasqui.core.errors import (
    AuthenticationFailed,
    ChasquiError,
    ConnectionFailed,
    KeyTypeMismatch,
    PermissionDenied,
    PersistenceFailed,
    QueueFull,
    RedisServerError,
    ServerTooOld,
)

# The same command succeeds later, or on another node.
TRANSIENT_ERRORS = (
    redis.BusyLoadingError,
    redis.ClusterDownError,
    redis.MasterDownError,
    redis.MovedError,
    redis.AskError,
    redis.ReadOnlyError,
    redis.TryAgainError,
)

# redis-py has classes for some error replies only. The others are recognised by their first word.
_TRANSIENT_CODES = (
    *("LOADING ", "MASTERDOWN ", "CLUSTERDOWN ", "TRYAGAIN ", "READONLY ", "UNBLOCKED "),
    *("BUSY ", "NOREPLICAS ", "MISCONF "),
)

# redis-py removes the first word of the error replies that it has a class for.
_ERROR_CODES: dict[type[Exception], str] = {
    redis.AskError: "MOVED",
    redis.ClusterDownError: "CLUSTERDOWN",
    redis.OutOfMemoryError: "OOM",
    redis.ReadOnlyError: "READONLY",
    redis.TryAgainError: "TRYAGAIN",
}

_MASTER_NOT_FOUND = (
    sentinel.MasterNotFoundError,
    async_sentinel.MasterNotFoundError,
)
# Replies of servers before Redis 8.6 to the commands of the native dialect.
_MISUNDERSTOOD = (
    *("invalid stream id", "unknown command", "unknown redis command", "syntax error"),
    *("wrong number of arg", "unrecognized", "unbalanced"),
)
_ECHOED_ARGUMENTS = ", with args beginning with"

# The connection is lost or was never established.
CONNECTION_ERRORS = (
    *(redis.ConnectionError, redis.TimeoutError, redis.InvalidResponse),
    *(redis.RedisClusterException, OSError),
)


def is_transient(error: Exception) -> bool:
    """Return whether an error reply means that the same command may succeed later.

    :param error: an error reply.
    """
    return isinstance(error, TRANSIENT_ERRORS) or str(error).startswith(_TRANSIENT_CODES)


def is_permanent(error: Exception) -> bool:
    """Return whether a retry cannot help: a refused login, certificate or command.

    :param error: an error of a connection or of its handshake.
    """
    if isinstance(error, redis.AuthenticationError):
        return True
    if isinstance(error, redis.ResponseError):
        return not is_transient(error)
    cause: BaseException | None = error
    while cause is not None:
        # With a TLS alert the server rejects the client's certificate.
        if isinstance(cause, ssl.SSLCertVerificationError) or "ALERT_" in str(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def is_misunderstood(reply: Any) -> bool:
    """Return whether a reply means that the server does not know a command or an option.

    :param reply: a reply, error replies as exceptions.
    """
    if not isinstance(reply, Exception):
        return False
    text = str(reply).lower()
    return any(part in text for part in _MISUNDERSTOOD)


def is_missing(error: Exception) -> bool:
    """Return whether an error reply means that the key or the consumer group does not exist.

    :param error: an error reply.
    """
    text = str(error)
    return text.startswith("NOGROUP") or "no such key" in text


def _remove_secrets(error: BaseException | None) -> None:
    """Remove texts from an error and its causes that may contain a password or a payload.

    A server that does not know a command repeats its arguments, also those of AUTH. Before redis-py
    7, MasterNotFoundError contains the repr of the sentinel clients with their passwords.
    """
    while error is not None:
        if isinstance(error, _MASTER_NOT_FOUND):
            error.args = ("no reachable sentinel knows the master",)
        elif _ECHOED_ARGUMENTS in str(error):
            error.args = (str(error).partition(_ECHOED_ARGUMENTS)[0],)
        error = error.__cause__ or error.__context__


def to_chasqui_error(error: Exception, server_name: str) -> ChasquiError:
    """Return the Chasqui error for an error of redis-py.

    :param error: an error reply, or an error of a connection. Texts that may contain a secret are
        removed from it, because it becomes the cause of the returned error.
    :param server_name: the name of the server without its password, for the message.
    """
    _remove_secrets(error)
    text = str(error)
    if isinstance(error, redis.AuthenticationError) or text.startswith(("WRONGPASS", "NOAUTH")):
        return AuthenticationFailed(
            f"{server_name} refused the login; check the user name and the password of the "
            "connection"
        )
    if isinstance(error, redis.NoPermissionError) or _is_permission_error(text):
        return PermissionDenied(
            f"{server_name} does not permit this user to run a command: {text}; grant the "
            "permissions that docs/security-acl.md lists"
        )
    if isinstance(error, redis.BusyLoadingError):
        return ConnectionFailed(
            f"{server_name} is still loading its data; try again when it has finished"
        )
    if isinstance(error, redis.TimeoutError | TimeoutError):
        return ConnectionFailed(
            f"{server_name} did not reply in time; check host, port and TLS, check that the server "
            "is not overloaded, or increase the timeout"
        )
    if isinstance(error, CONNECTION_ERRORS):
        reason = text.rstrip(".") or type(error).__name__
        advice = "check that the server runs, and check host, port and TLS"
        if os.strerror(errno.EMFILE) in reason:
            advice = "close other files, or raise the limit of open files (ulimit -n)"
        return ConnectionFailed(f"no connection to {server_name}: {reason}; {advice}")
    return _from_reply(_error_code(error), text, server_name)


def _error_code(error: Exception) -> str:
    for error_type, code in _ERROR_CODES.items():
        if isinstance(error, error_type):
            return code
    return str(error).partition(" ")[0]


def _is_permission_error(text: str) -> bool:
    # The second text is that of Redis 7.2 and newer, the third one that of Redis 7.0.
    return text.startswith(
        ("NOPERM", "ACL failure in script", "The user executing the script can't")
    )


def _from_script(code: str, detail: str) -> ChasquiError | None:
    """Return the error for a code that a script of this package replies with."""
    match code:
        case "CHASQUIFULL":
            return QueueFull(
                f"the queue is full: max_len is {detail} jobs; add workers or increase max_len"
            )
        case "CHASQUIGAP" | "CHASQUIFINALIZED" | "CHASQUICANCELLED" | "CHASQUICHANGED":
            return batch.batch_error(code, detail)
        case "CHASQUIORDER":
            return RedisServerError(
                "the jobs were not added, because the jobs before them in the same call were not"
            )
        case "CHASQUIRSMQ":
            return rsmq_types.rsmq_error(detail)
        case "CHASQUILEASE":
            return lease.lease_error(detail)
    return None


def _from_reply(code: str, text: str, server_name: str) -> ChasquiError:
    detail = text.removeprefix(f"{code} ")
    script_error = _from_script(code, detail)
    if script_error is not None:
        return script_error
    match code:
        case "OOM":
            return QueueFull(
                f"{server_name} is out of memory; add workers, or increase its maxmemory"
            )
        case "WRONGTYPE":
            return KeyTypeMismatch(
                "a key of this queue has another type because another program writes it; choose "
                "another queue name or delete the key"
            )
        case "MISCONF":
            return PersistenceFailed(
                f"{server_name} refuses writes because it cannot save its data to disk; free its "
                "disk, then it accepts writes after the next successful save (see its log)"
            )
        case "NOREPLICAS":
            return ConnectionFailed(f"{server_name} has too few replicas in sync: {detail}")
        case "READONLY":
            return ConnectionFailed(
                f"{server_name} is a replica and accepts no writes; connect to its master"
            )
        case "TRYAGAIN" | "MOVED":
            return ConnectionFailed(
                f"{server_name} is moving this queue to another node; try again later"
            )
        case "CLUSTERDOWN":
            return ConnectionFailed(
                f"{server_name} is down: {detail}; check its nodes with CLUSTER INFO"
            )
    if "unknown command" in text or "Unknown Redis command" in text:
        return ServerTooOld(
            f"{server_name} is too old: {text}; use Redis 7.0 or newer, or Valkey 8"
        )
    return RedisServerError(f"{server_name} replied with an error: {text}")
