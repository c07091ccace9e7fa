"""An operation as a value: what to send and how to read the answer, with no colour of its own.

Raw replies of the server in the shapes that several verbs read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from airflow_provider_chasqui.core.event import Event, parse_event

R = TypeVar("R")

# Not frozen, though nobody changes them: a frozen dataclass takes four times as long to make, and
# these are made for every add.

# As far as a score is exact.
_MAX_EXACT_SCORE = 2.0**53


@dataclass(slots=True)
class EncodedArgs:
    """Several arguments that stand in RESP already; for bulk, where packing one by one is dear."""

    count: int
    data: bytes | memoryview


Arg = str | bytes | int | EncodedArgs


@dataclass(slots=True)
class Command(Generic[R]):
    """One round trip.

    Without `script`, `args` is the whole command, in RESP already where it is bytes; with it,
    `keys` and `args` are the script's KEYS and ARGV. `absent` answers in place of an error that
    says the key or group is not there; `block_ms` is how long the server may stay silent by
    agreement. One that `covers` answers for all that went before it in its pipeline, so these are
    sent, and sent again, together.
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
    """An operation that is made when its turn to be sent has come.

    In a pipeline of many, the server works on one while the next is being made.
    """

    script: str
    build: Callable[[], Command[R]]


@dataclass(slots=True)
class DialectCommand(Generic[R]):
    """The same promise in two dialects; the driver knows which one the server speaks."""

    native: Command[R]
    portable: Command[R] | DeferredCommand[R]


AnyCommand = Command[R] | DialectCommand[R] | DeferredCommand[R]
COMMAND_TYPES = (Command, DialectCommand, DeferredCommand)

# What a flow yields: one operation, or several to be sent in one pipeline.
FlowStep = AnyCommand[Any] | Sequence[AnyCommand[Any]]

CommandFlow = Generator[FlowStep, Any, R]


def as_raw(reply: Any) -> Any:
    return reply


def as_int(reply: Any) -> int:
    return int(reply)


def as_score_ms(reply: Any) -> int:
    """A score as whole ms; one that is no time of this world is cut to the end of it."""
    return int(max(-_MAX_EXACT_SCORE, min(_MAX_EXACT_SCORE, float(reply))))


def as_bool(reply: Any) -> bool:
    return bool(int(reply))


def as_bools(reply: Any) -> list[bool]:
    return [bool(flag) for flag in reply]


def as_text(reply: Any) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply)


def script_command(
    script_name: str,
    parse: Callable[[Any], R],
    keys: Sequence[str],
    args: Sequence[Arg],
) -> Command[R]:
    return Command(tuple(args), parse, script_name, tuple(keys))


def redis_command(
    *args: Arg,
    parse: Callable[[Any], R],
    default_if_missing: Callable[[], R] | None = None,
    block_ms: int = 0,
) -> Command[R]:
    return Command(args, parse, default_if_missing=default_if_missing, block_ms=block_ms)


class KeyIndexer:
    """Appends keys to the KEYS of a script, each once, and returns their positions.

    A script that uses one of several keys per job gets the keys in KEYS and the position of the
    right one in ARGV. Positions count from 1, as in Lua; 0 means that there is no key.

    :param keys: the fixed keys of the script. The indexer appends to this list.
    """

    __slots__ = ("_keys", "_positions")

    def __init__(self, keys: list[str]):
        self._keys = keys
        self._positions: dict[str, int] = {}

    def position(self, key: str) -> int:
        """Return the position of a key in KEYS, and append the key if it is not there yet."""
        position = self._positions.get(key)
        if position is None:
            self._keys.append(key)
            position = self._positions[key] = len(self._keys)
        return position


def as_pairs(reply: Sequence[Any]) -> list[tuple[Any, Any]]:
    """A flat reply (fields and values, members and scores) two by two."""
    return list(zip(reply[::2], reply[1::2], strict=True))


def as_last_generated_id(reply: Any) -> str:
    """The id that a stream has reached, in the reply of XINFO STREAM."""
    last: bytes = dict(as_pairs(reply))[b"last-generated-id"]
    return last.decode()


def as_event(reply: Sequence[Any]) -> Event:
    """The event in a raw entry."""
    text = [field.decode("utf-8", "replace") for field in reply[1]]
    return parse_event(reply[0].decode(), dict(as_pairs(text)))
