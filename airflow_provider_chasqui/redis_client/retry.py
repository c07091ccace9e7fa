"""State of one request without I/O: the bytes to send, the meaning of the replies, the retries.

The client only transports bytes. A command without a reply is sent again. That is harmless: adds
carry an idempotency id, outcomes depend on an ack that succeeds once, and reads change nothing.
There are two exceptions. Events may be written twice, and XREADGROUP delivers entries, so the
reader's client does not resend it.
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
from airflow_provider_chasqui.redis_client.deadline import current_deadline
from airflow_provider_chasqui.redis_client.dialect import NATIVE
from airflow_provider_chasqui.redis_client.scripts import load_script

R = TypeVar("R")

# Seconds that a blocking command may take beyond its own timeout before the connection counts as
# lost.
BLOCKING_GRACE = 5.0
# A server that was never reached is more likely configured wrongly than failing over.
FIRST_CONTACT_RETRIES = 5

_ASKING = encode_command(["ASKING"])
_SCRIPT_PRELOAD_THRESHOLD, _WRITE_CHUNK_BYTES = 16, 64 * 1024
_INITIAL_RETRY_DELAY, _MAX_RETRY_DELAY = 0.02, 1.0
# The server remembers the idempotency ids of an add for 100 s (IDMP and the key
# `idempotency:TOKEN`). An add that is resent later could be added twice, so the request gives up
# earlier.
_RETRY_TIMEOUT = 60.0


class PipelineRequest:
    """Commands that are sent in one pipeline until each of them has a result.

    :param commands: the commands.
    :param dialect: "native" or "portable".
    :param server_name: the name of the server, for error messages.
    :param retries: the number of retries after a failure.
    :param clock: a monotonic clock in seconds.
    :param started_at: the time of the first attempt on this clock. None: now.
    :param originals: the commands for both dialects, if `commands` are already resolved.
    """

    def __init__(
        self,
        commands: Sequence[AnyCommand[Any]],
        dialect: str,
        server_name: str,
        retries: int,
        clock: Callable[[], float] = time.monotonic,
        started_at: float | None = None,
        originals: Sequence[AnyCommand[Any]] | None = None,
    ):
        self._originals = commands if originals is None else originals
        self._commands: list[Any] = [
            getattr(command, dialect) if type(command) is DialectCommand else command
            for command in commands
        ]
        self._dialect = dialect
        self._server_name = server_name
        self._retries = retries
        self._attempts = 0
        self._redirected = False
        # Indexes of commands that a server of the other dialect would refuse in this way.
        self._misunderstood: list[int] = []
        self._needs_script_load: set[int] = set()
        self._pending = list(range(len(commands)))
        self.parsed_replies: list[Any] = [None] * len(commands)
        self.ask_node: tuple[str, int] | None = None
        self.topology_changed = False
        # Seconds for which the server may stay silent; 0 if no command blocks.
        blocking = [command.block_ms for command in self._commands if type(command) is Command]
        self.block_timeout = max(blocking, default=0) / 1000
        self._clock = clock
        self._deadline = (
            (clock() if started_at is None else started_at) + self.block_timeout + _RETRY_TIMEOUT
        )
        if (deadline := current_deadline()) is not None:
            self._deadline = min(self._deadline, deadline)

    @property
    def finished(self) -> bool:
        """Whether every command has a result."""
        return not self._pending

    def encode_pending(self) -> tuple[Iterator[bytes], list[int | None]]:
        """Return what to send for the commands without a result.

        :return: chunks of bytes, and for each expected reply the index of its command. The index is
            None for a reply that belongs to no command (SCRIPT LOAD, ASKING).
        """
        parts: list[bytes | int] = []
        command_indexes: list[int | None] = []
        loaded_scripts: set[str] = set()
        # A long pipeline loads its scripts first. If they were unknown, all of it would be sent
        # twice.
        assume_loaded = len(self._pending) < _SCRIPT_PRELOAD_THRESHOLD
        for index in self._pending:
            name = self._commands[index].script
            needs_load = not assume_loaded or index in self._needs_script_load
            if name and needs_load and name not in loaded_scripts:
                loaded_scripts.add(name)
                parts.append(
                    encode_command(("SCRIPT", "LOAD", load_script(name, self._dialect).source))
                )
                command_indexes.append(None)
            if self.ask_node:
                parts.append(_ASKING)
                command_indexes.append(None)
            parts.append(index)
            command_indexes.append(index)
        return self._encode_chunks(parts), command_indexes

    def _encode_chunks(self, parts: Sequence[bytes | int]) -> Iterator[bytes]:
        """Encode while sending: the server processes one chunk while the next one is encoded."""
        chunk: list[bytes] = []
        size = 0
        for part in parts:
            raw = part if isinstance(part, bytes) else self._encode_command(part)
            chunk.append(raw)
            size += len(raw)
            if size >= _WRITE_CHUNK_BYTES:
                yield b"".join(chunk)
                chunk, size = [], 0
        if chunk:
            yield b"".join(chunk)

    def _encode_command(self, index: int) -> bytes:
        command = self._commands[index] = resolve_command(self._commands[index], self._dialect)
        return command_bytes(command, self._dialect)

    def handle_replies(self, replies: list[Any], command_indexes: list[int | None]) -> float:
        """Record the replies.

        :param replies: the replies, error replies as exceptions.
        :param command_indexes: the second value of `encode_pending`.
        :return: the delay in seconds before the next attempt, if one is needed.
        :raises ChasquiError: if a script cannot be loaded, or no retry is left.
        """
        pending: list[int] = []
        transient: Exception | None = None
        self.ask_node = None
        for reply, index in zip(replies, command_indexes, strict=True):
            if index is None:
                if isinstance(reply, Exception) and not error_mapping.is_transient(reply):
                    raise error_mapping.to_chasqui_error(reply, self._server_name) from reply
            elif isinstance(reply, NoScriptError) and index not in self._needs_script_load:
                self._needs_script_load.add(index)
                pending.append(index)
            elif isinstance(reply, Exception) and error_mapping.is_transient(reply):
                transient = transient or reply
                pending.append(index)
            elif isinstance(reply, Exception) and pending:
                # The command may have failed only because an earlier one was not executed (the
                # chunks of a batch must arrive in order), so it is sent again after that one.
                pending.append(index)
            else:
                if self._dialect == NATIVE and error_mapping.is_misunderstood(reply):
                    self._misunderstood.append(index)
                self.parsed_replies[index] = self._parse_reply(self._commands[index], reply)
        if pending and self._commands[-1].confirms_pipeline:
            # The confirmation is valid only for commands sent on the same connection.
            pending = list(range(len(self._commands)))
        self._pending = pending
        if transient is None:
            return 0.0
        # MovedError is a subclass of AskError. Without a host, the slot table must be read again.
        if (
            isinstance(transient, AskError)
            and not isinstance(transient, MovedError)
            and transient.host
        ):
            self.ask_node = (transient.host, transient.port)
        self.topology_changed = self.ask_node is None
        return self._next_delay(transient, immediate=isinstance(transient, AskError))

    def handle_disconnect(self, error: Exception) -> float:
        """Record that the connection failed.

        :param error: the error of the connection.
        :return: the delay in seconds before the next attempt.
        :raises ChasquiError: if a retry cannot help, or no retry is left.
        """
        self.ask_node = None
        if error_mapping.is_permanent(error):
            raise error_mapping.to_chasqui_error(error, self._server_name) from error
        self.topology_changed = True
        return self._next_delay(error)

    def _next_delay(self, error: Exception, immediate: bool = False) -> float:
        if immediate and not self._redirected:
            # The node has not executed the command, so this is no retry.
            self._redirected = True
            return 0.0
        self._attempts += 1
        delay: float = min(_MAX_RETRY_DELAY, _INITIAL_RETRY_DELAY * 2 ** (self._attempts - 1))
        delay *= 0.5 + random.random() / 2
        if self._attempts > self._retries or self._clock() + delay > self._deadline:
            raise error_mapping.to_chasqui_error(error, self._server_name) from error
        return delay

    def _parse_reply(self, command: Command[Any], reply: Any) -> Any:
        if isinstance(reply, Exception):
            if command.default_if_missing is not None and error_mapping.is_missing(reply):
                return command.default_if_missing()
            error = error_mapping.to_chasqui_error(reply, self._server_name)
            error.__cause__ = reply
            return error
        return command.parse(reply)

    @property
    def misunderstood(self) -> list[AnyCommand[Any]]:
        """The commands that a server refused as if it had the other dialect."""
        return [self._originals[index] for index in self._misunderstood]

    def replace_misunderstood(self, results: Sequence[Any]) -> None:
        """Replace the errors of the `misunderstood` commands.

        :param results: the results of these commands in the other dialect.
        """
        for index, result in zip(self._misunderstood, results, strict=True):
            self.parsed_replies[index] = result

    def results(self, queue_name: str) -> list[Any]:
        """Return one result per command.

        :param queue_name: the name that is set on the errors among the results.
        """
        for result in self.parsed_replies:
            if isinstance(result, ChasquiError):
                result.queue_name = queue_name
        return self.parsed_replies


def resolve_command(command: AnyCommand[R], dialect: str) -> Command[R]:
    """Return the command to send: the variant of the dialect, built if it was deferred.

    :param command: the command.
    :param dialect: "native" or "portable".
    """
    variant: Any = getattr(command, dialect) if type(command) is DialectCommand else command
    return variant.build() if type(variant) is DeferredCommand else variant


def command_bytes(command: Command[Any], dialect: str) -> bytes:
    """Return the RESP bytes of a command; a script is called by EVALSHA.

    :param command: the command.
    :param dialect: "native" or "portable".
    """
    if not command.script:
        return command.args if type(command.args) is bytes else encode_command(command.args)
    sha = load_script(command.script, dialect).sha
    return encode_command(("EVALSHA", sha, len(command.keys), *command.keys, *command.args))
