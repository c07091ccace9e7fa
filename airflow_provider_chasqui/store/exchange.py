"""One exchange with the server, without a socket: what to send, what the replies mean.

The two drivers only move bytes. Every operation is safe to send again (it is gated, or carries a
marker), so what was not answered is simply sent once more.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from redis.exceptions import AskError, MovedError, NoScriptError

from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.op import AnyOp, Choice, Late, Op
from airflow_provider_chasqui.store import translate
from airflow_provider_chasqui.store.resp import pack
from airflow_provider_chasqui.store.scripts import script

R = TypeVar("R")

_ASKING = pack(["ASKING"])
_LONG, _PIECE = 16, 64 * 1024
_FIRST_WAIT, _LONGEST_WAIT = 0.02, 1.0
# The server remembers an add for 100 s (IDMP and the `once` marker): what is sent again later than
# that could be added twice, so by then we have given up.
_PATIENCE = 60.0


class Exchange:
    """Several operations until each has its answer."""

    def __init__(
        self,
        ops: Sequence[AnyOp[Any]],
        dialect: str,
        where: str,
        retries: int,
        clock: Callable[[], float] = time.monotonic,
        began: float | None = None,
    ):
        self._ops: list[Any] = [getattr(op, dialect) if type(op) is Choice else op for op in ops]
        self._dialect = dialect
        self._where = where
        self._retries = retries
        self._tries = 0
        self._unloaded: set[int] = set()
        self._open = list(range(len(ops)))
        self.answers: list[Any] = [None] * len(ops)
        self.ask_node: tuple[str, int] | None = None
        self.moved = False
        # How long the server may rightly stay silent, in seconds; 0 if no operation blocks.
        blocking = [op.block_ms for op in self._ops if type(op) is Op]
        self.timeout = max(blocking, default=0) / 1000
        self._clock = clock
        self._give_up_at = (clock() if began is None else began) + self.timeout + _PATIENCE

    @property
    def finished(self) -> bool:
        return not self._open

    def request(self) -> tuple[Iterator[bytes], list[int | None]]:
        """Return the bytes to send, and for each reply the operation it answers (None: nobody)."""
        plan: list[bytes | int] = []
        owners: list[int | None] = []
        loading: set[str] = set()
        # A long pipeline brings its scripts along: were they unknown, all of it would go twice.
        sure = len(self._open) < _LONG
        for index in self._open:
            name = self._ops[index].script
            if name and name not in loading and not (sure and index not in self._unloaded):
                loading.add(name)
                plan.append(pack(("SCRIPT", "LOAD", script(name, self._dialect).source)))
                owners.append(None)
            if self.ask_node:
                plan.append(_ASKING)
                owners.append(None)
            plan.append(index)
            owners.append(index)
        return self._packed(plan), owners

    def _packed(self, plan: Sequence[bytes | int]) -> Iterator[bytes]:
        """Pack as it goes out: the server works on one piece while the next is made."""
        piece: list[bytes] = []
        size = 0
        for part in plan:
            raw = part if isinstance(part, bytes) else self._command(part)
            piece.append(raw)
            size += len(raw)
            if size >= _PIECE:
                yield b"".join(piece)
                piece, size = [], 0
        if piece:
            yield b"".join(piece)

    def _command(self, index: int) -> bytes:
        op = self._ops[index] = choose(self._ops[index], self._dialect)
        return packed(op, self._dialect)

    def take(self, replies: list[Any], owners: list[int | None]) -> float:
        """Note the replies; return how long to wait before the next request, if one is needed."""
        still_open: list[int] = []
        passing: Exception | None = None
        self.ask_node = None
        for reply, owner in zip(replies, owners, strict=True):
            if owner is None:
                if isinstance(reply, Exception) and not translate.is_passing(reply):
                    raise translate.translate(reply, self._where) from reply
            elif isinstance(reply, NoScriptError) and owner not in self._unloaded:
                self._unloaded.add(owner)
                still_open.append(owner)
            elif isinstance(reply, Exception) and translate.is_passing(reply):
                passing = passing or reply
                still_open.append(owner)
            elif isinstance(reply, Exception) and still_open:
                # It may be refused only because an earlier one was not done (the chunks of a batch
                # go in order), so it is asked again behind that one.
                still_open.append(owner)
            else:
                self.answers[owner] = self._answer(self._ops[owner], reply)
        if still_open and self._ops[-1].covers:
            # What it answers for must have gone over the same connection, to the same master.
            still_open = list(range(len(self._ops)))
        self._open = still_open
        if passing is None:
            return 0.0
        # MovedError is a kind of AskError. No host means the one that answered: look it up anew.
        if isinstance(passing, AskError) and not isinstance(passing, MovedError) and passing.host:
            self.ask_node = (passing.host, passing.port)
        self.moved = self.ask_node is None
        return self._again(passing, quickly=isinstance(passing, AskError))

    def broken(self, error: Exception) -> float:
        """Note that the connection failed; return how long to wait before trying again."""
        self.ask_node = None
        if translate.is_final(error):
            raise translate.translate(error, self._where) from error
        self.moved = True
        return self._again(error)

    def _again(self, error: Exception, quickly: bool = False) -> float:
        self._tries += 1
        wait: float = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (self._tries - 1))
        wait *= 0.5 + random.random() / 2
        if quickly and self._tries == 1:
            wait = 0.0
        if self._tries > self._retries or self._clock() + wait > self._give_up_at:
            raise translate.translate(error, self._where) from error
        return wait

    def _answer(self, op: Op[Any], reply: Any) -> Any:
        if isinstance(reply, Exception):
            if op.absent is not None and translate.is_absent(reply):
                return op.absent()
            error = translate.translate(reply, self._where)
            error.__cause__ = reply
            return error
        return op.parse(reply)

    def results(self, queue: str) -> list[Any]:
        """Return all answers; an error among them says which queue it is about."""
        for answer in self.answers:
            if isinstance(answer, ChasquiError):
                answer.queue = queue
        return self.answers


def choose(op: AnyOp[R], dialect: str) -> Op[R]:
    """Return the operation as it is in the dialect, made if it was to be made late."""
    chosen: Any = getattr(op, dialect) if type(op) is Choice else op
    return chosen.make() if type(chosen) is Late else chosen


def packed(op: Op[Any], dialect: str) -> bytes:
    """Return what is sent for an operation."""
    if not op.script:
        return op.args if type(op.args) is bytes else pack(op.args)
    sha = script(op.script, dialect).sha
    return pack(("EVALSHA", sha, len(op.keys), *op.keys, *op.args))
