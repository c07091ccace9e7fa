"""What the server or the socket complains about, said as one of our errors."""

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

# The server will take the same command later, or another node takes it now.
TRANSIENT_ERRORS = (
    redis.BusyLoadingError,
    redis.ClusterDownError,
    redis.MasterDownError,
    redis.MovedError,
    redis.AskError,
    redis.ReadOnlyError,
    redis.TryAgainError,
)

# redis-py names only some replies by class; the rest are known by their first word.
_TRANSIENT_CODES = (
    *("LOADING ", "MASTERDOWN ", "CLUSTERDOWN ", "TRYAGAIN ", "READONLY ", "UNBLOCKED "),
    *("BUSY ", "NOREPLICAS "),
)

# redis-py cuts the first word off those that it has a class for.
_ERROR_CODES: dict[type[Exception], str] = {
    redis.AskError: "MOVED",
    redis.ClusterDownError: "CLUSTERDOWN",
    redis.OutOfMemoryError: "OOM",
    redis.ReadOnlyError: "READONLY",
    redis.TryAgainError: "TRYAGAIN",
}

# The connection is gone or never came to be.
CONNECTION_ERRORS = (
    *(redis.ConnectionError, redis.TimeoutError, redis.InvalidResponse),
    *(redis.RedisClusterException, OSError),
)


def is_transient(error: Exception) -> bool:
    return isinstance(error, TRANSIENT_ERRORS) or str(error).startswith(_TRANSIENT_CODES)


def is_permanent(error: Exception) -> bool:
    """Whether trying again cannot help: a refused login or certificate, or a refused command."""
    if isinstance(error, redis.AuthenticationError):
        return True
    if isinstance(error, redis.ResponseError):
        return not is_transient(error)
    cause: BaseException | None = error
    while cause is not None:
        # An alert is how the server says that it wants another certificate than ours.
        if isinstance(cause, ssl.SSLCertVerificationError) or "ALERT_" in str(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def is_missing(error: Exception) -> bool:
    """Whether the server says that the key or the group is not there."""
    text = str(error)
    return text.startswith("NOGROUP") or "no such key" in text


def to_chasqui_error(error: Exception, server_name: str) -> ChasquiError:
    """Return our error for one of redis-py's; `where` names the server without its password."""
    text = str(error)
    if isinstance(error, redis.AuthenticationError) or text.startswith(("WRONGPASS", "NOAUTH")):
        return AuthenticationFailed(
            f"{server_name} refused the login: check the user name and the password of the connection"
        )
    if isinstance(error, redis.NoPermissionError) or _is_permission_error(text):
        return PermissionDenied(
            f"{server_name} does not let this user do that: {text}; grant the rights that "
            "docs/security-acl.md lists"
        )
    if isinstance(error, redis.BusyLoadingError):
        return ConnectionFailed(
            f"{server_name} is still loading its data; try again when it is done"
        )
    if isinstance(error, redis.TimeoutError | TimeoutError):
        return ConnectionFailed(
            f"{server_name} did not answer in time; check that host, port and TLS are right and that it "
            "is not overloaded, or raise the timeout"
        )
    if isinstance(error, CONNECTION_ERRORS):
        why = text.rstrip(".") or type(error).__name__
        return ConnectionFailed(
            f"no connection to {server_name}: {why}; check that the server runs and that host, port and "
            "TLS are right"
        )
    return _from_reply(_error_code(error), text, server_name)


def _error_code(error: Exception) -> str:
    for kind, word in _ERROR_CODES.items():
        if isinstance(error, kind):
            return word
    return str(error).partition(" ")[0]


def _is_permission_error(text: str) -> bool:
    return text.startswith("NOPERM") or "ACL failure in script" in text


def _from_reply(code: str, text: str, server_name: str) -> ChasquiError:
    rest = text.removeprefix(f"{code} ")
    match code:
        case "CHASQUIFULL":
            return QueueFull(
                f"the queue is full: it may hold {rest} jobs; add workers or raise max_len"
            )
        case "CHASQUIGAP":
            return BatchConflict(
                f"the parts of the batch do not add up: {rest} jobs were sent so far"
            )
        case "CHASQUIFINALIZED":
            return BatchConflict(f"the batch was already handed off with {rest} jobs")
        case "CHASQUIRSMQ":
            return rsmq_types.rsmq_error(rest)
        case "CHASQUILEASE":
            return lease.lease_error(rest)
        case "OOM":
            return QueueFull(f"{server_name} is out of memory; add workers, or raise its maxmemory")
        case "WRONGTYPE":
            return KeyTypeMismatch(
                "a key of this queue holds another type; something else writes under its name: "
                "choose another queue name or remove the key"
            )
        case "NOREPLICAS":
            return ConnectionFailed(f"{server_name} has too few replicas in sync: {rest}")
        case "READONLY":
            return ConnectionFailed(
                f"{server_name} is a replica and takes no writes; connect to its master"
            )
        case "TRYAGAIN" | "MOVED":
            return ConnectionFailed(
                f"{server_name} is moving this queue to another node; try again later"
            )
        case "CLUSTERDOWN":
            return ConnectionFailed(
                f"{server_name} is down: {rest}; check its nodes with CLUSTER INFO"
            )
    if "unknown command" in text or "Unknown Redis command" in text:
        return ServerTooOld(
            f"{server_name} is too old: {text}; use Redis 7.0 or newer, or Valkey 8"
        )
    return RedisServerError(f"{server_name} answered: {text}")
