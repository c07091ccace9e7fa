"""What the server or the socket complains about, said as one of our errors."""

from __future__ import annotations

from redis import exceptions as redis

from airflow_provider_chasqui.core.errors import (
    BatchConflict,
    ChasquiError,
    LoginRefused,
    NotConnected,
    NotPermitted,
    QueueFull,
    ServerTooOld,
    StoreError,
    WrongType,
)

# The server will take the same command later, or another node takes it now.
PASSING = (
    redis.BusyLoadingError,
    redis.ClusterDownError,
    redis.MasterDownError,
    redis.MovedError,
    redis.AskError,
    redis.ReadOnlyError,
    redis.TryAgainError,
)

# redis-py names only some replies by class; the rest are known by their first word.
_PASSING_WORDS = ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "UNBLOCKED")

# The connection is gone or never came to be.
BROKEN = (redis.ConnectionError, redis.TimeoutError, redis.RedisClusterException, OSError)


def is_passing(error: Exception) -> bool:
    return isinstance(error, PASSING) or str(error).startswith(_PASSING_WORDS)


def is_absent(error: Exception) -> bool:
    """Whether the server says that the key or the group is not there."""
    text = str(error)
    return text.startswith("NOGROUP") or "no such key" in text


def translate(error: Exception, where: str) -> ChasquiError:
    """Return our error for one of redis-py's; `where` names the server without its password."""
    text = str(error)
    if isinstance(error, redis.AuthenticationError) or text.startswith(("WRONGPASS", "NOAUTH")):
        return LoginRefused(
            f"{where} refused the login: check the user name and the password of the connection"
        )
    if isinstance(error, redis.NoPermissionError) or text.startswith("NOPERM"):
        return NotPermitted(
            f"{where} does not let this user do that: {text}; grant the ACL rules in the docs"
        )
    if isinstance(error, BROKEN):
        return NotConnected(
            f"no connection to {where}: {text or type(error).__name__}; check that the server runs "
            "and that host, port and TLS are right"
        )
    return _reply(text, where)


def _reply(text: str, where: str) -> ChasquiError:
    word, _, rest = text.partition(" ")
    match word:
        case "CHASQUIFULL":
            return QueueFull(
                f"the queue is full: it may hold {rest} jobs; add workers or raise max_len"
            )
        case "CHASQUIGAP":
            return BatchConflict(
                f"the parts of the batch do not add up: {rest} jobs were sent so far"
            )
        case "CHASQUISEALED":
            return BatchConflict(f"the batch was already handed off with {rest} jobs")
        case "OOM":
            return QueueFull(f"{where} is out of memory; add workers, or raise its maxmemory")
        case "WRONGTYPE":
            return WrongType(
                "a key of this queue holds another type; something else writes under its name: "
                "choose another queue name or remove the key"
            )
        case "NOREPLICAS":
            return NotConnected(f"{where} has too few replicas in sync: {rest}")
    if "unknown command" in text or "Unknown Redis command" in text:
        return ServerTooOld(f"{where} is too old: {text}; use Redis 7.0 or newer, or Valkey 8")
    return StoreError(f"{where} answered: {text}")
