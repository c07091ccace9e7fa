"""An operation as a value: what to send and how to read the answer, with no colour of its own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

R = TypeVar("R")

# Not frozen, though nobody changes them: a frozen dataclass takes four times as long to make, and
# these are made for every add.

# As far as a score is exact.
_FAR = 2.0**53


@dataclass(slots=True)
class Packed:
    """Several arguments that stand in RESP already; for bulk, where packing one by one is dear."""

    count: int
    data: bytes | memoryview


Arg = str | bytes | int | Packed


@dataclass(slots=True)
class Op(Generic[R]):
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
    absent: Callable[[], R] | None = None
    block_ms: int = 0
    covers: bool = False


@dataclass(slots=True)
class Late(Generic[R]):
    """An operation that is made when its turn to be sent has come.

    In a pipeline of many, the server works on one while the next is being made.
    """

    script: str
    make: Callable[[], Op[R]]


@dataclass(slots=True)
class Choice(Generic[R]):
    """The same promise in two dialects; the driver knows which one the server speaks."""

    native: Op[R]
    portable: Op[R] | Late[R]


AnyOp = Op[R] | Choice[R] | Late[R]
ONE = (Op, Choice, Late)

# What a flow yields: one operation, or several to be sent in one pipeline.
Step = AnyOp[Any] | Sequence[AnyOp[Any]]

Flow = Generator[Step, Any, R]


def as_is(reply: Any) -> Any:
    return reply


def as_int(reply: Any) -> int:
    return int(reply)


def as_score(reply: Any) -> int:
    """A score as whole ms; one that is no time of this world is cut to the end of it."""
    return int(max(-_FAR, min(_FAR, float(reply))))


def as_true(reply: Any) -> bool:
    return bool(int(reply))


def as_flags(reply: Any) -> list[bool]:
    return [bool(flag) for flag in reply]


def as_text(reply: Any) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply)


def script(
    name: str,
    parse: Callable[[Any], R],
    keys: Sequence[str],
    args: Sequence[Arg],
) -> Op[R]:
    return Op(tuple(args), parse, name, tuple(keys))


def command(
    *args: Arg,
    parse: Callable[[Any], R],
    absent: Callable[[], R] | None = None,
    block_ms: int = 0,
) -> Op[R]:
    return Op(args, parse, absent=absent, block_ms=block_ms)
