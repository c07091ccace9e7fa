"""Redis operations as data: the command to send and the parser for its reply.

There is no I/O here, so the blocking and the asyncio client share every operation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from airflow_provider_chasqui.core.event import Event, parse_event
from airflow_provider_chasqui.core.resp import Arg

R = TypeVar("R")

# Scores are doubles, which represent integers exactly up to here.
_MAX_EXACT_SCORE = 2.0**53

# The classes below are not frozen although instances are never modified. An instance is created per
# add, and a frozen dataclass is slower to create (see docs/performance.md).


@dataclass(slots=True)
class Command(Generic[R]):
    """One command to send, and how to parse its reply.

    :param args: the arguments of the command; bytes if the whole command is already encoded as
        RESP. With `script`, the ARGV of the script.
    :param parse: returns the result from the reply of the server.
    :param script: the name of a Lua script, or None for a plain command.
    :param keys: the KEYS of the script.
    :param default_if_missing: returns the result if the server replies that the key or the consumer
        group does not exist.
    :param block_ms: the BLOCK timeout of the command. The socket timeout is extended by it.
    :param confirms_pipeline: whether the reply confirms all commands before it in the pipeline, as
        that of WAIT does. The commands are then sent, and sent again, together.
    """

    args: tuple[Arg, ...] | bytes
    parse: Callable[[Any], R]
    script: str | None = None
    keys: tuple[str, ...] = ()
    default_if_missing: Callable[[], R] | None = None
    block_ms: int = 0
    confirms_pipeline: bool = False


@dataclass(slots=True)
class DeferredCommand(Generic[R]):
    """A script command that is built when it is sent.

    In a long pipeline the server executes one command while the next one is being built.

    :param script: the name of the Lua script that the built command calls.
    :param build: returns the command.
    """

    script: str
    build: Callable[[], Command[R]]


@dataclass(slots=True)
class DialectCommand(Generic[R]):
    """The same operation in both dialects. The client sends the one that the server supports."""

    native: Command[R]
    portable: Command[R] | DeferredCommand[R]


AnyCommand = Command[R] | DialectCommand[R] | DeferredCommand[R]
COMMAND_TYPES = (Command, DialectCommand, DeferredCommand)

# A flow yields one command, or several to be sent in one pipeline, and receives the results.
FlowStep = AnyCommand[Any] | Sequence[AnyCommand[Any]]

CommandFlow = Generator[FlowStep, Any, R]


def script_command(
    script_name: str,
    parse: Callable[[Any], R],
    keys: Sequence[str],
    args: Sequence[Arg],
) -> Command[R]:
    """Return a command that calls a Lua script.

    :param script_name: the name of the script.
    :param parse: returns the result from the reply of the server.
    :param keys: the KEYS of the script.
    :param args: the ARGV of the script.
    """
    return Command(tuple(args), parse, script_name, tuple(keys))


def redis_command(
    *args: Arg,
    parse: Callable[[Any], R],
    default_if_missing: Callable[[], R] | None = None,
    block_ms: int = 0,
) -> Command[R]:
    """Return a plain Redis command.

    :param args: the name and the arguments of the command.
    :param parse: returns the result from the reply of the server.
    :param default_if_missing: see `Command`.
    :param block_ms: see `Command`.
    """
    return Command(args, parse, default_if_missing=default_if_missing, block_ms=block_ms)


def as_raw(reply: Any) -> Any:
    """Return the reply unchanged."""
    return reply


def as_int(reply: Any) -> int:
    """Parse an integer."""
    return int(reply)


def as_bool(reply: Any) -> bool:
    """Parse an integer as a flag."""
    return bool(int(reply))


def as_bools(reply: Any) -> list[bool]:
    """Parse a list of integers as flags."""
    return [bool(flag) for flag in reply]


def as_text(reply: Any) -> str:
    """Parse a string."""
    return reply.decode() if isinstance(reply, bytes) else str(reply)


def as_score_ms(reply: Any) -> int:
    """Parse a sorted-set score as integer milliseconds, clamped to plus or minus 2^53."""
    return int(max(-_MAX_EXACT_SCORE, min(_MAX_EXACT_SCORE, float(reply))))


def as_pairs(reply: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Parse a flat list of fields and values, or members and scores, as pairs."""
    return list(zip(reply[::2], reply[1::2], strict=True))


def as_last_generated_id(reply: Any) -> str:
    """Parse the last generated id from the reply of XINFO STREAM."""
    last_id: bytes = dict(as_pairs(reply))[b"last-generated-id"]
    return last_id.decode()


def as_event(reply: Sequence[Any]) -> Event:
    """Parse an entry of the events stream."""
    fields = [field.decode("utf-8", "replace") for field in reply[1]]
    return parse_event(reply[0].decode(), dict(as_pairs(fields)))
