"""Conversion of redis-py's errors and of error replies to Chasqui's errors."""

from __future__ import annotations

import ssl

from redis import exceptions as redis

from airflow_provider_chasqui.core import lease, rsmq_types
from airflow_provider_chasqui.core.errors import (
    AuthenticationFailed,
    BatchConflict,
    ChasquiError,
    ConnectionFailed,
    KeyTypeMismatch,
    PermissionDenied,
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
    *("BUSY ", "NOREPLICAS "),
)

# redis-py removes the first word of the error replies that it has a class for.
_ERROR_CODES: dict[type[Exception], str] = {
    redis.AskError: "MOVED",
    redis.ClusterDownError: "CLUSTERDOWN",
    redis.OutOfMemoryError: "OOM",
    redis.ReadOnlyError: "READONLY",
    redis.TryAgainError: "TRYAGAIN",
}

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


def is_missing(error: Exception) -> bool:
    """Return whether an error reply means that the key or the consumer group does not exist.

    :param error: an error reply.
    """
    text = str(error)
    return text.startswith("NOGROUP") or "no such key" in text


def to_chasqui_error(error: Exception, server_name: str) -> ChasquiError:
    """Return the Chasqui error for an error of redis-py.

    :param error: an error reply, or an error of a connection.
    :param server_name: the name of the server without its password, for the message.
    """
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
        return ConnectionFailed(
            f"no connection to {server_name}: {reason}; check that the server runs, and check "
            "host, port and TLS"
        )
    return _from_reply(_error_code(error), text, server_name)


def _error_code(error: Exception) -> str:
    for error_type, code in _ERROR_CODES.items():
        if isinstance(error, error_type):
            return code
    return str(error).partition(" ")[0]


def _is_permission_error(text: str) -> bool:
    return text.startswith("NOPERM") or "ACL failure in script" in text


def _from_reply(code: str, text: str, server_name: str) -> ChasquiError:
    detail = text.removeprefix(f"{code} ")
    match code:
        case "CHASQUIFULL":
            return QueueFull(
                f"the queue is full: max_len is {detail} jobs; add workers or increase max_len"
            )
        case "CHASQUIGAP":
            return BatchConflict(
                f"the parts of the batch do not add up: {detail} jobs were sent so far; send the "
                "missing parts first"
            )
        case "CHASQUIFINALIZED":
            return BatchConflict(
                f"the batch was already finalized with {detail} jobs; use another batch_id"
            )
        case "CHASQUIRSMQ":
            return rsmq_types.rsmq_error(detail)
        case "CHASQUILEASE":
            return lease.lease_error(detail)
        case "OOM":
            return QueueFull(
                f"{server_name} is out of memory; add workers, or increase its maxmemory"
            )
        case "WRONGTYPE":
            return KeyTypeMismatch(
                "a key of this queue has another type because another program writes it; choose "
                "another queue name or delete the key"
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
