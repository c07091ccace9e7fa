"""The connection options that all commands share."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from airflow_provider_chasqui.core.command import as_int, redis_command
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import ConnectionFailed, InvalidArgument, QueueNotFound
from airflow_provider_chasqui.engine.queue_discovery import QueueDiscovery
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.target import (
    DEFAULT_URL,
    PasswordFile,
    RedisTarget,
    Tls,
    from_url,
)

_CONNECTION_PANEL = "Connection"
# Interactive commands wait for a failover, but not for a minute.
_DEFAULT_RETRIES = 6

QueueNameArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]
GroupOption = Annotated[str, typer.Option("--group", metavar="NAME", help="Consumer group.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LimitOption = Annotated[
    int,
    typer.Option("--limit", metavar="N", min=1, max=1_000_000, help="Maximum number of results."),
]


@dataclass(frozen=True)
class Server:
    """The server that the connection options select."""

    target: RedisTarget
    dialect: str | None = None
    is_default: bool = False

    def open_queue(self, queue_name: str, group: str = "default") -> Queue:
        """Open a queue on this server.

        :param queue_name: the name of the queue.
        :param group: the consumer group.
        """
        config = QueueConfig(group=group)
        return Queue(queue_name, self.target, config=config, dialect=self.dialect)

    @contextmanager
    def open_existing_queue(self, queue_name: str, group: str = "default") -> Iterator[Queue]:
        """Open a queue that has at least one key on this server.

        :param queue_name: the name of the queue.
        :param group: the consumer group.
        :raises QueueNotFound: if it has none.
        """
        with self.open_queue(queue_name, group) as queue:
            keys = queue.keys
            existing = queue.client.execute(
                redis_command(
                    "EXISTS",
                    *(keys.stream, keys.delayed, keys.dlq, keys.events, keys.repeat, keys.paused),
                    parse=as_int,
                )
            )
            if not existing:
                hint = suggest(queue_name, sorted(discover_queues(queue)), "chasqui queues")
                raise QueueNotFound(
                    f"the queue does not exist on this server; {hint}", queue_name=queue_name
                )
            yield queue


def discover_queues(queue: Queue) -> set[str]:
    """Return the names of all queues of the server. Scans all of its keys in small steps.

    :param queue: any queue of the server.
    """
    discovery = QueueDiscovery()
    while True:
        names, complete = queue.client.run_flow(discovery.queue_names())
        if complete:
            return names


def suggest(wanted: str, names: Sequence[str], list_command: str) -> str:
    """Return a hint for a name that does not exist: the nearest names, or the command to list them.

    :param wanted: the name that does not exist.
    :param names: the names that exist.
    :param list_command: the command that lists them.
    """
    nearest = difflib.get_close_matches(wanted, names, n=3, cutoff=0.6)
    if nearest:
        return f"did you mean {' or '.join(map(repr, nearest))}?"
    return f"list what exists with: {list_command}" if names else "there are none"


_ConnectionOption = functools.partial(typer.Option, rich_help_panel=_CONNECTION_PANEL)


# The signature of this function defines the connection options of every command.
def _connection_options(
    url: Annotated[
        str | None,
        _ConnectionOption(
            "--url",
            "--redis-url",
            metavar="URL",
            show_default=False,
            help="redis://, rediss:// (TLS), unix://, redis+sentinel://, redis+cluster://. "
            f"Default: $CHASQUI_URL, then {DEFAULT_URL}.",
        ),
    ] = None,
    username: Annotated[
        str | None,
        _ConnectionOption(metavar="NAME", help="ACL user. Default: $CHASQUI_USERNAME."),
    ] = None,
    password_file: Annotated[
        Path | None,
        _ConnectionOption(
            metavar="FILE",
            help="File with the password, read at every login. Without it the password in "
            "$CHASQUI_PASSWORD is used.",
        ),
    ] = None,
    tls: Annotated[bool, _ConnectionOption("--tls", help="Use TLS, like rediss://.")] = False,
    tls_ca: Annotated[
        Path | None, _ConnectionOption(metavar="FILE", help="CA certificates to trust.")
    ] = None,
    tls_cert: Annotated[
        Path | None, _ConnectionOption(metavar="FILE", help="Client certificate.")
    ] = None,
    tls_key: Annotated[
        Path | None,
        _ConnectionOption(metavar="FILE", help="Private key of the client certificate."),
    ] = None,
    tls_insecure: Annotated[
        bool, _ConnectionOption("--tls-insecure", help="Do not verify the server's certificate.")
    ] = False,
    dialect: Annotated[
        str | None,
        _ConnectionOption(
            metavar="native|portable",
            help="Skip the detection of the dialect, such as for a user without permission for it.",
        ),
    ] = None,
    debug: Annotated[bool, _ConnectionOption("--debug", help="Show tracebacks.")] = False,
) -> Server:
    env = os.environ
    configured_url = url or env.get("CHASQUI_URL") or env.get("CHASQUI_REDIS_URL")
    effective_url = configured_url or DEFAULT_URL
    target = from_url(effective_url)
    if "retries=" not in effective_url:
        target = replace(target, retries=_DEFAULT_RETRIES)
    username = username or env.get("CHASQUI_USERNAME")
    if username:
        target = replace(target, username=username)
    if password_file is not None:
        credentials = PasswordFile(password_file.absolute(), target.username)
        credentials.read_password()  # raises now instead of at the first login
        target = replace(target, credential_provider=credentials)
    elif password := env.get("CHASQUI_PASSWORD"):
        target = replace(target, password=password)
    if tls or tls_ca or tls_cert or tls_key or tls_insecure:
        target = replace(
            target, tls=_build_tls(target.tls, tls_ca, tls_cert, tls_key, tls_insecure)
        )
    return Server(target, dialect, is_default=not configured_url)


def _build_tls(
    configured: Tls | None,
    ca_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    insecure: bool,
) -> Tls:
    files = [str(path) if path else None for path in (ca_file, cert_file, key_file)]
    for file in files:
        if file and not os.access(file, os.R_OK):
            raise InvalidArgument(f"cannot read the TLS file {file!r}")
    base = configured or Tls()
    return Tls(
        files[0] or base.ca_file,
        files[1] or base.cert_file,
        files[2] or base.key_file,
        base.verify and not insecure,
        base.check_hostname,
    )


def with_connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the connection options to a command, which receives them as one argument, `server`.

    typer reads the options from the signature of a function, so the wrapper gets a signature with
    the parameters of both functions.

    :param command: the command. It has a parameter `server`.
    """
    command_signature = inspect.signature(command)
    shared_signature = inspect.signature(_connection_options)
    command_hints = get_type_hints(command, include_extras=True)
    shared_hints = get_type_hints(_connection_options, include_extras=True)

    @functools.wraps(command)
    def wrapper(**arguments: Any) -> Any:
        server = _connection_options(
            **{name: arguments.pop(name) for name in shared_signature.parameters}
        )
        try:
            return command(server=server, **arguments)
        except ConnectionFailed as error:
            if server.is_default:
                error.add_note(
                    f"No server was configured and {DEFAULT_URL} was tried; "
                    "pass --url or set CHASQUI_URL"
                )
            raise

    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=command_hints[name])
        for name, parameter in command_signature.parameters.items()
        if name != "server"
    ]
    parameters += [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=shared_hints[name])
        for name, parameter in shared_signature.parameters.items()
    ]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del wrapper.__wrapped__
    return wrapper
