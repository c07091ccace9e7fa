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

from airflow_provider_chasqui.core.command import (
    AnyCommand,
    Command,
    DeferredCommand,
    DialectCommand,
)
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.resp import encode_command
from airflow_provider_chasqui.redis_client import error_mapping
from airflow_provider_chasqui.redis_client.scripts import load_script

R = TypeVar("R")

_ASKING = encode_command(["ASKING"])
_SCRIPT_PRELOAD_THRESHOLD, _WRITE_CHUNK_BYTES = 16, 64 * 1024
_INITIAL_RETRY_DELAY, _MAX_RETRY_DELAY = 0.02, 1.0
# The server remembers an add for 100 s (IDMP and the `once` marker): what is sent again later than
# that could be added twice, so by then we have given up.
_RETRY_TIMEOUT = 60.0


class PipelineRequest:
    """Several operations until each has its answer."""

    def __init__(
        self,
        commands: Sequence[AnyCommand[Any]],
        dialect: str,
        server_name: str,
        retries: int,
        clock: Callable[[], float] = time.monotonic,
        started_at: float | None = None,
    ):
        self._commands: list[Any] = [
            getattr(op, dialect) if type(op) is DialectCommand else op for op in commands
        ]
        self._dialect = dialect
        self._server_name = server_name
        self._retries = retries
        self._attempts = 0
        self._needs_script_load: set[int] = set()
        self._pending = list(range(len(commands)))
        self.parsed_replies: list[Any] = [None] * len(commands)
        self.ask_node: tuple[str, int] | None = None
        self.topology_changed = False
        # How long the server may rightly stay silent, in seconds; 0 if no operation blocks.
        blocking = [op.block_ms for op in self._commands if type(op) is Command]
        self.block_timeout = max(blocking, default=0) / 1000
        self._clock = clock
        self._deadline = (
            (clock() if started_at is None else started_at) + self.block_timeout + _RETRY_TIMEOUT
        )

    @property
    def finished(self) -> bool:
        return not self._pending

    def encode_pending(self) -> tuple[Iterator[bytes], list[int | None]]:
        """Return the bytes to send, and for each reply the operation it answers (None: nobody)."""
        plan: list[bytes | int] = []
        owners: list[int | None] = []
        loading: set[str] = set()
        # A long pipeline brings its scripts along: were they unknown, all of it would go twice.
        sure = len(self._pending) < _SCRIPT_PRELOAD_THRESHOLD
        for index in self._pending:
            name = self._commands[index].script
            if name and name not in loading and not (sure and index not in self._needs_script_load):
                loading.add(name)
                plan.append(
                    encode_command(("SCRIPT", "LOAD", load_script(name, self._dialect).source))
                )
                owners.append(None)
            if self.ask_node:
                plan.append(_ASKING)
                owners.append(None)
            plan.append(index)
            owners.append(index)
        return self._encode_chunks(plan), owners

    def _encode_chunks(self, parts: Sequence[bytes | int]) -> Iterator[bytes]:
        """Pack as it goes out: the server works on one piece while the next is made."""
        piece: list[bytes] = []
        size = 0
        for part in parts:
            raw = part if isinstance(part, bytes) else self._encode_command(part)
            piece.append(raw)
            size += len(raw)
            if size >= _WRITE_CHUNK_BYTES:
                yield b"".join(piece)
                piece, size = [], 0
        if piece:
            yield b"".join(piece)

    def _encode_command(self, index: int) -> bytes:
        op = self._commands[index] = resolve_command(self._commands[index], self._dialect)
        return command_bytes(op, self._dialect)

    def handle_replies(self, replies: list[Any], command_indexes: list[int | None]) -> float:
        """Note the replies; return how long to wait before the next request, if one is needed."""
        still_open: list[int] = []
        passing: Exception | None = None
        self.ask_node = None
        for reply, owner in zip(replies, command_indexes, strict=True):
            if owner is None:
                if isinstance(reply, Exception) and not error_mapping.is_transient(reply):
                    raise error_mapping.to_chasqui_error(reply, self._server_name) from reply
            elif isinstance(reply, NoScriptError) and owner not in self._needs_script_load:
                self._needs_script_load.add(owner)
                still_open.append(owner)
            elif isinstance(reply, Exception) and error_mapping.is_transient(reply):
                passing = passing or reply
                still_open.append(owner)
            elif isinstance(reply, Exception) and still_open:
                # It may be refused only because an earlier one was not done (the chunks of a batch
                # go in order), so it is asked again behind that one.
                still_open.append(owner)
            else:
                self.parsed_replies[owner] = self._parse_reply(self._commands[owner], reply)
        if still_open and self._commands[-1].confirms_pipeline:
            # What it answers for must have gone over the same connection, to the same master.
            still_open = list(range(len(self._commands)))
        self._pending = still_open
        if passing is None:
            return 0.0
        # MovedError is a kind of AskError. No host means the one that answered: look it up anew.
        if isinstance(passing, AskError) and not isinstance(passing, MovedError) and passing.host:
            self.ask_node = (passing.host, passing.port)
        self.topology_changed = self.ask_node is None
        return self._next_delay(passing, immediate=isinstance(passing, AskError))

    def handle_disconnect(self, error: Exception) -> float:
        """Note that the connection failed; return how long to wait before trying again."""
        self.ask_node = None
        if error_mapping.is_permanent(error):
            raise error_mapping.to_chasqui_error(error, self._server_name) from error
        self.topology_changed = True
        return self._next_delay(error)

    def _next_delay(self, error: Exception, immediate: bool = False) -> float:
        self._attempts += 1
        wait: float = min(_MAX_RETRY_DELAY, _INITIAL_RETRY_DELAY * 2 ** (self._attempts - 1))
        wait *= 0.5 + random.random() / 2
        if immediate and self._attempts == 1:
            wait = 0.0
        if self._attempts > self._retries or self._clock() + wait > self._deadline:
            raise error_mapping.to_chasqui_error(error, self._server_name) from error
        return wait

    def _parse_reply(self, command: Command[Any], reply: Any) -> Any:
        if isinstance(reply, Exception):
            if command.default_if_missing is not None and error_mapping.is_missing(reply):
                return command.default_if_missing()
            error = error_mapping.to_chasqui_error(reply, self._server_name)
            error.__cause__ = reply
            return error
        return command.parse(reply)

    def results(self, queue_name: str) -> list[Any]:
        """Return all answers; an error among them says which queue it is about."""
        for answer in self.parsed_replies:
            if isinstance(answer, ChasquiError):
                answer.queue_name = queue_name
        return self.parsed_replies


def resolve_command(command: AnyCommand[R], dialect: str) -> Command[R]:
    """Return the operation as it is in the dialect, made if it was to be made late."""
    chosen: Any = getattr(command, dialect) if type(command) is DialectCommand else command
    return chosen.build() if type(chosen) is DeferredCommand else chosen


def command_bytes(command: Command[Any], dialect: str) -> bytes:
    """Return what is sent for an operation."""
    if not command.script:
        return command.args if type(command.args) is bytes else encode_command(command.args)
    sha = load_script(command.script, dialect).sha
    return encode_command(("EVALSHA", sha, len(command.keys), *command.keys, *command.args))
